"""What a study trains on and how its trials are judged: the one interface that search, profiling and sizing know.

`optimize.experiments.crypto` is the market, with folds; `optimize.experiments.games` any game, with seeds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agents.algorithms.table import get_algorithm
from agents.engine.learner import Act, StateDict
from agents.networks.shape import Shape, env_fields
from envs.core.vec_env import VecEnv
from envs.support.study_record import RecordedFile, StudySpec, TrialRecord
from optimize.study.search_space import Settings


@dataclass(frozen=True)
class Evaluation(ABC):
    """How a trial did. value: what a rung reports. final: what it is told when complete. scores: one per member.
    reasons: why `final` is not what the scores alone would make it.
    """

    value: float
    final: float
    scores: tuple[float, ...]
    reasons: tuple[str, ...]

    @abstractmethod
    def record(self) -> TrialRecord:
        """Return scores, metrics and reason, to be recorded with the trial."""


class Experiment(ABC):
    """Environments and normalisers of one study. device: where training runs.

    together: members that share environments and so must be in one program.
    unit: environments that can only be made together; `--n-envs` is a multiple.
    """

    together: int = 1
    unit: int = 1

    def __init__(self, spec: StudySpec, device: torch.device) -> None:
        self.spec, self.device = spec, device
        self.algorithm = get_algorithm(spec.algorithm)

    @property
    def member(self) -> str:
        """Name of a trial's members, "fold" or "seed"."""
        return self.spec.member

    @property
    @abstractmethod
    def members(self) -> int:
        """Members of one trial."""

    def env_settings(self, settings: Settings) -> dict[str, Any]:
        """Return the keyword arguments of the environment's parameters: the study's and the trial's."""
        return {**self.spec.env, **settings.env}

    @property
    @abstractmethod
    def published(self) -> tuple[str, ...]:
        """Names of a complete trial's files that the dashboard shows, the first one a picture of it."""

    @abstractmethod
    def env_params(self, settings: Settings) -> Any:
        """The environment's parameters, a dataclass. Raises InputError where a value is out of range."""

    def learner_params(self, settings: Settings) -> Any:
        """The algorithm's parameters, a dataclass. Raises InputError where a value is out of range."""
        return self.algorithm.params(**settings.learner)

    @abstractmethod
    def training_env(self, slots: int, num_envs: int) -> VecEnv:
        """An environment of `slots` members, all still dummies."""

    @abstractmethod
    def seat(self, env: Any, slot: int, member: int, settings: Settings) -> None:
        """Give a slot of a training environment to a trial's member."""

    @abstractmethod
    def normaliser(self, member: int, settings: Settings) -> tuple[Tensor, Tensor]:
        """state_avg and state_std, (state_dim,) float32, that this member's networks see through."""

    def shape(self, settings: Settings, env: VecEnv, slots: int) -> Shape:
        """The program's shape for a trial's shape parameters on this environment."""
        own = {**env_fields(env), "slots": slots}
        return Shape(
            **own, algorithm=self.spec.algorithm, horizon=self.spec.horizon, **settings.shape
        )

    @abstractmethod
    def evaluate(
        self,
        settings: Sequence[Settings],
        programs: Sequence[Act],
        slots: int,
        full: int,
        ask: Callable[[], None],
    ) -> Sequence[Evaluation | None]:
        """Judge trials by their members as they are now; None where a trial's numbers are not finite.

        programs: they act for all members of all trials in order, `slots` of them each, the last one filled up with
        dummies. full: as many programs as a full batch needs, since rounding must not depend on the company. ask:
        called at every step; it may raise, to interrupt.
        """

    @abstractmethod
    def describe(self) -> list[str]:
        """Lines to print when the study starts."""

    @abstractmethod
    def write(self, folder: Path, members: Sequence[StateDict], evaluation: Any) -> RecordedFile:
        """Everything that a complete trial leaves, but for its pictures. Returns what `optimize.experiments.artifacts.scored_file`
        says of the members' file.
        """

    @abstractmethod
    def draw(self, folder: Path, title: str) -> None:
        """Draw the pictures from what `write` wrote."""
