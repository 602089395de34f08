"""What a study shall be, as flags say it."""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.algorithms.table import get_algorithm
from agents.networks.shape import FEWEST_SLOTS
from envs.crypto.features import get_recipe
from envs.crypto.metrics import DEFAULT_OBJECTIVE, OBJECTIVES
from envs.crypto.params import EnvParams
from envs.crypto.splits import CrossValidation
from envs.games.registry import get_game
from envs.support.errors import InputError
from envs.support.study_record import objective_name
from optimize.study.pruning import PRUNERS, SAMPLERS
from optimize.study.search_space import Subject
from optimize.study.spec import check_folds

# Flags that mean something for a market, or for a game, alone.
MARKET_FLAGS = frozenset(
    {
        "data_dir",
        "timeframe",
        "tickers",
        "recipe",
        "holdout",
        "cv",
        "groups",
        "test_groups",
        "embargo",
        "fee",
        "slippage",
        "minimum_order",
        "initial_cash",
        "episode_bars",
        "demo",
        "smoke",
    }
)
GAME_FLAGS = frozenset({"seeds", "episodes", "look_steps", "scenario", "env_param"})
RETURN = "return"  # the objective of games
# Upper limits far above any useful value, so that a typing error is refused at once.
MOST_TRIALS = 1_000_000
MOST = {
    "budget": 10**12,
    "rungs": 1_000,
    "horizon": 10**6,
    "seeds": 1_024,
    "episodes": 10**6,
    "n_envs": 2**20,
    "slots": 2**16,
    "trials_per_batch": 2**16,
}


@dataclass(frozen=True)
class Request:
    """None: automatic where the study is made, as frozen where it is joined.

    given: names of the flags that were given; only those are compared with an existing study.
    n_envs: None for auto. env: settings that all trials share, by the names of the environment's parameters.
    data_dir, timeframe, tickers, recipe, cv, holdout: of markets; seeds, episodes, look_steps (0:
    automatic): of games.
    """

    data_dir: Path = Path(".")
    timeframe: str = "1h"
    tickers: tuple[str, ...] | None = None
    environment: str = "crypto"
    algorithm: str = "ppo"
    recipe: str = "default"
    cv: CrossValidation = dataclasses.field(default_factory=CrossValidation)
    holdout: float = 0.15
    seeds: int = 4
    episodes: int = 32
    look_steps: int = 0
    budget: int = 250_000
    rungs: int = 4
    horizon: int = 64
    n_envs: int | None = None
    slots: int | None = None
    trials_per_batch: int | None = None
    search_space: str = "wide"
    sampler: str = "tpe"
    pruner: str = "hyperband"
    objective: str = DEFAULT_OBJECTIVE
    seed: int = 0
    threads: int | None = None
    precision: str = "fp32"
    env: dict[str, Any] = dataclasses.field(default_factory=dict)
    given: frozenset[str] = frozenset()

    @property
    def market(self) -> bool:
        """Whether the environment is the market, rather than a game."""
        return self.environment == "crypto"

    @property
    def subject(self) -> Subject:
        return Subject(self.environment, self.algorithm)


def most_threads() -> int:
    """The most CPU threads of one process: more than a few per core bring no speed."""
    return max(64, 4 * (os.cpu_count() or 1))


def check_count(flag: str, number: int | None, most: int, least: int = 1) -> None:
    """Raise InputError where a number that was given is not from `least` to `most`."""
    if number is None or least <= number <= most:
        return
    limit = f"must be at least {least}"
    if number > most:
        limit = f"is more than sweepd can use here; give at most {most:,}"
    raise InputError(f"{flag} {number} {limit}")


def check_request(request: Request) -> None:
    """Raise InputError for the first flag that cannot be right, before anything is read or written."""
    choices = {
        "objective": (
            objective_name(request.objective),
            tuple(OBJECTIVES) if request.market else (RETURN,),
        ),
        "sampler": (request.sampler, SAMPLERS),
        "pruner": (request.pruner, PRUNERS),
    }
    if not request.market:
        get_game(request.environment)
    get_algorithm(request.algorithm)
    if request.market and request.algorithm != "ppo":
        raise InputError(
            f"--algo {request.algorithm} is for games; --env crypto trains with --algo ppo"
        )
    misplaced = sorted(request.given & (GAME_FLAGS if request.market else MARKET_FLAGS))
    if misplaced:
        kind = "games" if request.market else "--env crypto"
        raise InputError(
            f"--{misplaced[0].replace('_', '-')} is for {kind}, and --env is {request.environment}; leave it out"
        )
    for flag, (value, allowed) in choices.items():
        if value not in allowed:
            raise InputError(
                f"--{flag} {value!r} is not known; choose {'one of ' if len(allowed) > 1 else ''}{', '.join(allowed)}"
            )
    for field, most in MOST.items():
        least = FEWEST_SLOTS if field == "slots" else 1
        check_count(f"--{field.replace('_', '-')}", getattr(request, field), most, least)
    check_count("--threads", request.threads, most_threads())
    if request.market and request.cv.test_groups < 1:
        raise InputError(f"--test-groups {request.cv.test_groups} must be at least 1")
    if request.look_steps:
        check_count("--look-steps", request.look_steps, 10**6)
    if not 0 <= request.holdout < 0.9:
        raise InputError(f"--holdout {request.holdout} must be a share from 0 to below 0.9")
    if request.seed < 0:
        raise InputError(f"--seed {request.seed} must be at least 0")
    scenario = request.env.get("scenario") if not request.market else None
    if scenario is not None and scenario not in get_game(request.environment).scenarios:
        known = ", ".join(get_game(request.environment).scenarios) or "none for this game"
        raise InputError(f"--scenario {scenario!r} is not known; there are: {known}")
    try:
        (EnvParams if request.market else get_game(request.environment).params)(**request.env)
    except TypeError as error:
        raise InputError(
            f"--env-param: {request.environment} takes none of that name ({error})"
        ) from None
    if request.market:
        smallest, cash = (
            request.env.get("minimum_order", 0.0),
            request.env.get("initial_cash", math.inf),
        )
        if smallest > cash:
            raise InputError(
                f"--minimum-order {smallest} is more than --initial-cash {cash}: no order would ever be placed"
            )
        get_recipe(request.recipe)
        check_folds(request.cv, request.budget)
