"""`--demo` and `--smoke`: their default flags, and the synthetic market that they train on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sweepd.envs.crypto.data.bars import load_bars, write_bars
from sweepd.envs.crypto.data.demo_market import DEMO_BARS, make_demo_market
from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.table import objective_of
from sweepd.optimize.study.record.programs import is_command
from sweepd.optimize.study.record.specs import CRYPTO
from sweepd.optimize.study.settings.study import StudySettings

# Values of flags that are not given. The demo is the smallest study known to learn the market's
# structure in most trials and to pass the gate: it needs years of bars to rule out luck, and, since
# luck decides which of several good trials is best, it trains all of them to the end. The smoke run
# only shows that everything works.
DEMO: dict[str, Any] = {
    "study_name": "demo",
    "n_trials": 8,
    "groups": 4,
    "test_groups": 2,
    "budget": 100_000,
    "n_envs": 16,  # not measured, so that results do not depend on the machine's speed or load
    "pruner": "none",
    "search_space": "demo",
    "data_dir": Path("data/demo"),
}
SMOKE: dict[str, Any] = {
    "study_name": "smoke",
    "n_trials": 4,
    "cv": "kfold",
    "groups": 3,
    "budget": 16_384,
    "rungs": 2,
    "n_envs": 16,
    "search_space": "demo",
    "data_dir": Path("data/smoke"),
}
SMOKE_GAME: dict[str, Any] = {
    "n_trials": 2,
    "budget": 4_096,
    "rungs": 2,
    "n_envs": 16,
    "horizon": 64,
    "seeds": 2,
    "fresh_seeds": 2,
    "episodes": 8,
    "slots": 4,
    "threads": 1,  # not measured, which would take longer than the training
}
SMOKE_BARS = 6_000
ASSETS = 5
BANNER = (
    "SYNTHETIC MARKET: a demonstration on generated bars with a planted, learnable structure; "
    "not evidence about any real market."
)


def apply_preset(flags: StudySettings, given: frozenset[str]) -> StudySettings:
    """Fill in the values of `--demo` or `--smoke` for flags that are not given."""
    if flags.demo and flags.smoke:
        raise InputError("--demo and --smoke exclude each other; --smoke is the smaller of the two")
    return dataclasses.replace(
        flags, **{name: value for name, value in preset_of(flags).items() if name not in given}
    )


def preset_of(flags: StudySettings) -> dict[str, Any]:
    """Return the values of `--demo` or `--smoke` by flag; empty without either."""
    if not (flags.demo or flags.smoke):
        return {}
    if flags.env == CRYPTO:
        return SMOKE if flags.smoke else DEMO
    if flags.demo:
        raise InputError(f"--demo is for --env crypto, and --env is {flags.env}; use --smoke")
    if is_command(flags.env):
        raise InputError("--smoke is not for commands; use --n-trials 1 and a short training")
    # A name of its own: a smoke run must not become a part of the study of that game.
    return SMOKE_GAME | {"study_name": f"smoke-{objective_of(flags.env).default_name(flags)}"}


def demo_bars(flags: StudySettings) -> int:
    """Return the number of bars of the synthetic market."""
    return SMOKE_BARS if flags.smoke else DEMO_BARS


def make_demo_data(folder: Path, timeframe: str, bars: int, say: Callable[[str], None]) -> None:
    """Write the synthetic market to `folder` unless it is already there.

    Raises:
        InputError: the folder contains something else.
    """
    made = make_demo_market(assets=ASSETS, bars=bars, timeframe=timeframe)
    if folder.exists() and any(folder.iterdir()):
        try:
            same = load_bars(folder, timeframe).fingerprint == made.fingerprint
        except InputError:
            same = False
        if not same:
            raise InputError(
                f"--data-dir {folder} holds something else than the demo market; name an empty "
                "folder, or leave out --demo"
            )
        return
    write_bars(made, folder)
    say(f"made a synthetic market of {ASSETS} assets and {bars:,} bars of {timeframe} in {folder}")
