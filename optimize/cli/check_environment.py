"""`sweepd doctor --env NAME`: checks of an environment and of a study's flags, before the study.

Everything is tried as training would: the environment is played at random with its strict checks
on, and the numbers of the study are fitted to each other. Nothing is written.
"""

from __future__ import annotations

import dataclasses
import math
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.external.conformance import Conformance
from sweepd.envs.external.role_rows import RoleRows
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.games.game import Game
from sweepd.envs.games.pairings import RandomEntrant, is_versus, play_pairs, scripted_entrants
from sweepd.envs.games.random_check import PlayCheck, check_random_play
from sweepd.envs.games.reward_sums import reward_sums
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.formatting import counted
from sweepd.envs.support.terminal import Terminal
from sweepd.optimize.cli.check_spaces import examine_spaces
from sweepd.optimize.cli.demo import apply_preset
from sweepd.optimize.cli.findings import Finding, print_findings
from sweepd.optimize.cli.hooks import Hooks
from sweepd.optimize.cli.launch import choose_device
from sweepd.optimize.cli.study_request import make_request
from sweepd.optimize.objectives.command.objective import CommandObjective
from sweepd.optimize.objectives.games.experiment import check_algorithm
from sweepd.optimize.objectives.games.objective import GameObjective
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.table import check_request, members_of, objective_of
from sweepd.optimize.study.fit import (
    env_unit,
    fit_budget,
    fit_minibatch,
    fit_num_envs,
    nearest_envs,
    refuse_misfit,
)
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.space.parsing import NARROW, fixes_minibatch, load_space, space_source
from sweepd.optimize.study.space.search_space import SearchSpace
from sweepd.optimize.worker.freeze import choose_search, draft_spec, fit_request

ROWS = 16  # games of the random play
DEALS = 4  # of random play against every scripted player, each in both seatings
LOOK_STEPS = 2  # of the experiment's own random play, whose result is not used here


def check_environment(flags: StudySettings, given: frozenset[str], hooks: Hooks) -> int:
    """Print all checks of the environment of these flags; return the number of problems.

    Raises:
        InputError: a flag is not valid, whatever the environment does.
    """
    flags = apply_preset(flags, given)
    request = make_request(flags, given, hooks.load_bundle)
    if request.search_space.startswith(NARROW):
        raise InputError("sweepd doctor reads no study; give --search-space a preset or a file")
    check_request(request)
    if not request.search_space:
        found = objective_of(request.env).find_space(Terminal().print_line)
        request = dataclasses.replace(request, search_space=found)
    return print_findings(examine_study(request, choose_device(flags.gpu), flags.data_dir))


def examine_study(
    request: Request, device: torch.device, data_dir: Path | None
) -> Iterator[Finding]:
    """Yield the results of all checks of a study that would be created.

    Args:
        request: checked.
        device: where training would run.
        data_dir: bars of a market; None: these are not checked.
    """
    kind = objective_of(request.env)
    space = load_space(request.search_space, request.subject, request.timeframe)
    if isinstance(kind, CommandObjective):
        names = _Attempt("command", lambda: kind.completed(request, space))
        params = ", ".join(dimension.name for dimension in space.dimensions)
        yield from names.failures or [
            Finding(True, "command", f"{kind.command}: not started; its parameters are {params}")
        ]
        return
    if isinstance(kind, GameObjective):
        own = []
        for finding in _game(kind.game, request):
            own.append(finding)
            yield finding
        # With the phases of the space.
        opponents = _Attempt("opponents", lambda: kind.completed(request, space))
        yield from opponents.failures
        if opponents.failures or not all(finding.ok for finding in own):
            yield from _numbers(request, space)
            return
        request = opponents.result
        phases = request.curriculum
        found = "none" if phases is None else "; ".join(phases.describe())
        yield Finding(True, "opponents", found)
    elif data_dir is None:
        yield Finding(
            True,
            "environment",
            f"{request.env}: not played, for want of bars: give --data-dir (sweepd data "
            "check examines the bars themselves)",
        )
    search = _Attempt("search", lambda: choose_search(request, space))
    yield from search.failures
    request = search.result or request
    numbers = list(_numbers(request, space))
    yield from numbers
    playable = not kind.needs_data or data_dir is not None
    if playable and not search.failures and all(finding.ok for finding in numbers):
        yield from _study(request, space, device)


class _Attempt:
    """The result of a function, or the finding that it failed.

    Attributes:
        failures: empty if it did not.
        result: what it returned.
    """

    def __init__(self, subject: str, attempt: Callable[[], Any]) -> None:
        self.failures: list[Finding] = []
        self.result: Any = None
        try:
            self.result = attempt()
        except (InputError, RunError) as error:
            self.failures = [Finding(False, subject, str(error))]
        # The code of a user's environment may raise anything, and the other checks still say more.
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{last.filename}:{last.lineno}"
            self.failures = [Finding(False, subject, f"{type(error).__name__}: {error} ({where})")]


def _game(game: Game, request: Request) -> Iterator[Finding]:
    """Check a game by itself, and whether the algorithm can train in it."""
    params = game.params(**request.env_params)
    if game.foreign:
        spaces = list(examine_spaces(request.env, dict(params)))
        yield from spaces
        if not all(finding.ok for finding in spaces):
            return
    members = len(game.roles(params).names) or 1
    made = _Attempt(
        "environment",
        lambda: game.make(
            [params] * members, max(ROWS, game.unit(params)), together=members, device="cpu"
        ),
    )
    yield from made.failures
    if made.failures:
        return
    env: VecEnv = made.result
    yield Finding(True, "environment", _description(env, game.seats(params)))
    supported = _Attempt("algorithm", lambda: check_algorithm(request.algo, request.env, env))
    yield from supported.failures or [Finding(True, "algorithm", f"{request.algo} can train in it")]
    sound = True
    if isinstance(env, ExternalVecEnv | RoleRows):
        for finding in _conformance(env):
            sound = sound and finding.ok
            yield finding
    if sound:
        yield from _random_play(env)
    env.close()
    if is_versus(game, params):
        yield from _sums(game, params)
        yield from _scripted(game, params)


def _conformance(env: ExternalVecEnv | RoleRows) -> Iterator[Finding]:
    """Check one environment by itself: its spaces, its rewards and its seeds."""
    attempt = _Attempt("spaces", env.conformance)
    yield from attempt.failures
    if attempt.failures or not attempt.result.steps:
        return
    found: Conformance = attempt.result
    for subject, problem in found.problems.items():
        yield Finding(False, subject, problem, "correct the environment")
    if found.problems:
        return
    steps = counted(found.steps, "step")
    notes = "; ".join(found.notes)
    yield Finding(True, "spaces", notes or f"the observations of {steps} belong to their space")
    same = f"reset(seed=0) twice gives the same episode, for {steps}"
    yield Finding(not found.repeatable, "seed", found.repeatable or same)
    if found.apart and isinstance(env, ExternalVecEnv):
        yield Finding(True, "agents", found.apart)


def _description(env: VecEnv, seats: int) -> str:
    """Describe what a network gets and gives."""
    spec = env.spec
    if spec.action_dims:
        actions = f"{len(spec.action_dims)} choices of {', '.join(map(str, spec.action_dims))}"
    elif spec.if_discrete:
        actions = f"one choice of {spec.action_dim}"
    else:
        actions = f"{counted(spec.action_dim, 'number')} in [-1, 1]"
    masks = ", masked" if spec.masked else ""
    turns = " in turns" if spec.players > 1 else ""
    return (
        f"{env.env_name}: {counted(seats, 'seat')}{turns}; actions: {actions}{masks}; "
        f"observations: {counted(spec.state_dim, 'column')} of {spec.obs_dtype}"
    )


def _random_play(env: VecEnv) -> Iterator[Finding]:
    attempt = _Attempt("random play", lambda: check_random_play(env))
    yield from attempt.failures
    if attempt.failures:
        return
    played: PlayCheck = attempt.result
    rate = played.steps * played.rows / max(played.seconds, 1e-9)
    yield Finding(
        True,
        "random play",
        f"{counted(played.steps, 'step')} of {played.rows} rows ({rate:,.0f} steps/s), "
        f"{counted(played.episodes, 'episode')} ended, {played.truncated} of them truncated",
    )
    shape = f"({env.num_envs}, {env.spec.obs_dim})"
    right = {
        "observations": f"{shape} {env.spec.torch_dtype}, finite",
        "rewards": "finite float32" + _zero_sum(env, played),
        "ends": "terminated and truncated are bool",
    }
    if env.spec.masked:
        options = f"{played.fewest} to {played.most} legal options a choice"
        right["masks"] = f"{played.masks:,} masks, none empty: {options}"
    right["actions"] = f"{played.steps * played.rows:,}, all legal"
    for subject, found in right.items():
        problem = played.problems.get(subject)
        # Play ends at the first problem, after which nothing is known of the other subjects.
        if problem is not None or not played.problems:
            yield Finding(problem is None, subject, problem or found, "correct the environment")


def _sums(game: Game, params: Any) -> Iterator[Finding]:
    """Say whether an environment of others is zero-sum; it need not be so."""
    if not game.foreign:
        return
    attempt = _Attempt("players", lambda: reward_sums(game, params))
    yield from attempt.failures
    if not attempt.failures:
        yield Finding(not attempt.result.shared, "players", str(attempt.result))


def _zero_sum(env: VecEnv, played: PlayCheck) -> str:
    """Say whether the rewards of two players in turns add up to 0; a game need not be so."""
    if env.spec.players == 1:
        return ""
    if not played.largest_sum:
        return ", of both players together 0"
    return (
        f", of both players together up to {played.largest_sum:g}, not 0: one's gain is not the "
        "other's loss"
    )


def _scripted(game: Game, params: Any) -> Iterator[Finding]:
    """Play games of random play against the scripted players, whose actions are strict, too."""
    if not game.scripted(params):
        return
    others = scripted_entrants(game, params)
    pairs = [(0, 1 + index) for index in range(len(others))]
    names = ", ".join(name for entrant in others for name in entrant.names)
    played = _Attempt(
        "scripted players",
        lambda: play_pairs(game, params, [RandomEntrant(), *others], pairs, DEALS, seed=0),
    )
    yield from played.failures or [
        Finding(
            True,
            "scripted players",
            f"{names}: {2 * DEALS} games each against random play, no illegal action",
        )
    ]


def _numbers(request: Request, space: SearchSpace) -> Iterator[Finding]:
    """Check whether n-envs, horizon, minibatches and budget fit each other."""
    kind = objective_of(request.env)
    unit, horizon, sizes = kind.env_unit(request), request.horizon, space.minibatches
    fitting = math.lcm(unit, env_unit(sizes, horizon)) if sizes else unit
    listed = ", ".join(map(str, sizes))
    fits = f"every multiple of {fitting} fits"
    if sizes:
        fits += f" minibatches of {listed} with --horizon {horizon}"
    if request.n_envs is None:
        yield Finding(
            True, "n-envs", f"auto: measured when the study is created; {fits} without a remainder"
        )
    else:
        own = _Attempt(
            "n-envs", lambda: fit_num_envs(request.n_envs or 1, unit, request.env, fixed=True)
        )
        # Included minibatches are fitted to any number, as `_minibatches` says.
        fitted = not fixes_minibatch(request.search_space, space) and any(
            request.n_envs * horizon % n for n in sizes
        )
        found = f"{request.n_envs}" if fitted else f"{request.n_envs}; {fits}"
        yield from own.failures or [Finding(True, "n-envs", found)]
        if not own.failures and sizes:
            yield _minibatches(request, space)
    yield _budget(request)


def _minibatches(request: Request, space: SearchSpace) -> Finding:
    sizes, num_envs = space.minibatches, request.n_envs or 1
    transitions = num_envs * request.horizon
    rollout = f"{num_envs} envs x {request.horizon} steps = {transitions:,} transitions"
    listed = ", ".join(map(str, sizes))
    if not any(transitions % size for size in sizes):
        return Finding(True, "minibatch", f"{listed} divide the {rollout} of a rollout")
    if fixes_minibatch(request.search_space, space):
        source = space_source(request.search_space)
        misfit = _Attempt(
            "minibatch", lambda: refuse_misfit(sizes, num_envs, request.horizon, source)
        )
        return misfit.failures[0]
    fitted = dict.fromkeys(str(fit_minibatch(size, transitions)) for size in sizes)
    return Finding(
        True,
        "minibatch",
        f"nothing to do: the included space's {listed} become {', '.join(fitted)} when the study "
        f"is created, since they must divide the {rollout} of a rollout; they stay as they are "
        f"with --n-envs {nearest_envs(sizes, num_envs, request.horizon)}",
    )


def _budget(request: Request) -> Finding:
    num_envs = request.n_envs or 1
    fixed = "budget" in request.given and bool({"n_envs", "horizon", "rungs"} & request.given)
    budget = _Attempt(
        "budget",
        lambda: fit_budget(request.budget, request.rungs, num_envs, request.horizon, fixed=fixed),
    )
    if budget.failures:
        return budget.failures[0]
    steps, note = budget.result
    if request.n_envs is None:
        found = f"{steps:,} steps per member in {request.rungs} rungs"
    else:
        rollouts = math.ceil(steps / (num_envs * request.horizon))
        found = f"{steps:,} steps per member are {rollouts:,} rollouts, {request.rungs} rungs"
    return Finding(True, "budget", note or found)


def _study(request: Request, space: SearchSpace, device: torch.device) -> Iterator[Finding]:
    """Draft the study as `train` does, without measuring, and create its experiment."""
    kind = members_of(request.env, "sweepd doctor --env")
    request = dataclasses.replace(request, look_steps=request.look_steps or LOOK_STEPS)

    def create() -> tuple[Any, list[Finding]]:
        asked = fit_request(request, space, "", lambda _: None)
        bars = kind.load_bars(asked)
        spec = draft_spec(asked, space, bars, device)
        if asked.n_envs is not None:  # else the number of rollouts is not known yet
            kind.check_spec(spec)
        experiment = kind.make_experiment(spec, bars, device, lambda _: None, request.load_bundle)
        if bars is None:
            return spec, []
        env = experiment.training_env(spec.slots, ROWS)
        return spec, [Finding(True, "environment", _description(env, 1)), *_random_play(env)]

    made = _Attempt("study", create)
    yield from made.failures
    if not made.failures:
        spec, findings = made.result
        yield from findings
        member = spec.member if request.roles is None else "member"
        yield Finding(
            True,
            "study",
            f"{spec.trials_per_batch} trials of {counted(kind.members(request), member)}, "
            f"{spec.slots} members per program",
        )
