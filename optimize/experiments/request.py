"""The settings of a study as they are asked for on the command line or from Python."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweepd.envs.crypto.scoring.metrics import DEFAULT_OBJECTIVE
from sweepd.envs.crypto.splits import CrossValidation
from sweepd.envs.games.curriculum import MOST_PAST, Curriculum
from sweepd.envs.support.configurations import TRIALS
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.study_record import CRYPTO, Play
from sweepd.optimize.experiments.curriculum import LoadBundle
from sweepd.optimize.study.space.subject import Subject

# Upper limits far above any useful value, so that a typing error is refused at once.
MOST_TRIALS = 1_000_000
MOST = {
    "budget": 10**12,
    "rungs": 1_000,
    "horizon": 10**6,
    "seeds": 1_024,
    "episodes": 10**6,
    "past_interval": 10**9,
    "past_size": MOST_PAST,
    "n_envs": 2**20,
    "slots": 2**16,
    "trials_per_batch": 2**16,
}


@dataclass(frozen=True)
class Request:
    """The settings of a study that is to be created or joined.

    None means: chosen automatically when the study is created, and taken from the study when it
    is joined. data_dir, timeframe, tickers, recipe, cv and holdout are for markets; seeds,
    episodes, own_episodes, look_steps, play and curriculum are for games.

    Attributes:
        accept_jumps: whether bars may look wrong.
        given: names of the flags that were given; only these are compared with an existing study.
        n_trials: the study's total, so that no slot is kept for trials that it will not have.
        prior: names of earlier studies that the race learns from.
        n_envs: environments per member; None is --n-envs auto.
        env: environment parameters that all trials share.
        episodes: 0 is automatic.
        look_steps: steps of random play per environment; 0 is automatic.
        play: how members act in evaluations.
        curriculum: phases and opponents; None: those of the search space, if it has some.
        past_interval: replaces that of the curriculum.
        past_size: likewise.
        load_bundle: finds champions that are opponents; None: there is no registry.
    """

    data_dir: Path = Path(".")
    timeframe: str = "1h"
    tickers: tuple[str, ...] | None = None
    accept_jumps: bool = False
    environment: str = CRYPTO
    algorithm: str = "ppo"
    recipe: str = "default"
    cv: CrossValidation = dataclasses.field(default_factory=CrossValidation)
    holdout: float = 0.15
    seeds: int = 4
    episodes: int = 32
    own_episodes: bool = False
    look_steps: int = 0
    play: Play = "deterministic"
    curriculum: Curriculum | None = None
    past_interval: int | None = None
    past_size: int | None = None
    load_bundle: LoadBundle | None = None
    budget: int = 250_000
    rungs: int = 4
    horizon: int = 64
    n_envs: int | None = None
    slots: int | None = None
    n_trials: int | None = None
    trials_per_batch: int | None = None
    search_space: str = "wide"
    search: str = TRIALS
    sampler: str = "auto"
    pruner: str = "hyperband"
    objective: str = DEFAULT_OBJECTIVE
    prior: tuple[str, ...] = ()
    seed: int = 0
    threads: int | None = None
    precision: str = "fp32"
    env: dict[str, Any] = dataclasses.field(default_factory=dict)
    given: frozenset[str] = frozenset()

    @property
    def subject(self) -> Subject:
        """What the search space is for."""
        return Subject(self.environment, self.algorithm)


def most_threads() -> int:
    """Return the largest allowed number of CPU threads per process, a few per core."""
    return max(64, 4 * (os.cpu_count() or 1))


def check_count(flag: str, number: int | None, most: int, least: int = 1) -> None:
    """Raise InputError if a number was given that is not between `least` and `most`."""
    if number is None or least <= number <= most:
        return
    limit = f"must be at least {least}"
    if number > most:
        limit = f"is more than sweepd can use here; give at most {most:,}"
    raise InputError(f"{flag} {number} {limit}")
