"""What a study optimises: an `Objective` of its environment, such as a market or a game.

Code that creates, joins or describes a study asks the objective
(`sweepd.optimize.objectives.table.objective_of`) and does not distinguish markets, games and
programs itself.
`Objective.open` returns the `Run` that trains the study's trials.
"""
# ruff: noqa: ARG002 -- the defaults ignore arguments that only one kind needs

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.games.curriculum import Curriculum
from sweepd.envs.support.plugins import Plugin
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.run import Run
from sweepd.optimize.study.record.specs import StudySpec
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.space.search_space import SearchSpace, Settings

Spec = TypeVar("Spec", bound=StudySpec)
Say = Callable[[str], None]


class Objective(ABC, Generic[Spec]):
    """The answers of one kind of study.

    Attributes:
        settings: those that not every kind has.
        without_effect: those that every other kind has, and this one does not.
        title: the kind in messages.
        default_space: name of the default search space; "": see `find_space`.
        needs_data: whether a new study needs --data-dir.
        own_objectives: whether the objective may be a function of other packages.
        first_stage: whether the promotion gate has rules that need no hold-out evaluation.
    """

    settings: type
    without_effect: frozenset[str] = frozenset()
    title: str
    default_space: str
    needs_data: bool
    first_stage: bool
    own_objectives: bool = False

    def __init__(self, environment: str) -> None:
        self.environment = environment

    @property
    def scenarios(self) -> tuple[str, ...]:
        """Return the names of the environment's scenarios."""
        return ()

    @property
    @abstractmethod
    def objectives(self) -> tuple[str, ...]:
        """Return the names of its objectives, the default first."""

    def plugins(self, spec: Spec) -> Iterable[tuple[str, str, Plugin]]:
        """Return kind, text and object of what other packages provide for the environment."""
        return ()

    @abstractmethod
    def number_names(self, request: Request) -> tuple[str, ...] | None:
        """Return the names of the numbers that every evaluation records, besides the objective.

        None: they are known at the first evaluation.
        """

    @abstractmethod
    def defaults(self, settings: StudySettings, given: frozenset[str]) -> dict[str, Any]:
        """Return settings of a request whose defaults depend on the kind.

        Args:
            settings: all settings.
            given: names of those that were set explicitly.
        """

    def set_up(
        self, name: str, spec: Spec, request: Request, device: torch.device, say: Say
    ) -> None:
        """Prepare this process for training trials of an existing study of this name.

        Raises:
            InputError: it cannot train them.
        """
        return

    @abstractmethod
    def check(self, request: Request) -> None:
        """Raise InputError for the first setting of this kind that cannot be right."""

    def warning(self, request: Request) -> str | None:
        """Return a warning about valid settings that are rarely wanted."""
        return None

    def completed(self, request: Request, space: SearchSpace) -> Request:
        """Return the request with what the search space says besides its tables.

        Raises:
            InputError: request and space contradict each other.
        """
        return request

    @abstractmethod
    def default_name(self, settings: StudySettings) -> str:
        """Return the name of a study with these settings."""

    def find_space(self, say: Say) -> str:
        """Return the search space of a new study for which the user names none.

        Raises:
            InputError: one must be named.
        """
        return self.default_space

    def load_bars(self, request: Request) -> Bars | None:
        """Return the bars for a new study; None for a game."""
        return None

    def load_recorded_bars(self, spec: Spec, folder: Path | None, newer: Say) -> Bars | None:
        """Return the bars of an existing study; None for a game.

        Args:
            spec: the study's spec.
            folder: where the bars are now.
            newer: receives a sentence if the folder has newer bars.
        """
        return None

    def other_assets(self, spec: Spec, folder: Path | None) -> str:
        """Say which assets a folder has besides those of an existing study; "" if none."""
        return ""

    @abstractmethod
    def members(self, request: Request) -> int:
        """Return the number of members of one trial."""

    def check_installed(self, algorithm: str) -> None:
        """Raise InputError for an unknown algorithm, or one that needs a missing package."""
        return

    def kernels(self, algorithm: str) -> str:
        """Return which algorithm's native kernels train with this one; "": none."""
        return ""

    def reads_images(self, env_params: Mapping[str, Any]) -> bool:
        """Return whether networks read images in an environment with these parameters."""
        return False

    def trains(self, algorithm: str) -> bool:
        """Return whether a trial with this algorithm is trained, not only evaluated."""
        return True

    def one_player(self, env_params: Mapping[str, Any], algorithm: str) -> bool:
        """Return whether one player is trained, whose result depends on the seed alone.

        Then the race is the best sampler, and fresh seeds measure what a selection is worth.
        """
        return False

    def automatic_search(self, request: Request, space: SearchSpace) -> dict[str, Any]:
        """Return the settings of `--sampler auto`, of which those that were given are kept."""
        return {"sampler": "tpe"}

    def train_together(self, request: Request) -> bool:
        """Return whether the members of a trial share environments, and so a program."""
        return False

    def env_unit(self, request: Request) -> int:
        """Return the number of environments that can only be created together."""
        return 1

    def curriculum(self, spec: Spec) -> Curriculum | None:
        """Return the phases of a study; None if it has none."""
        return None

    def check_spec(self, spec: Spec) -> None:
        """Raise InputError for numbers, some of them measured, that do not fit each other."""
        return

    @abstractmethod
    def make_spec(
        self, request: Request, common: Mapping[str, Any], max_lookback: int, bars: Bars | None
    ) -> Spec:
        """Return the spec of a new study.

        Args:
            request: the request.
            common: the fields of `StudySpec`.
            max_lookback: longest lookback of any trial.
            bars: the bars of a market.
        """

    def measured_spec(
        self,
        spec: Spec,
        request: Request,
        space: SearchSpace,
        bars: Bars | None,
        device: torch.device,
        say: Say,
    ) -> tuple[Spec, list[str]]:
        """Return the spec with its automatic settings, and what was measured, as lines.

        Args:
            spec: a draft, whose automatic settings have their upper limits.
            request: the request.
            space: its search space.
            bars: the bars of a market.
            device: where training will run.
            say: receives a line before every step that takes long.
        """
        return spec, []

    def piloted_spec(
        self, spec: Spec, request: Request, device: torch.device, say: Say
    ) -> tuple[Spec, list[str]]:
        """Return the spec with settings that follow from a short training, and lines about it."""
        return spec, []

    def recorded_params(self, spec: Spec, settings: Settings) -> tuple[Mapping[str, Any], ...]:
        """Return what a trial with these settings records as learner_params and shape."""
        return settings.learner, settings.shape

    def run_changes(self, spec: Spec, seeds: int, device: torch.device) -> dict[str, Any]:
        """Return fields of the spec of a training run that differ from the study's.

        Args:
            spec: the study's spec.
            seeds: number of seeds of the run.
            device: where it will run.
        """
        return {}

    def asked_value(self, spec: Spec, request: Request, name: str) -> Any:
        """Return what a given setting would be in the spec of an existing study."""
        return getattr(request, name)

    def requested_fields(self, spec: Spec, request: Request) -> dict[str, Any]:
        """Return fields of an existing study's spec that follow from several given settings."""
        return {}

    def reproducing_flags(self, spec: Spec) -> list[tuple[str, Any]]:
        """Return flags and values that, with those of the spec's fields, create the study again."""
        return []

    @abstractmethod
    def draw(self, spec: Spec, folder: Path, title: str) -> None:
        """Make the files of `Run.published` that `Run.write` did not write, such as pictures.

        Args:
            spec: the study's spec.
            folder: with the files of a complete trial.
            title: of the pictures.

        Raises:
            OSError: a file cannot be read or written.
            RunError: the players of a league cannot be compared.
        """

    @abstractmethod
    def open(
        self, spec: Spec, bars: Bars | None, device: torch.device, say: Say, request: Request
    ) -> Run[Any]:
        """Return what trains the trials of a study here.

        Args:
            spec: the study's spec.
            bars: of a market.
            device: where training runs.
            say: receives a line before every step that takes long.
            request: settings of this machine, and what finds bundles.
        """
