"""The contract between a worker and what trains the trials of a study on this machine.

A worker asks the study for trials, and lets a `Run` train them from rung to rung, evaluate them and
say what is kept of them. It knows neither environments nor networks.
`sweepd.optimize.objectives.members.trainer` implements it for policies on vectorized environments,
`sweepd.optimize.objectives.command.run` for programs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from sweepd.optimize.objectives.pace import CheckpointPace
from sweepd.optimize.study.checkpoint import Checkpoint
from sweepd.optimize.study.record.keys import rung_key
from sweepd.optimize.study.record.specs import StudySpec
from sweepd.optimize.study.record.trials import RecordedFile, TrialRecord
from sweepd.optimize.study.sampling.evolution import Fitness
from sweepd.optimize.study.space.search_space import Settings
from sweepd.optimize.study.study import Plan, StudyHandle


class Interrupted(Exception):
    """A stop was requested; every trial is between two rollouts."""


@dataclass(frozen=True)
class Evaluation(ABC):
    """The result of evaluating a trial.

    Attributes:
        value: what a rung reports.
        final: value of the trial if it is complete.
        scores: one score per member.
        reasons: why `final` differs from what the scores alone would give.
    """

    value: float
    final: float
    scores: tuple[float, ...]
    reasons: tuple[str, ...]

    @property
    @abstractmethod
    def record(self) -> TrialRecord:
        """Scores, metrics and reason, to be recorded with the trial."""

    def rung_attributes(self, spec: StudySpec, rung: int) -> dict[str, Any]:  # noqa: ARG002
        """Return the trial attributes that keep the results of a rung (1 …)."""
        return {rung_key(rung): list(self.scores)}


@dataclass
class Training:
    """A trial in training.

    Attributes:
        plan: its parameters and seed.
        rung: number of rungs reached.
        fault: why it cannot continue; "" while it can.
        seconds: training time, earlier attempts included.
        undecided: whether its population has not decided yet what it goes on with after the rung.
        evaluations: by rollout, the values of evaluations beside rungs; None: not finite.
    """

    plan: Plan
    rung: int = 0
    fault: str = ""
    seconds: float = 0.0
    undecided: bool = False
    evaluations: dict[int, float | None] = field(default_factory=dict)

    @property
    def kept_rung(self) -> int:
        """The rung of a checkpoint: a rung is reached once its decision has been carried out."""
        return self.rung - self.undecided


State = TypeVar("State", bound=Training)


@dataclass(frozen=True)
class WorkerHooks:
    """What a run asks and tells its worker.

    Attributes:
        stop: called between rollouts and at every step of an evaluation; True interrupts.
        progress: called with the number of environment steps of each rollout.
        say: prints one line.
        alive: called while a measurement takes long.
        keep: writes checkpoints of the trials in training. Called between two rollouts or after the
            last one of a rung, when `pace` says that checkpoints are due.
        pace: decides when checkpoints are due.
        evaluate_every: environment steps per member between two evaluations beside rungs; 0: none.
        evaluated: called with trials that were just evaluated beside rungs.
    """

    stop: Callable[[], bool] = lambda: False
    progress: Callable[[int], None] = lambda _: None
    say: Callable[[str], None] = lambda _: None
    alive: Callable[[], None] = lambda: None
    keep: Callable[[Sequence[Any]], None] | None = None
    pace: CheckpointPace | None = None
    evaluate_every: int = 0
    evaluated: Callable[[Sequence[Any]], None] = lambda _: None


def evaluated_from(rollout: int, every: int, transitions: int) -> int:
    """Return the first rollout, from `rollout` on, after which a trial is evaluated beside rungs.

    These are the first ones at or after each multiple of `every` environment steps.

    Args:
        rollout: the number of a rollout.
        every: environment steps per member, at least 1.
        transitions: environment steps per member in a rollout.
    """
    multiple = max(rollout - 1, 0) * transitions // every + 1
    return -(-multiple * every // transitions)


def recorded_evaluations(training: Training, spec: StudySpec) -> list[list[float | None]] | None:
    """Return a trial's evaluations beside rungs as they are recorded; None without any."""
    points = sorted(training.evaluations.items())
    return [[at * spec.transitions, value] for at, value in points] or None


class Run(ABC, Generic[State]):
    """Trains and evaluates trials of one study on this machine.

    Attributes:
        spec: the study's spec.
        device: where training runs.
        published: names of a complete trial's files that the dashboard shows, a picture first.
        trial_steps: environment steps of one trial, for the time left.
    """

    spec: StudySpec
    device: torch.device
    published: tuple[str, ...]
    trial_steps: int

    @property
    def device_name(self) -> str | None:
        """ "cpu" or the model of the GPU; None where that is not known."""
        cuda = self.device.type == "cuda"
        return torch.cuda.get_device_name(self.device) if cuda else "cpu"

    @property
    def machine(self) -> dict[str, Any]:
        """Settings of this machine, for another run on it."""
        return {"threads": torch.get_num_threads()}

    @property
    @abstractmethod
    def steps_per_second(self) -> float:
        """Environment steps per second of training in this batch, without evaluations."""

    @abstractmethod
    def describe(self) -> list[str]:
        """Return the lines to print when the study is opened."""

    @abstractmethod
    def placement(self) -> str:
        """Return the line about this machine to print before training."""

    def attach(self, handle: StudyHandle, hooks: WorkerHooks) -> None:
        """Connect the run with its study and its worker, before the first batch."""

    # -- a batch

    def prepare(self, plans: Sequence[Plan], ask: Callable[[], None]) -> None:
        """Decide what the trials of a batch share, before any of them is started.

        Args:
            plans: the trials.
            ask: called while it takes long; may raise an exception to stop.

        Raises:
            InputError: no worker can train these trials.
        """

    @abstractmethod
    def begin(self, plans: Sequence[Plan]) -> list[State]:
        """Return the states of the trials of a batch, which have one shape, at their beginning."""

    def end(self, states: Sequence[State]) -> None:  # noqa: ARG002 -- nothing runs by default
        """End what still runs of trials that this worker trains no longer, or not for now."""
        return

    @abstractmethod
    def release(self) -> None:
        """Free the memory of a batch that has ended."""

    def share_with(self, workers: int) -> None:
        """Use what is left of a device shared by this number of workers, this one included."""

    @abstractmethod
    def steps_left(self, state: State) -> int:
        """Return the environment steps of a trial to its next rung."""

    @abstractmethod
    def advance(self, states: Sequence[State]) -> None:
        """Train every trial to its next rung; set `fault` of those that cannot continue.

        Raises:
            Interrupted: `WorkerHooks.stop` returned True at most one rollout ago.
            RunError: the machine cannot train them.
        """

    @abstractmethod
    def evaluate(self, states: Sequence[State]) -> list[Evaluation | None]:
        """Evaluate trials at the rung that they have been trained to.

        Returns:
            One evaluation per trial; None, with the trial's `fault` set, if its results are not
            finite.

        Raises:
            Interrupted: `WorkerHooks.stop` returned True.
        """

    def fitness(self, reached: Sequence[tuple[State, Any]]) -> list[Fitness] | None:  # noqa: ARG002
        """Return what the copies of a population follow; None: the values of the evaluations.

        Args:
            reached: all trials of a population that are in training, at the same rung, with their
                evaluations.

        Raises:
            Interrupted: `WorkerHooks.stop` returned True.
        """
        return None

    def inherit(self, state: State, source: Checkpoint, settings: Settings) -> None:
        """Let a trial go on with other settings, and with what another trial has learned.

        Args:
            state: the trial, between two rollouts.
            source: the other trial after as many rollouts.
            settings: of the same shape and environment.
        """
        raise NotImplementedError

    # -- what is kept

    @abstractmethod
    def checkpoint(self, state: State) -> Checkpoint:
        """Return a trial's present state, which later training does not change."""

    @abstractmethod
    def resume(self, state: State, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint of the same trial."""

    @abstractmethod
    def take_curves(self, state: State) -> list[tuple[int, dict[str, float]]]:
        """Return rollout and values of the training curves since the last call."""

    @abstractmethod
    def record(self, state: State) -> TrialRecord:
        """Return what is recorded of a trial besides its evaluation."""

    @abstractmethod
    def write(self, state: State, folder: Path, evaluation: Any) -> RecordedFile:
        """Write all files of a complete trial except those that `Objective.draw` makes of them.

        Returns:
            The record of the file with the members' weights.
        """

    def shown(self, state: State) -> tuple[str, ...]:  # noqa: ARG002 -- the same for all trials
        """Return those of `published` that this complete trial has, the last one included."""
        return self.published

    def clean(self, folder: Path) -> None:  # noqa: ARG002 -- nothing by default
        """Delete what a finished trial needed while it trained, besides its checkpoints."""
        return

    @property
    def has_report(self) -> bool:
        """Whether `close_study` writes something."""
        return False

    def close_study(self) -> str:
        """Write what belongs to the whole study; return what the summary says of it."""
        return ""
