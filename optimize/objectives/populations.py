"""Settings of population-based training (`--search pbt`), and what it refuses."""

from __future__ import annotations

import dataclasses
from typing import Any

from sweepd.envs.games.pairings import is_versus
from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.games.objective import GameObjective
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.study.fit import most_envs
from sweepd.optimize.study.record.configurations import PBT
from sweepd.optimize.study.record.programs import is_command
from sweepd.optimize.study.record.specs import CRYPTO, StudySpec
from sweepd.optimize.study.sampling.evolution import FEWEST
from sweepd.optimize.study.sampling.samplers import AUTO
from sweepd.optimize.study.space.dimension import Dimension
from sweepd.optimize.study.space.parsing import space_source
from sweepd.optimize.study.space.search_space import SearchSpace

MOST_MEMBERS = 40  # of a population whose size is chosen automatically
RUNGS = 10  # likewise
ALGORITHMS = ("ppo", "sac", "d3qn")  # those whose programs can take over weights


def check_population(request: Request) -> None:
    """Raise InputError for flags that population-based training cannot be combined with."""
    if request.search == PBT:
        _check_subject(request)
        _check_flags(request)


def choose_population(request: Request, space: SearchSpace) -> Request:
    """Return the request for a new study with `--search pbt` with the settings of a population.

    Flags that were not given get values that suit population-based training; the initial
    population is drawn at random.

    Raises:
        InputError: population-based training cannot do what is asked for.
    """
    _check_subject(request)  # again: the space may have phases
    _check_space(request, space)
    chosen = request.given | space.study.keys()
    own: dict[str, Any] = {"sampler": "random", "pruner": "none"}
    if "seeds" not in chosen:
        own["seeds"] = 1
    envs = request.n_envs or most_envs(request.budget, request.horizon, space.minibatches)
    if "rungs" not in chosen and request.budget >= RUNGS * envs * request.horizon:
        own["rungs"] = RUNGS
    size = request.trials_per_batch or _fitting(request.n_trials)
    if size < FEWEST:
        raise InputError(
            f"--trials-per-batch {size} is the size of a population, which needs at least {FEWEST} "
            "trials"
        )
    _check_total(size, request.n_trials)
    return dataclasses.replace(request, trials_per_batch=size, **own)


def population_space(search: str, source: str, space: SearchSpace) -> SearchSpace:
    """Return the space of a study, in which a population varies no parameter of the environment.

    In an included space, these have their start values. A file of the user's is not changed.

    Args:
        search: of the study.
        source: value of --search-space.
        space: the space.
    """
    if search != PBT or source not in space.subject.presets:
        return space
    env = {
        name: own if own.start is None else Dimension(name, value=own.start)
        for name, own in space.tables["env"].items()
    }
    return dataclasses.replace(space, tables=space.tables | {"env": env})


def check_total(spec: StudySpec, n_trials: int | None) -> None:
    """Raise InputError if a study would end with an incomplete population."""
    if spec.evolves:
        _check_total(spec.trials_per_batch, n_trials)


def _check_total(size: int, n_trials: int | None) -> None:
    if n_trials is not None and n_trials % size:
        raise InputError(
            f"--n-trials {n_trials} is not a multiple of the population's {size} trials "
            f"(--trials-per-batch); give {max(1, round(n_trials / size)) * size}"
        )


def _fitting(n_trials: int | None) -> int:
    """Return the largest size of which the total is a multiple."""
    if n_trials is None:
        return MOST_MEMBERS
    sizes = range(min(n_trials, MOST_MEMBERS), FEWEST - 1, -1)
    size = next((size for size in sizes if n_trials % size == 0), None)
    if size is None:
        raise InputError(
            f"--n-trials {n_trials} cannot be divided into populations of {FEWEST} to "
            f"{MOST_MEMBERS} trials; give a multiple of the size that you want, such as 40"
        )
    return size


def _check_subject(request: Request) -> None:
    if request.env == CRYPTO:
        raise InputError(
            "--search pbt is for games: on a market it would choose weights by their scores on the "
            "validation folds at every rung, which PBO and the deflated Sharpe ratio do not account "
            "for; leave it out"
        )
    if is_command(request.env):
        raise InputError(
            "--search pbt is for games: sweepd cannot copy the weights of a program's training; "
            "leave it out"
        )
    game = GameObjective(request.env).game
    params = game.params(**request.env_params)
    seats = game.seats(params)
    if seats > 1 and not is_versus(game, params):
        raise InputError(
            "--search pbt is for games of one player, and of two seats made from TensorGame; --env "
            f"{request.env} is neither, with {seats} seats; leave it out"
        )
    if request.curriculum is not None and request.curriculum.has_league:
        raise InputError(
            "--search pbt cannot be combined with the opponent league, which consists of complete "
            "trials: those of a population complete at the same time; choose other --opponents"
        )
    if request.algo not in ALGORITHMS:
        raise InputError(
            f"--search pbt needs --algo {', '.join(ALGORITHMS[:-1])} or {ALGORITHMS[-1]}, not "
            f"{request.algo}"
        )


def _check_flags(request: Request) -> None:
    allowed = {"sampler": ("random", AUTO), "pruner": ("none",)}
    for flag, values in allowed.items():
        if flag in request.given and getattr(request, flag) not in values:
            raise InputError(
                f"--search pbt works with --{flag} {values[0]} alone, not {getattr(request, flag)}; "
                "leave that flag out"
            )
    if request.async_envs > 1:
        raise InputError(
            f"--async-envs {request.async_envs} records what repeats a trial, and --search pbt copies "
            "weights between trials; give --async-envs 1 or leave it out"
        )
    if request.prior:
        raise InputError("--search pbt cannot learn from earlier studies; leave --prior out")
    if request.try_first:
        raise InputError(
            "--search pbt draws the members of a population together; leave --try-first out"
        )
    if "rungs" in request.given and request.rungs < 2:
        raise InputError(
            f"--search pbt copies weights after every rung but the last: --rungs {request.rungs} "
            "must be at least 2"
        )


def _check_space(request: Request, space: SearchSpace) -> None:
    varied = [name for name, own in space.tables["env"].items() if own.value is None]
    if varied:
        raise InputError(
            f"--search pbt varies hyperparameters of the algorithm alone: [env] {varied[0]} of "
            f"{space_source(request.search_space)} must be a constant"
        )
    kept = request.subject.learner.params.of_the_run
    own = space.tables[request.subject.learner.table]
    if not any(d.value is None for name, d in own.items() if name not in kept):
        raise InputError(
            f"--search pbt has nothing to change: {space_source(request.search_space)} has no "
            f"range in [{request.subject.learner.table}] that may change during a training"
        )
