"""Training of a batch of trials of one shape, in programs of G slots.

Between rollouts, a member is a set of tensors (`MemberState`) that any slot can hold. A program is
loaded with members, trained to the next rung, and unloaded; the other members wait in host memory.
Members that have ended (pruned, diverged) are not loaded again, so the rest needs fewer programs.
The numbers of a member do not depend on the other members of its program.
"""

from __future__ import annotations

import functools
import gc
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from sweepd.agents.engine.program import Act, Program
from sweepd.agents.networks.shape import FEWEST_SLOTS
from sweepd.agents.networks.weights import StateDict
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.core.sizing import out_of_memory
from sweepd.envs.support.errors import RunError
from sweepd.optimize.objectives.members.experiment import Evaluation, Experiment
from sweepd.optimize.study.checkpoint import Checkpoint, MemberState, State
from sweepd.optimize.study.record.stored import StudySpec
from sweepd.optimize.study.space.search_space import Settings
from sweepd.optimize.study.study import Plan
from sweepd.optimize.worker.pace import CheckpointPace


class Interrupted(Exception):
    """A stop was requested; all members are between rollouts."""


@dataclass
class Training:
    """A trial in training.

    Attributes:
        plan: its parameters and seed.
        members: states of its members.
        rung: number of rungs reached.
        fault: why it cannot continue; "" while it can.
        seconds: training time, earlier attempts included.
        initial: actors whose weights and normalizers the members start from, in turn; empty for
            the usual initialization.
        curves: by rollout, one row of the algorithm's curves per member, since they were last
            taken.
        undecided: whether its population has not decided yet what it goes on with after the rung.
    """

    plan: Plan
    members: list[MemberState]
    rung: int = 0
    fault: str = ""
    seconds: float = 0.0
    initial: list[StateDict] = field(default_factory=list)
    curves: dict[int, list[list[float]]] = field(default_factory=lambda: defaultdict(list))
    undecided: bool = False

    @property
    def kept_rung(self) -> int:
        """The rung of a checkpoint: a rung is reached once its decision has been carried out."""
        return self.rung - self.undecided

    @property
    def begun(self) -> bool:
        """Whether a member has been trained."""
        return any(member.learner is not None for member in self.members)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint of the same trial."""
        self.members, self.rung = checkpoint.members, checkpoint.rung
        self.seconds = checkpoint.seconds
        self.curves.update(checkpoint.curves)

    def take_curves(self, names: Sequence[str]) -> list[tuple[int, dict[str, float]]]:
        """Return the means over members by rollout, and clear the curves."""
        taken = [
            (rollout, dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True)))
            for rollout, rows in sorted(self.curves.items())
        ]
        self.curves.clear()
        return taken


def describe_envs(spec: StudySpec) -> str:
    """Return the line about parallel environments that is printed before training."""
    return (
        f"Using Vectorized Environments: {spec.num_envs * spec.slots} parallel envs "
        f"({spec.num_envs} per member x {spec.slots} members per program)"
    )


@dataclass(frozen=True, eq=False)
class _Seat:
    """A member of a trial, to be loaded into a slot."""

    training: Training
    member: int

    @property
    def state(self) -> MemberState:
        return self.training.members[self.member]


class Trainer:
    """Trains trials of one shape on one device.

    Args:
        experiment: environments and algorithm.
        stop: called between rollouts; True interrupts training.
        progress: called with the number of environment steps of each rollout.
        say: prints one line.
        slots: members per program; fewer than the study's G on machines with little memory.
        ran_out: called with the new number of slots after memory ran out.
        keep: writes checkpoints of the trials in training. Called between two rollouts or after the
            last one of a rung, when `pace` says that checkpoints are due.
        pace: decides when checkpoints are due.
    """

    def __init__(
        self,
        experiment: Experiment,
        *,
        stop: Callable[[], bool] = lambda: False,
        progress: Callable[[int], None] = lambda _: None,
        say: Callable[[str], None] = lambda _: None,
        slots: int | None = None,
        ran_out: Callable[[int], None] = lambda _: None,
        keep: Callable[[Sequence[Training]], None] | None = None,
        pace: CheckpointPace | None = None,
    ) -> None:
        self.experiment, self.spec = experiment, experiment.spec
        self.stop, self.progress, self.say, self.ran_out = stop, progress, say, ran_out
        self.keep, self.pace = keep, pace or CheckpointPace()
        self.slots = slots or experiment.spec.slots
        self._together = experiment.spec.trials_per_batch  # trials evaluated at once
        self.seconds = 0.0
        self.steps = 0
        self._env: Any = None  # the experiment's own kind of `VecEnv`
        self._learner: Program | None = None
        self._shape: tuple[tuple[str, int], ...] = ()
        self._in_training: Sequence[Training] = ()
        self._counted = 0.0  # when seconds were last added to the trials

    def start(self, plan: Plan) -> Training:
        """Return a trial at its beginning; its members are initialized when first loaded."""
        return Training(plan, [MemberState() for _ in range(self.experiment.members)])

    def inherit(
        self, training: Training, source: Sequence[MemberState], settings: Settings
    ) -> None:
        """Let a trial go on with other settings, and with the weights of another trial's members.

        Args:
            training: the trial, between two rollouts.
            source: the states of the other trial's members, after as many rollouts.
            settings: of the same shape and environment.
        """
        _, learner = self.program(training)
        params = self.experiment.learner_params(settings)
        members = []
        for own, other in zip(training.members, source, strict=True):
            assert own.learner is not None
            assert other.learner is not None
            state = learner.inherit(own.learner, other.learner, params)
            members.append(MemberState(state, own.env, own.rollouts))
        training.plan, training.members = replace(training.plan, settings=settings), members

    @property
    def steps_per_second(self) -> float:
        """Environment steps per second of training so far, without evaluations."""
        return self.steps / max(self.seconds, 1e-9)

    # -- training

    def advance(self, trainings: Sequence[Training]) -> None:
        """Train every member of these trials to the end of its trial's next rung.

        Sets `fault` of diverged trials. If the device runs out of memory, programs get fewer slots.

        Raises:
            Interrupted: `stop` returned True at most one rollout ago.
            RunError: the smallest program does not fit into memory.
        """
        began = time.monotonic()
        self._counted = began
        self._in_training = trainings
        try:
            while left := self._rollouts_left(trainings):
                # Members with equally many rollouts left share a program, which then stays full.
                most, *fewer = sorted(set(left.values()), reverse=True)
                group = [seat for seat in left if left[seat] == most][: self.slots]
                # A program that is not full trains until other members have as many rollouts left.
                rollouts = most - fewer[0] if fewer and len(group) < self.slots else most
                try:
                    self._train(group, rollouts)
                except (RuntimeError, MemoryError) as error:
                    if not out_of_memory(error):
                        raise
                    self._smaller(error)
        finally:
            self._count_seconds()
            self.seconds += time.monotonic() - began

    def _rollouts_left(self, trainings: Sequence[Training]) -> dict[_Seat, int]:
        """Return the rollouts to the next rung of each member that has any left."""
        left = {
            seat: self.spec.rung_end(seat.training.rung + 1) - seat.state.rollouts
            for seat in self._seats(trainings)
            if not seat.training.fault
        }
        return {seat: rollouts for seat, rollouts in left.items() if rollouts > 0}

    def _count_seconds(self) -> None:
        now = time.monotonic()
        for training in self._in_training:
            training.seconds += now - self._counted
        self._counted = now

    def _smaller(self, error: BaseException) -> None:
        """Release the programs and halve the slots; results change by rounding only."""
        self._env = self._learner = None  # their memory is needed for smaller programs
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        together = self.experiment.together
        fewest = max(FEWEST_SLOTS, together)
        if self.slots <= fewest:
            members = f"{self.slots} members" + (" that play together" if together > 1 else "")
            raise RunError(
                f"out of memory with {members} ({str(error).splitlines()[0]}); use fewer --n-envs "
                "or smaller networks"
            ) from None
        self.slots = max(fewest, self.slots // (2 * together) * together)
        self.ran_out(self.slots)
        self.say(f"out of memory: continuing with {self.slots} members per program")

    def program(self, training: Training) -> tuple[Any, Program]:
        """Return environment and learner of the trial's shape, cached by shape and slots."""
        settings = training.plan.settings
        shape = tuple(sorted(settings.shape.items()))
        if self._learner is None or shape != self._shape or self._learner.shape.slots != self.slots:
            self._env = self._learner = None  # freed first: two programs may not fit into memory
            env = self.experiment.training_env(self.slots, self.spec.num_envs, settings.shape)
            self._learner = self.experiment.algorithm.learner(
                self.experiment.shape(settings, env, self.slots), self.experiment.device
            )
            self._env, self._shape = env, shape
        return self._env, self._learner

    def _load(self, group: Sequence[_Seat]) -> tuple[Any, Program]:
        """Load members into slots 0, 1, …, initialize new ones, and empty the other slots."""
        env, learner = self.program(group[0].training)
        fresh = []
        for slot, seat in enumerate(group):
            plan, state = seat.training.plan, seat.state
            self.experiment.seat(env, slot, seat.member, plan.settings)
            if state.learner is not None and state.env is not None:
                env.set_member(slot, state.env)
                learner.set_member(slot, state.learner)
                if env.restarted(slot):
                    fresh.append(slot)
                continue
            # By trial and member, so that slot, batch and worker do not change a member's numbers.
            seed = derive_seed(plan.seed, "fold", seat.member)
            env.reset_member(slot, derive_seed(seed, "env"))
            avg, std = self.experiment.normaliser(seat.member, plan.settings)
            params = self.experiment.learner_params(plan.settings)
            learner.add_member(slot, params, seed, self.spec.rollouts, avg, std)
            if seat.training.initial:
                actors = seat.training.initial
                learner.import_actor(slot, actors[seat.member % len(actors)])
            fresh.append(slot)
        # Dummies fill the program: tensor shapes, and so rounding, must not depend on the group.
        for slot in range(len(group), self.slots):
            learner.remove_member(slot)
        if fresh:
            learner.begin(env.observe(), fresh)
        return env, learner

    def _train(self, group: Sequence[_Seat], rollouts: int) -> None:
        env, learner = self._load(group)
        stopped = False
        begun = [seat.state.rollouts for seat in group]
        done = 0

        def on_rollout(stats: Any) -> bool:
            nonlocal stopped, done
            done += 1
            steps = len(group) * self.spec.transitions
            self.steps += steps
            self.progress(steps)
            known = {**stats._asdict(), **learner.play_stats()}
            # The one read of the device per rollout.
            rows = torch.stack([known[name] for name in self.experiment.curves], 1).tolist()
            # Dummies have rows, too, after those of the group.
            for seat, first, row in zip(group, begun, rows, strict=False):
                seat.training.curves[first + done].append(row)
            for slot, change in self.experiment.take_changes(env):
                seat = group[slot]
                self.say(
                    f"trial {seat.training.plan.number}, {self.spec.member} {seat.member}: {change}"
                )
            stopped = self.stop()
            if not stopped and done < rollouts:
                self._keep_if_due(take)
            return stopped

        def take() -> None:
            # New objects: a background thread may still write the previous states to a file.
            for slot, seat in enumerate(group):
                state = MemberState(
                    learner.get_member(slot), env.get_member(slot), begun[slot] + done
                )
                seat.training.members[seat.member] = state

        learner.train(env, rollouts, on_rollout)
        take()
        for slot, (seat, diverged) in enumerate(zip(group, learner.diverged, strict=False)):
            training = seat.training
            if diverged and not training.fault:
                training.fault = (
                    f"diverged: {self.spec.member} {seat.member}, by rollout "
                    f"{seat.state.rollouts} of {self.spec.rollouts} "
                    f"{env.reward_fault(slot) or 'the gradient was not finite'}"
                )
        if stopped:
            raise Interrupted
        self._keep_if_due()  # a long evaluation or another program may follow

    def _keep_if_due(self, take: Callable[[], None] = lambda: None) -> None:
        """Write checkpoints of the trials in training if due. take: updates the trials' members."""
        trainings = [training for training in self._in_training if not training.fault]
        if self.keep is None or not trainings or not self.pace.due():
            return
        self.pace.begun()
        began = time.perf_counter()
        take()
        self._count_seconds()
        self.keep(trainings)
        self.pace.spent(time.perf_counter() - began)

    # -- evaluation

    def evaluate(self, trainings: Sequence[Training]) -> list[Evaluation | None]:
        """Evaluate all members of these trials in one batch.

        If the device runs out of memory, half of the trials are evaluated at a time.

        Returns:
            One evaluation per trial; None, with the trial's `fault` set, if its results are not
            finite.

        Raises:
            Interrupted: `stop` returned True.
        """
        if not trainings:
            return []
        try:
            evaluations = self._evaluate(trainings)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            if len(trainings) == 1:  # the evaluation cannot be split further, but programs can
                self._smaller(error)
                return self.evaluate(trainings)
            half = self._together = len(trainings) // 2
            return [*self.evaluate(trainings[:half]), *self.evaluate(trainings[half:])]
        for training, evaluation in zip(trainings, evaluations, strict=True):
            if evaluation is None:
                training.fault = (
                    training.fault or "diverged: its results in the evaluation are not finite"
                )
        return evaluations

    def _evaluate(self, trainings: Sequence[Training]) -> list[Evaluation | None]:
        seats = self._seats(trainings)
        # As many programs as a full batch needs: rounding must not depend on the number of trials.
        full = -(-max(self._together, len(trainings)) * self.experiment.members // self.slots)
        programs: list[Act] = []
        for start in range(0, len(seats), self.slots):
            _, learner = self._load(seats[start : start + self.slots])
            programs.append(learner.act_fn())
        programs += [programs[0]] * (full - len(programs))
        settings = [training.plan.settings for training in trainings]

        def ask() -> None:
            if self.stop():
                raise Interrupted

        # A finished run that is evaluated once more has no rung left.
        rungs = [min(training.rung + 1, self.spec.rungs) for training in trainings]
        with learner.threads():
            evaluations = self.experiment.evaluate(settings, rungs, programs, self.slots, ask)
        return [
            evaluation
            and self.experiment.with_exact(evaluation, functools.partial(self.actors, training))
            for training, evaluation in zip(trainings, evaluations, strict=True)
        ]

    def _seats(self, trainings: Sequence[Training]) -> list[_Seat]:
        return [_Seat(t, member) for t in trainings for member in range(self.experiment.members)]

    def actors_of(self, plan: Plan, states: Sequence[State]) -> list[StateDict]:
        """Return the actors in members' states, which may come from another run.

        Raises:
            InputError: the states have another shape.
        """
        _, learner = self.program(self.start(plan))
        exported = []
        for state in states:
            learner.set_member(0, state)
            exported.append(learner.export_member(0)[0])
        return exported

    def actors(self, training: Training) -> list[StateDict]:
        """Return the trained actors, one per member, as `sweepd.agents.policy.frozen` saves
        them.
        """
        exported: list[StateDict] = []
        seats = self._seats([training])
        for start in range(0, len(seats), self.slots):
            group = seats[start : start + self.slots]
            _, learner = self._load(group)
            exported += [learner.export_member(slot)[0] for slot in range(len(group))]
        return exported
