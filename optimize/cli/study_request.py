"""Translation of the flags of `train` into the request for a study."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from sweepd.agents.algorithms.table import get_algorithm
from sweepd.envs.crypto.features import default_recipe
from sweepd.envs.crypto.splits import CrossValidation
from sweepd.envs.games.curriculum import NO_OPPONENTS, Curriculum
from sweepd.envs.games.phase_files import read_opponents, read_phases
from sweepd.envs.support.errors import InputError
from sweepd.optimize.cli.demo import preset_of
from sweepd.optimize.cli.train_flags import TrainFlags
from sweepd.optimize.experiments.game_kind import GameKind
from sweepd.optimize.experiments.kinds import kind_of
from sweepd.optimize.experiments.request import Request
from sweepd.optimize.study.space.parsing import NARROW, load_space

DATA_DIR_MISSING = (
    "--data-dir is missing: name a directory of bars (sweepd data download creates one), "
    "or use --demo"
)


def make_request(flags: TrainFlags, given: frozenset[str]) -> Request:
    """Return the request of these flags and the space's defaults, before any automatic choice.

    Args:
        flags: all flags of `train`, presets applied.
        given: names of the flags that were set explicitly.
    """
    kind = kind_of(flags.env)
    algorithm = get_algorithm(flags.algo)
    if not algorithm.trains:  # a single rollout without updates
        threads = 1 if flags.threads is None else flags.threads
        flags = dataclasses.replace(flags, budget=1, rungs=1, threads=threads)
    # "auto" as default is not a request: the algorithm may have a fixed number.
    if "n_envs" in given or flags.n_envs != "auto":
        n_envs = _parse_num_envs(flags.n_envs)
    else:
        n_envs = algorithm.num_envs
    request = Request(
        data_dir=flags.data_dir or Request.data_dir,
        timeframe=flags.timeframe,
        tickers=parse_tickers(flags.tickers),
        accept_jumps=flags.accept_jumps,
        environment=flags.env,
        algorithm=flags.algo,
        recipe=flags.recipe or default_recipe(flags.timeframe),
        cv=CrossValidation(flags.cv, flags.groups, flags.test_groups, flags.embargo),
        holdout=flags.holdout,
        seeds=flags.seeds,
        episodes=flags.episodes,
        own_episodes=flags.own_episodes,
        look_steps=flags.look_steps,
        play=flags.play or Request.play,
        curriculum=_read_curriculum(flags),
        past_interval=flags.past_interval,
        past_size=flags.past_size,
        budget=flags.budget,
        rungs=flags.rungs,
        horizon=algorithm.horizon if flags.horizon is None else flags.horizon,
        n_envs=n_envs,
        slots=flags.slots,
        n_trials=flags.n_trials,
        trials_per_batch=flags.trials_per_batch,
        search_space=flags.search_space or kind.default_space,
        search=flags.search,
        sampler=flags.sampler,
        prior=tuple(flags.prior or ()),
        pruner=flags.pruner,
        objective=flags.objective or kind.objectives[0],
        seed=flags.seed,
        threads=flags.threads,
        precision=flags.precision,
        env=kind.env_settings(vars(flags)),
        given=given,
    )
    if request.search_space.startswith(NARROW):
        return request
    defaults: dict[str, Any] = dict(load_space(request.search_space, request.subject).study)
    chosen = given | preset_of(flags).keys()
    return dataclasses.replace(request, **{n: v for n, v in defaults.items() if n not in chosen})


def study_name(flags: TrainFlags) -> str:
    """Return `--study-name`, or the default name.

    Raises:
        InputError: the name cannot name a directory.
    """
    name = flags.study_name or kind_of(flags.env).default_name(vars(flags))
    if not re.fullmatch(r"[\w][\w.+-]{0,99}", name):
        raise InputError(
            f"--study-name {name!r} is not valid: use at most 100 letters, digits, - and _ (it "
            "also names a directory)"
        )
    return name


def flags_per_study(flags: TrainFlags) -> list[TrainFlags]:
    """Return the flags of each requested study: one, or one per scenario with `--scenario all`."""
    kind = kind_of(flags.env)
    if flags.scenario != "all" or not isinstance(kind, GameKind):
        return [flags]
    scenarios = kind.game.scenarios
    if not scenarios:
        raise InputError(f"--scenario all: {flags.env} has no scenarios; leave it out")
    named = flags.study_name
    return [
        dataclasses.replace(
            flags, scenario=scenario, study_name=f"{named}-{scenario}" if named else None
        )
        for scenario in scenarios
    ]


def _read_curriculum(flags: TrainFlags) -> Curriculum | None:
    """Return the phases of --phases or --opponents; None without opponents, or by default."""
    if flags.phases is not None and flags.opponents is not None:
        raise InputError(
            "--opponents and --phases exclude each other: every phase names its opponents"
        )
    if flags.opponents not in (None, NO_OPPONENTS):
        return read_opponents(flags.opponents)
    return None if flags.phases is None else read_phases(flags.phases)


def parse_tickers(text: str | None) -> tuple[str, ...] | None:
    """Return the names in `--tickers`; None for all.

    Raises:
        InputError: there is none.
    """
    if text is None:
        return None
    tickers = tuple(text.replace(",", " ").split())
    if not tickers:
        raise InputError(
            "--tickers is empty; give tickers like BTC/USDT,ETH/USDT, or leave the flag out to use "
            "all in the directory"
        )
    return tickers


def _parse_num_envs(text: str) -> int | None:
    """Return the number, or None for `auto`."""
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InputError(
            f"--n-envs {text!r} is not valid: give auto or a whole number of at least 1"
        )
    return int(text)
