"""Writing the results of trials to the study: reports, and the end of each trial."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sweepd.optimize.objectives.judged import judge
from sweepd.optimize.objectives.run import Evaluation, Run, Training
from sweepd.optimize.study.database.storage import TrialLost
from sweepd.optimize.study.record.values import broken_words, constraint_attributes, values_text
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker.records import Records
from sweepd.optimize.worker.telemetry import Telemetry
from sweepd.optimize.worker.timing import Phases


class TrialReporter:
    """Reports, completes, prunes, fails and requeues the trials of one worker.

    Another worker or program may have taken over or finished a trial in the meantime. Every write
    notices this, and the trial is then dropped.

    Args:
        alive: called after a piece of work that may take long.
        changed: called with the id of a trial whose recorded results have changed.
    """

    def __init__(
        self,
        handle: StudyHandle,
        run: Run[Any],
        records: Records,
        telemetry: Telemetry,
        phases: Phases,
        alive: Callable[[], None],
        changed: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.handle, self.run, self.records = handle, run, records
        self.telemetry, self.phases, self._alive = telemetry, phases, alive
        self._changed = changed
        self._warned = False

    def report(self, training: Training, evaluation: Evaluation) -> bool:
        """Write the evaluation of a rung; return False if the trial was lost.

        Args:
            training: the trial, which has reached the rung.
            evaluation: its results at the rung.
        """
        attributes = self._attributes(training, evaluation)
        found = judge(self.handle.spec, evaluation)
        system = constraint_attributes(found.violations)

        def write() -> None:
            self.handle.report(training.plan, training.rung, evaluation.value, attributes, system)

        with self.phases("reports"):
            written = self._write(training, write)
            if written:
                self._changed(training.plan.trial_id)
            return written

    def complete(self, training: Training, evaluation: Evaluation) -> bool:
        """Write the files of a trial at the last rung, and tell the study its values.

        Returns:
            False if the trial was lost.
        """
        found = judge(self.handle.spec, evaluation)

        def write() -> None:
            with self.phases("files"):
                attributes, system = self.records.complete(training, evaluation)
            self._alive()  # large trials take long to write
            self.handle.complete(
                training.plan.trial_id, *found.values, attributes=attributes, system=system
            )

        if not self._finish(training, write):
            return False
        number, spec = training.plan.number, self.handle.spec
        text = f"trial {number} complete: objective {evaluation.final:+.4f}"
        fields: dict[str, Any] = {}
        if spec.several:
            text += f", {values_text(spec.values, found.values)}"
            fields["values"] = dict(
                zip((one.name for one in spec.values), found.values, strict=True)
            )
        if spec.constraints:
            broken = broken_words(found.violations)
            text += f"; does not meet {broken}" if broken else ""
            fields["feasible"] = not broken
        self.telemetry.say(text, "trial.complete", trial=number, value=evaluation.final, **fields)
        return True

    def prune(self, training: Training, evaluation: Evaluation) -> None:
        """End a trial that is worse than its peers."""
        reason = (
            f"pruned at rung {training.rung} of {self.handle.spec.rungs}: "
            f"{evaluation.value:+.4f} is worse than its peers"
        )
        plan = training.plan
        self._finish(training, functools.partial(self.handle.prune, plan.trial_id, reason))
        self.telemetry.say(
            f"trial {plan.number} {reason}",
            "trial.pruned",
            trial=plan.number,
            value=evaluation.value,
        )

    def fail_diverged(self, trainings: list[Training]) -> list[Training]:
        """End the trials that have a fault; return the others."""
        failed = [training for training in trainings if training.fault]
        if failed:
            self.records.wait()  # a checkpoint must not be recorded after the trial's end
        for training in failed:
            plan, fault = training.plan, training.fault
            self._finish(training, functools.partial(self.handle.fail, plan.trial_id, fault))
            self.telemetry.say(
                f"trial {plan.number} failed: {fault}",
                "trial.failed",
                trial=plan.number,
                reason=fault,
            )
        return [training for training in trainings if not training.fault]

    def requeue(self, training: Training, *, with_checkpoint: bool) -> None:
        """Change a trial from RUNNING to WAITING under the same number.

        Args:
            training: the trial; nothing is done if this worker no longer holds it.
            with_checkpoint: first write a checkpoint if the trial has advanced.
        """
        trial_id = training.plan.trial_id
        if trial_id not in self.handle.storage.held():
            return
        try:
            if with_checkpoint and self.run.checkpoint(training).begun:
                self.records.checkpoint_now(training)
            self.handle.put_back(trial_id)
        except TrialLost:
            self.drop(training)
            return
        spec, number = self.handle.spec, training.plan.number
        at = self.run.checkpoint(training).at(spec.unit)
        self.telemetry.say(
            f"trial {number} requeued at {at} of {spec.rollouts}", "trial.requeued", trial=number
        )

    def drop(self, training: Training) -> None:
        """Give up a trial that this worker has lost."""
        self.run.end([training])
        fate = self.handle.storage.give_up(training.plan.trial_id)
        number = training.plan.number
        self.telemetry.say(
            f"trial {number} {fate} meanwhile; its copy here is dropped",
            "trial.dropped",
            trial=number,
        )
        self.records.dropped(training)

    def _write(self, training: Training, write: Callable[[], None]) -> bool:
        """Write to a trial; return False if it was lost."""
        try:
            write()
        except TrialLost:
            self.drop(training)
            return False
        return True

    def _finish(self, training: Training, write: Callable[[], None]) -> bool:
        """End a trial and delete the files that it needed while it trained; False if it was lost."""
        with self.phases("reports"):
            written = self._write(training, write)
        if written:
            self.telemetry.finished(1)
            self.records.finished(training)
            self._changed(training.plan.trial_id)
        return written

    def _attributes(self, training: Training, evaluation: Evaluation) -> dict[str, Any]:
        plan = training.plan
        found = evaluation.record()
        if found.warning is not None and not self._warned:
            self._warned = True  # trials of one game have the same fault
            text = f"warning: trial {plan.number}: {found.warning}"
            self.telemetry.say(text, "trial.warning", trial=plan.number)
        own = self.run.record(training)
        record = replace(
            own,
            **{name: value for name, value in vars(found).items() if value is not None},
            seed=plan.seed,
            device=self.run.device_name,
            steps_per_second=round(self.run.steps_per_second),
            seconds=round(training.seconds, 1),
        )
        attributes = record.to_attributes(self.handle.spec)
        return attributes | evaluation.rung_attributes(self.handle.spec, training.rung)
