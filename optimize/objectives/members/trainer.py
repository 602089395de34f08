"""Training of a batch of trials of one shape, in programs of G slots.

Between rollouts, a member is a set of tensors (`MemberState`) that any slot can hold. A program is
loaded with members, trained to the next rung, and unloaded; the other members wait in host memory.
Members that have ended (pruned, diverged) are not loaded again, so the rest needs fewer programs.
The numbers of a member do not depend on the other members of its program.
"""

from __future__ import annotations

import functools
import gc
import operator
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from safetensors.torch import save as save_tensors

from sweepd.agents.engine.program import Act, Program
from sweepd.agents.networks.shape import FEWEST_SLOTS
from sweepd.agents.policy.members import Member, actor_of, numbered, save_members
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.core.sizing import out_of_memory
from sweepd.envs.support.errors import RunError
from sweepd.envs.support.files import write_atomic
from sweepd.envs.support.formatting import counted
from sweepd.optimize.objectives.artifacts import scored_file
from sweepd.optimize.objectives.members.chunks import Chunks
from sweepd.optimize.objectives.members.experiment import Experiment, League
from sweepd.optimize.objectives.members.measure import make_chunks
from sweepd.optimize.objectives.members.weights import check_start, forked_state, initial_actors
from sweepd.optimize.objectives.pace import CheckpointPace
from sweepd.optimize.objectives.run import (
    Evaluation,
    Interrupted,
    Run,
    Training,
    WorkerHooks,
    evaluated_from,
    recorded_evaluations,
)
from sweepd.optimize.study.checkpoint import Checkpoint, MemberState, State
from sweepd.optimize.study.record.trials import RecordedFile, TrialRecord
from sweepd.optimize.study.sampling.evolution import Fitness
from sweepd.optimize.study.space.search_space import Settings
from sweepd.optimize.study.study import Plan, StudyHandle

Taken = TypeVar("Taken")


@dataclass
class MemberTraining(Training):
    """A trial in training.

    Attributes:
        members: states of its members.
        initial: actors whose weights and normalizers the members start from, in turn; empty for
            the usual initialization.
        curves: by rollout, one row of the algorithm's curves per member, since they were last
            taken.
        repeats: what its members repeat (`Experiment.read_record`), one entry each; empty for the
            usual training.
    """

    members: list[MemberState] = field(default_factory=list)
    initial: list[Member] = field(default_factory=list)
    curves: dict[int, list[list[float]]] = field(default_factory=lambda: defaultdict(list))
    repeats: list[Any] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class _Seat:
    """A member of a trial, to be loaded into a slot."""

    training: MemberTraining
    member: int

    @property
    def state(self) -> MemberState:
        return self.training.members[self.member]


class Trainer(Run[MemberTraining]):
    """Trains the trials of one study on one device.

    Args:
        experiment: environments and algorithm.
        hooks: of the worker.
    """

    def __init__(self, experiment: Experiment, hooks: WorkerHooks = WorkerHooks()) -> None:  # noqa: B008 -- immutable
        self.experiment, self.spec, self.device = experiment, experiment.spec, experiment.device
        self.published = experiment.published
        self.trial_steps = experiment.members * self.spec.rollouts * self.spec.transitions
        self.hooks, self._pace = hooks, hooks.pace or CheckpointPace()
        self.slots = self.spec.slots
        self._together = self.spec.trials_per_batch  # trials evaluated at once
        self.seconds = 0.0
        self.steps = 0
        self._handle: StudyHandle | None = None
        self._league: League | None = None
        self._chunks: Chunks | None = None
        self._env: Any = None  # the experiment's own kind of `VecEnv`
        self._learner: Program | None = None
        self._shape: tuple[tuple[str, int], ...] = ()
        self._batch_shape: Mapping[str, int] = {}
        self._in_training: Sequence[MemberTraining] = ()
        self._counted = 0.0  # when seconds were last added to the trials
        # What the program's first slots hold while training pauses for an evaluation beside rungs.
        self._loaded: list[MemberState] = []

    def attach(self, handle: StudyHandle, hooks: WorkerHooks) -> None:
        self._handle, self.hooks, self._pace = handle, hooks, hooks.pace or CheckpointPace()
        self._league = self.experiment.league(handle, hooks.say)
        self._chunks = make_chunks(self.experiment, hooks.say, hooks.alive)

    def describe(self) -> list[str]:
        spec, more = self.spec, self.experiment.envs_per_row
        envs = counted(spec.num_envs * more, "environment")
        # Of more environments, each makes only a part of the steps.
        steps = f"{envs} x {spec.horizon} steps" + (f" / {more}" if more > 1 else "")
        return [
            *self.experiment.describe(),
            f"budget: {spec.budget:,} steps per {spec.member} in {spec.rungs} rungs; "
            f"{steps} = {spec.transitions:,} per rollout, {counted(spec.rollouts, 'rollout')}",
            f"batch: {counted(spec.trials_per_batch, 'trial')}, {spec.slots} members per program, "
            f"on {self.device} with {counted(spec.threads, 'thread')}",
        ]

    def placement(self) -> str:
        slots, envs = self.spec.slots, self.spec.num_envs * self.experiment.envs_per_row
        return (
            f"Using Vectorized Environments: {envs * slots} parallel envs "
            f"({envs} per member x {slots} members per program)"
        )

    # -- a batch

    def prepare(self, plans: Sequence[Plan], ask: Callable[[], None]) -> None:
        if self._league is not None:
            self._league.begin(plans, ask)

    def begin(self, plans: Sequence[Plan]) -> list[MemberTraining]:
        self._batch_shape = plans[0].settings.shape
        if self._chunks is not None:
            self.slots = self._chunks.size(self._batch_shape)
        self._together, self.seconds, self.steps = self.spec.trials_per_batch, 0.0, 0
        states = [self.start(plan) for plan in plans]
        if self._handle is not None:
            for state in states:
                state.initial = initial_actors(self._handle, self.actors_of, state.plan)
                if (forked := forked_state(self._handle)) is not None:
                    self.resume(state, forked)
        return states

    def start(self, plan: Plan) -> MemberTraining:
        """Return a trial at its beginning; its members are initialized when first loaded."""
        return MemberTraining(plan, members=[MemberState() for _ in range(self.experiment.members)])

    def release(self) -> None:
        self._env = self._learner = None
        self._loaded = []
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def share_with(self, workers: int) -> None:
        if self._chunks is not None:
            self._chunks.share_with(workers)

    def inherit(self, state: MemberTraining, source: Checkpoint, settings: Settings) -> None:
        _, learner = self.program(state)
        params = self.experiment.learner_params(settings)
        members = []
        for own, other in zip(state.members, source.members, strict=True):
            assert own.learner is not None
            assert other.learner is not None
            inherited = learner.inherit(own.learner, other.learner, params)
            assert own.env is not None
            assert other.env is not None
            env = self.experiment.inherit(own.env, other.env)
            members.append(MemberState(inherited, env, own.rollouts))
        state.plan, state.members = replace(state.plan, settings=settings), members

    # -- what is kept

    def checkpoint(self, state: MemberTraining) -> Checkpoint:
        # The file is written while training continues. A member's state is replaced as a whole, so
        # a copy of the list is enough; rows are appended to the curves.
        curves = {rollout: list(rows) for rollout, rows in state.curves.items()}
        return Checkpoint(
            list(state.members),
            state.kept_rung,
            state.seconds,
            state.plan.note,
            curves,
            dict(state.evaluations),
        )

    def resume(self, state: MemberTraining, checkpoint: Checkpoint) -> None:
        state.members, state.rung = checkpoint.members, checkpoint.rung
        state.seconds, state.evaluations = checkpoint.seconds, dict(checkpoint.evaluations)
        state.curves.clear()
        state.curves.update(checkpoint.curves)

    def take_curves(self, state: MemberTraining) -> list[tuple[int, dict[str, float]]]:
        """Return the means over members by rollout, and clear the curves."""
        names = self.experiment.curves
        taken = [
            (rollout, dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True)))
            for rollout, rows in sorted(state.curves.items())
        ]
        state.curves.clear()
        return taken

    def record(self, state: MemberTraining) -> TrialRecord:
        settings = state.plan.settings
        return TrialRecord(
            env_params=asdict(self.experiment.env_params(settings)),
            learner_params=dict(self.experiment.learner_params(settings)),
            shape=settings.shape,
            num_envs=self.spec.num_envs,
            phases=self.experiment.phases_begun([member.env for member in state.members]),
            evaluations=recorded_evaluations(state, self.spec),
        )

    def write_weights(self, state: MemberTraining, path: Path) -> None:
        """Write the actors of a trial's members."""
        if self.experiment.algorithm.frozen:
            save_members(path, self.actors(state))
            return
        own = self._of_each(
            state.plan,
            [member.learner for member in state.members],
            lambda learner: learner.export_member(0)[0],
        )
        write_atomic(path, save_tensors(numbered(own)))

    def write(self, state: MemberTraining, folder: Path, evaluation: Any) -> RecordedFile:
        weights = folder / "members.safetensors"
        self.write_weights(state, weights)
        self.experiment.write(folder, evaluation)
        self.experiment.write_record(folder, [member.env for member in state.members])
        return scored_file(weights)

    @property
    def has_report(self) -> bool:
        return self._league is not None

    def close_study(self) -> str:
        return "" if self._league is None else self._league.write_report()

    @property
    def steps_per_second(self) -> float:
        """Environment steps per second of training so far, without evaluations."""
        return self.steps / max(self.seconds, 1e-9)

    # -- training

    def advance(self, trainings: Sequence[MemberTraining]) -> None:
        """Train every member of these trials to the end of its trial's next rung.

        Sets `fault` of diverged trials. If the device runs out of memory, programs get fewer slots.
        On the way, trials are evaluated where `WorkerHooks.evaluate_every` says so. This changes
        nothing else: a program that holds all of them goes on as it is.

        Raises:
            Interrupted: `stop` returned True at most one rollout ago.
            RunError: the smallest program does not fit into memory.
        """
        began = time.monotonic()
        self._counted = began
        self._in_training = trainings
        try:
            self._train_to_stops(trainings)
            while due := self._due_beside(trainings):
                self._count_seconds()
                paused = time.monotonic()
                self._evaluate_beside(due)
                self._counted = time.monotonic()
                began += self._counted - paused
                self._train_to_stops(trainings)
        finally:
            self._loaded = []
            self._count_seconds()
            self.seconds += time.monotonic() - began

    def _train_to_stops(self, trainings: Sequence[MemberTraining]) -> None:
        """Train every member to its trial's next stop."""
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

    def _stop(self, training: MemberTraining) -> int:
        """Return the rollout at which a trial stops next: at its rung, or for an evaluation."""
        end, every = self.spec.rung_end(training.rung + 1), self.hooks.evaluate_every
        if not every:
            return end
        # After the rung's own evaluation, and not behind a member that is ahead.
        most = max(self.spec.rung_end(training.rung) + 1, *(m.rollouts for m in training.members))
        due = evaluated_from(most, every, self.spec.transitions)
        if due in training.evaluations:
            due = evaluated_from(due + 1, every, self.spec.transitions)
        return min(due, end)

    def _due_beside(self, trainings: Sequence[MemberTraining]) -> list[MemberTraining]:
        """Return the trials that have stopped before their rungs."""
        return [
            training
            for training in trainings
            if not training.fault and self._stop(training) < self.spec.rung_end(training.rung + 1)
        ]

    def steps_left(self, state: MemberTraining) -> int:
        end = self.spec.rung_end(state.rung + 1)
        return sum(end - member.rollouts for member in state.members) * self.spec.transitions

    def _rollouts_left(self, trainings: Sequence[MemberTraining]) -> dict[_Seat, int]:
        """Return the rollouts to its trial's next stop of each member that has any left."""
        left = {
            seat: self._stop(seat.training) - seat.state.rollouts
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
        self.release()  # their memory is needed for smaller programs
        together = self.experiment.together
        fewest = max(FEWEST_SLOTS, together)
        if self.slots <= fewest:
            members = f"{self.slots} members" + (" that play together" if together > 1 else "")
            raise RunError(
                f"out of memory with {members} ({str(error).splitlines()[0]}); use fewer --n-envs "
                "or smaller networks"
            ) from None
        self.slots = max(fewest, self.slots // (2 * together) * together)
        if self._chunks is not None:
            self._chunks.ran_out(self._batch_shape, self.slots)
        self.hooks.say(f"out of memory: continuing with {self.slots} members per program")

    def program(self, training: MemberTraining) -> tuple[Any, Program]:
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
        states = [seat.state for seat in group]
        if len(states) == len(self._loaded) and all(map(operator.is_, states, self._loaded)):
            return self._env, cast(Program, self._learner)
        self._loaded = []
        env, learner = self.program(group[0].training)
        fresh = []
        for slot, seat in enumerate(group):
            plan, state = seat.training.plan, seat.state
            self.experiment.seat(env, slot, seat.member, plan.settings, state.env)
            if seat.training.repeats:
                self.experiment.repeat(env, slot, seat.training.repeats[seat.member])
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
                actor = actors[seat.member % len(actors)]
                check_start(actor, learner.actor_spec)
                learner.import_actor(slot, actor.tensors)
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
            self.hooks.progress(steps)
            known = {**stats._asdict(), **learner.play_stats()}
            # The one read of the device per rollout.
            rows = torch.stack([known[name] for name in self.experiment.curves], 1).tolist()
            # Dummies have rows, too, after those of the group.
            for seat, first, row in zip(group, begun, rows, strict=False):
                seat.training.curves[first + done].append(row)
            for slot, change in self.experiment.take_changes(env):
                seat = group[slot]
                self.hooks.say(
                    f"trial {seat.training.plan.number}, {self.spec.member} {seat.member}: {change}"
                )
            stopped = self.hooks.stop()
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
        self._loaded = [seat.state for seat in group]
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
        if self.hooks.keep is None or not trainings or not self._pace.due():
            return
        self._pace.begun()
        began = time.perf_counter()
        take()
        self._count_seconds()
        self.hooks.keep(trainings)
        self._pace.spent(time.perf_counter() - began)

    # -- evaluation

    def evaluate(self, trainings: Sequence[MemberTraining]) -> list[Evaluation | None]:
        """Evaluate all members of these trials in one batch.

        If the device runs out of memory, half of the trials are evaluated at a time.

        Returns:
            One evaluation per trial; None, with the trial's `fault` set, if its results are not
            finite.

        Raises:
            Interrupted: `stop` returned True.
        """
        evaluations = self._evaluate_within_memory(trainings)
        for training, evaluation in zip(trainings, evaluations, strict=True):
            if evaluation is None:
                training.fault = (
                    training.fault or "diverged: its results in the evaluation are not finite"
                )
        return evaluations

    def _evaluate_beside(self, trainings: Sequence[MemberTraining]) -> None:
        """Evaluate trials as at their next rungs, all members in one batch, and tell the worker."""
        evaluations = self._evaluate_within_memory(trainings, beside=True)
        for training, evaluation in zip(trainings, evaluations, strict=True):
            value = None if evaluation is None else evaluation.value
            training.evaluations[training.members[0].rollouts] = value
        self.hooks.evaluated(trainings)

    def _evaluate_within_memory(
        self, trainings: Sequence[MemberTraining], *, beside: bool = False
    ) -> list[Evaluation | None]:
        """Evaluate trials, half of them at a time where memory runs out."""
        if not trainings:
            return []
        try:
            return self._evaluate(trainings, beside=beside)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            if len(trainings) == 1:  # the evaluation cannot be split further, but programs can
                self._smaller(error)
                return self._evaluate_within_memory(trainings, beside=beside)
        half = self._together = len(trainings) // 2
        halves = trainings[:half], trainings[half:]
        return [e for part in halves for e in self._evaluate_within_memory(part, beside=beside)]

    def _evaluate(
        self, trainings: Sequence[MemberTraining], *, beside: bool
    ) -> list[Evaluation | None]:
        # As many programs as a full batch needs: rounding must not depend on the number of trials.
        full = -(-max(self._together, len(trainings)) * self.experiment.members // self.slots)
        programs, learner = self._acts(trainings)
        programs += [programs[0]] * (full - len(programs))
        settings = [training.plan.settings for training in trainings]
        # A finished run that is evaluated once more has no rung left.
        rungs = [min(training.rung + 1, self.spec.rungs) for training in trainings]
        with learner.threads():
            evaluations = self.experiment.evaluate(settings, rungs, programs, self.slots, self._ask)
        if beside:
            return list(evaluations)
        return [
            evaluation
            and self.experiment.with_exact(evaluation, functools.partial(self.actors, training))
            for training, evaluation in zip(trainings, evaluations, strict=True)
        ]

    def _acts(self, trainings: Sequence[MemberTraining]) -> tuple[list[Act], Program]:
        """Return how the trials' members act, `slots` of them each, and the program they are of."""
        seats = self._seats(trainings)
        programs: list[Act] = []
        for start in range(0, len(seats), self.slots):
            _, learner = self._load(seats[start : start + self.slots])
            programs.append(learner.act_fn())
        return programs, learner

    def fitness(self, reached: Sequence[tuple[MemberTraining, Any]]) -> list[Fitness] | None:
        if len(reached) < 2 or not self.experiment.compares:
            return None
        trainings, evaluations = zip(*reached, strict=True)
        try:
            programs, learner = self._acts(trainings)
            with learner.threads():
                return self.experiment.fitness(
                    evaluations, trainings[0].rung, programs, self.slots, self._ask
                )
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            self._smaller(error)
            return self.fitness(reached)

    def _ask(self) -> None:
        if self.hooks.stop():
            raise Interrupted

    def _seats(self, trainings: Sequence[MemberTraining]) -> list[_Seat]:
        return [_Seat(t, member) for t in trainings for member in range(self.experiment.members)]

    def actors_of(self, plan: Plan, states: Sequence[State | None]) -> list[Member]:
        """Return the actors in members' states, which may come from another run.

        Raises:
            InputError: the states have another shape.
        """
        return self._of_each(plan, states, lambda learner: actor_of(learner, 0))

    def actors(self, training: MemberTraining) -> list[Member]:
        """Return the trained actors, one per member."""
        return self.actors_of(training.plan, [member.learner for member in training.members])

    def _of_each(
        self, plan: Plan, states: Sequence[State | None], take: Callable[[Program], Taken]
    ) -> list[Taken]:
        """Return what is taken of each member from slot 0 of a program, where it is loaded."""
        _, learner = self.program(self.start(plan))
        taken: list[Taken] = []
        for state in states:
            assert state is not None  # all have been trained
            learner.set_member(0, state)
            taken.append(take(learner))
        return taken
