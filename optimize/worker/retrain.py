"""The state of a trial after a rung: from its checkpoint, or trained again from its record.

A trial's seed, parameters and changes are recorded, so that training it again gives the same bits.
The member of a population copied from others, which are then trained again as far as it needs them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from optuna.trial import FrozenTrial

from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.formatting import counted, duration
from sweepd.optimize.objectives.members.trainer import MemberTraining, Trainer
from sweepd.optimize.objectives.run import WorkerHooks
from sweepd.optimize.study.checkpoint import Checkpoint, read_checkpoint
from sweepd.optimize.study.record.keys import CHANGES_KEY
from sweepd.optimize.study.sampling.evolution import Change, changes_of, params_after
from sweepd.optimize.study.space.search_space import Settings
from sweepd.optimize.study.study import Plan, StudyHandle
from sweepd.optimize.worker.evolution import settings_of
from sweepd.optimize.worker.telemetry import LOG_EVERY


def stored_state(handle: StudyHandle, trial: FrozenTrial, rung: int) -> Checkpoint | None:
    """Return a trial's state after a rung from its newest checkpoint; None if that is another one.

    It is the state after what a population changed at the rung.
    """
    plan = handle.recorded_plan(trial)
    if plan.checkpoint is None or plan.checkpoint["rung"] != rung:
        return None
    with suppress(InputError):  # a finished trial's file is deleted
        found = read_checkpoint(handle.run_dir / plan.checkpoint["path"], plan.checkpoint["sha256"])
        if found.all_at(handle.spec.rung_end(rung)):
            return found
    return None


def needed_rungs(number: int, rung: int, changes: Mapping[int, Sequence[Change]]) -> dict[int, int]:
    """Return the last rung to which each trial is needed for the state of one of them, by number.

    These are the trial itself, and those of its population whose weights it went on with.

    Args:
        number: of the trial.
        rung: after which the state is wanted, with what the trial went on with there.
        changes: what trials went on with, by number.
    """
    needed, left = {number: rung}, [number]
    while left:
        own = left.pop()
        for change in changes[own]:
            if needed.get(change.source, 0) < change.rung <= needed[own]:
                needed[change.source] = change.rung
                left.append(change.source)
    return needed


class Retraining:
    """Trains a trial again from rung to rung, with the trials from which it copied.

    Attributes:
        needed: the last rung to which each trial is trained, by number.
        plans: of these trials, by number, in this order.
        trainings: of these trials, once `begin` was called.
    """

    def __init__(self, handle: StudyHandle, number: int, rung: int) -> None:
        self.handle = handle
        trials = {trial.number: trial for trial in handle.trials()}
        changes = {own: _changes(handle, trial) for own, trial in trials.items()}
        self.needed = needed_rungs(number, rung, changes)
        self.plans = {
            own: replace(handle.recorded_plan(trials[own]), changes=changes[own])
            for own in sorted(self.needed)
        }
        self.trainings: dict[int, MemberTraining] = {}

    def begin(self, run: Trainer) -> None:
        """Begin all trials, with what they recorded about the timing of their environments."""
        self._run = run
        for training in run.begin(list(self.plans.values())):
            training.rung = self.handle.first_rung
            folder = self.handle.trial_dir(training.plan.number)
            training.repeats = run.experiment.read_record(folder)
            self.trainings[training.plan.number] = training

    def due(self, rung: int) -> list[MemberTraining]:
        """Return the trials that are to be trained to a rung, and have not been yet."""
        return [
            training
            for number, training in self.trainings.items()
            if training.rung < rung <= self.needed[number]
        ]

    def settings_after(self, rung: int, plan: Plan) -> Settings:
        """Return the settings with which a trial goes on after a rung."""
        return settings_of(self.handle.space, params_after(rung, plan.params, plan.changes))

    def finish(self, trained: Sequence[MemberTraining], rung: int) -> None:
        """Note that trials have reached a rung, and let them go on with what they recorded there."""
        for training in trained:
            training.rung = rung
        kept = {training.plan.number: self._run.checkpoint(training) for training in trained}
        for training in trained:
            for change in training.plan.changes:
                if change.rung == rung <= self.needed[training.plan.number]:
                    settings = settings_of(self.handle.space, change.params)
                    self._run.inherit(training, kept[change.source], settings)


def _changes(handle: StudyHandle, trial: FrozenTrial) -> list[Change]:
    """Return what a trial went on with: in its population, or by the schedule that it repeats."""
    if handle.spec.evolves:
        return changes_of(trial.user_attrs.get(CHANGES_KEY))
    schedule = (handle.origin or {}).get("schedule") or ()
    return [
        Change(stretch["rung"], trial.number, stretch["params"])
        for stretch in schedule
        if stretch["rung"]
    ]


def retrained_state(
    handle: StudyHandle, run: Trainer, trial: FrozenTrial, rung: int, say: Callable[[str], None]
) -> Checkpoint:
    """Train a trial again to a rung, without evaluations, and return its state after it.

    Args:
        handle: its study.
        run: trains trials of the study.
        trial: the trial.
        rung: the rung.
        say: prints one line.

    Raises:
        RunError: the training diverges, other than the recorded one.
    """
    again = Retraining(handle, trial.number, rung)
    others = len(again.plans) - 1
    copied = f", and {counted(others, 'trial')} from which it copied" if others else ""
    say(
        f"the state of trial {trial.number} after rung {rung} is not stored: training it again from "
        f"its record{copied}"
    )
    spec, begun = handle.spec, handle.first_rung
    rollouts = sum(spec.rung_end(last) - spec.rung_end(begun) for last in again.needed.values())
    steps = rollouts * run.trial_steps // spec.rollouts
    run.attach(handle, WorkerHooks(say=say, progress=progress_lines(steps, say)))
    again.begin(run)
    for at in range(begun + 1, rung + 1):
        trained = again.due(at)
        run.advance(trained)
        for training in trained:
            if training.fault:
                raise RunError(f"trial {training.plan.number} cannot be repeated: {training.fault}")
        again.finish(trained, at)
    found = run.checkpoint(again.trainings[trial.number])
    run.release()
    return found


def progress_lines(
    total: int, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> Callable[[int], None]:
    """Return what is called with steps that were made, and says from time to time how far it is.

    Args:
        total: steps in all.
        say: prints one line.
        clock: returns the time in seconds.
    """
    began = said = clock()
    done = 0

    def stepped(steps: int) -> None:
        nonlocal said, done
        now, done = clock(), done + steps
        if now - said >= LOG_EVERY:
            said, rate = now, done / (now - began)
            left = duration((total - done) / rate)
            say(f"trained again: {done / total:.0%}, {rate:,.0f} steps/s, {left} left")

    return stepped
