"""What a `Trainer` asks of a kind of study: environments, normalisers and evaluation.

`sweepd.optimize.objectives.market.experiment` implements it for a market,
`sweepd.optimize.objectives.games.experiment` for games.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor

from sweepd.agents.algorithms.table import get_algorithm
from sweepd.agents.engine.hyperparameters import Hyperparameters
from sweepd.agents.engine.program import Act
from sweepd.agents.networks.shape import Shape
from sweepd.agents.policy.members import Member
from sweepd.envs.core.vec_env import VecEnv
from sweepd.optimize.objectives.run import Evaluation
from sweepd.optimize.study.checkpoint import State
from sweepd.optimize.study.record.specs import StudySpec
from sweepd.optimize.study.sampling.evolution import Fitness
from sweepd.optimize.study.space.search_space import Settings
from sweepd.optimize.study.study import Plan, StudyHandle

NO_SHAPE: Mapping[str, Any] = MappingProxyType({})  # the defaults of the algorithm


class League(Protocol):
    """Opponents of a study's trials that are earlier trials."""

    def begin(self, plans: Sequence[Plan], ask: Callable[[], None]) -> None:
        """Set the opponents of a batch's trials. ask: called at every step of games."""

    def write_report(self) -> str:
        """Write the report of the league; return a line that says so."""


class Experiment(ABC):
    """Environments and normalisers of one study.

    Attributes:
        spec: the study's spec.
        device: where training runs.
        together: number of members that share environments, and so must be in one program.
        unit: number of environments that can only be created together; divides num_envs.
        envs_per_row: environments of a member for each of its `num_envs`; more than one where those
            that are ready first go on first.
        compares: whether the copies of a population follow `fitness`, not the values alone.
    """

    together: int = 1
    unit: int = 1
    envs_per_row: int = 1
    compares: bool = False

    def __init__(self, spec: StudySpec, device: torch.device) -> None:
        self.spec, self.device = spec, device
        self.algorithm = get_algorithm(spec.algorithm)
        self.curves = self.algorithm.curves

    @property
    @abstractmethod
    def members(self) -> int:
        """Members of one trial."""

    def env_settings(self, settings: Settings) -> dict[str, Any]:
        """Return the environment parameters of the study and the trial, by name."""
        return {**self.spec.env, **settings.env}

    @property
    @abstractmethod
    def published(self) -> tuple[str, ...]:
        """Names of a complete trial's files that the dashboard shows, a picture first."""

    @abstractmethod
    def env_params(self, settings: Settings) -> Any:
        """Return the environment's parameters, a dataclass.

        Raises:
            InputError: a value is out of range.
        """

    def learner_params(self, settings: Settings) -> Hyperparameters:
        """Return the algorithm's parameters.

        Raises:
            InputError: a value is out of range.
        """
        return self.algorithm.params(**settings.learner)

    @abstractmethod
    def training_env(
        self, slots: int, num_envs: int, shape: Mapping[str, Any] = NO_SHAPE
    ) -> VecEnv:
        """Return an environment of `slots` members, all of them dummies.

        Args:
            slots: members of the program.
            num_envs: environments per member.
            shape: the program's shape parameters, for opponents that are policies.
        """

    @abstractmethod
    def seat(
        self, env: Any, slot: int, member: int, settings: Settings, state: State | None = None
    ) -> None:
        """Assign a slot of a training environment to a member of a trial.

        Args:
            env: the environment.
            slot: the slot.
            member: of the trial.
            settings: of the trial.
            state: of the member in its environment, which is restored next; None: it begins.
        """

    def league(self, handle: StudyHandle, say: Callable[[str], None]) -> League | None:  # noqa: ARG002
        """Return the league that opponents come from; None without one."""
        return None

    def repeat(self, env: Any, slot: int, record: Any) -> None:
        """Have a member of a training environment repeat what a trial recorded (`read_record`)."""
        raise NotImplementedError(f"the trials of {self.spec.environment} record nothing to repeat")

    def take_changes(self, env: Any) -> list[tuple[int, str]]:  # noqa: ARG002
        """Return (slot, text) of what changed for members since the last call, for the log."""
        return []

    def phases_begun(self, states: Sequence[State | None]) -> Sequence[Sequence[int]] | None:  # noqa: ARG002
        """Return the rollouts after which each member's phases began; None without phases.

        Args:
            states: of the members' environments, as `VecEnv.get_member` returns them.
        """
        return None

    @abstractmethod
    def normaliser(self, member: int, settings: Settings) -> tuple[Tensor, Tensor]:
        """Return state_avg and state_std of a member's networks, (state_dim,) float32."""

    def shape(self, settings: Settings, env: VecEnv, slots: int) -> Shape:
        """Return the program's shape for a trial's shape parameters on this environment."""
        own = {"slots": slots, "algorithm": self.algorithm.program, "horizon": self.spec.horizon}
        return Shape.for_env(env, **own, **settings.shape)

    def evaluation_share(self, rung: int) -> float:  # noqa: ARG002
        """Return the share of a full evaluation that is made at a rung (1 …)."""
        return 1.0

    @abstractmethod
    def evaluate(
        self,
        settings: Sequence[Settings],
        rungs: Sequence[int],
        programs: Sequence[Act],
        slots: int,
        ask: Callable[[], None],
    ) -> Sequence[Evaluation | None]:
        """Evaluate trials with the present state of their members.

        Args:
            settings: settings of each trial.
            rungs: the rung (1 …) that each trial has been trained to, or the next one.
            programs: act for all members of all trials in order, `slots` members each; the last
                program is filled up with dummies. The first program is repeated until there are
                as many as a full batch needs, since rounding must not depend on the number of
                trials.
            slots: members per program.
            ask: called at every step; may raise an exception to interrupt.

        Returns:
            One evaluation per trial, None if its numbers are not finite.
        """

    def inherit(self, own: State, source: State) -> State:  # noqa: ARG002
        """Return the environment's state of a member that goes on with another one's weights.

        It is its own, except for what the training of the weights depends on.

        Args:
            own: the state, as `VecEnv.get_member` returns it.
            source: that of the other member.
        """
        return own

    def fitness(
        self,
        evaluations: Sequence[Any],
        rung: int,
        programs: Sequence[Act],
        slots: int,
        ask: Callable[[], None],
    ) -> list[Fitness]:
        """Compare the members of a population with each other, where `compares` is set.

        Args:
            evaluations: of its trials, which are at least two.
            rung: the rung (1 …) that all of them have reached.
            programs: act for all members of all trials in order, `slots` members each; the last one
                is filled up with dummies.
            slots: members per program.
            ask: see `evaluate`.

        Returns:
            One fitness per trial.
        """
        raise NotImplementedError

    def with_exact(
        self,
        evaluation: Any,
        members: Callable[[], Sequence[Member]],  # noqa: ARG002
    ) -> Any:
        """Return an evaluation with what can be computed exactly from the members' weights.

        Args:
            evaluation: of a trial.
            members: returns the weights of its members, which takes a moment.
        """
        return evaluation

    @abstractmethod
    def describe(self) -> list[str]:
        """Return the lines to print when the study starts."""

    @abstractmethod
    def write(self, folder: Path, evaluation: Any) -> None:
        """Write the files of a complete trial, see `Run.write`, except its members' weights."""

    def write_record(self, folder: Path, states: Sequence[State | None]) -> None:  # noqa: ARG002
        """Write what a trial needs to be repeated besides its parameters and seed, if anything.

        Args:
            folder: of the trial.
            states: of the members' environments, as `VecEnv.get_member` returns them.
        """
        return

    def read_record(self, folder: Path) -> list[Any]:  # noqa: ARG002
        """Return what `write_record` wrote, one entry per member; [] if trials need nothing."""
        return []
