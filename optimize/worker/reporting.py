"""Writing the results of trials to the study: reports, and the end of each trial."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from optuna.trial import TrialState

from sweepd.optimize.objectives.judged import judge
from sweepd.optimize.objectives.run import Evaluation, Run, Training, recorded_evaluations
from sweepd.optimize.study.database.storage import TrialLost, TrialWrite
from sweepd.optimize.study.record.keys import REASON_KEY
from sweepd.optimize.study.record.trials import record_keys
from sweepd.optimize.study.record.values import broken_words, constraint_attributes, values_text
from sweepd.optimize.study.study import RungReport, StudyHandle
from sweepd.optimize.worker.records import Records
from sweepd.optimize.worker.telemetry import Telemetry
from sweepd.optimize.worker.timing import Phases

T = TypeVar("T")


@dataclass(frozen=True)
class Ending:
    """The end of a trial.

    Attributes:
        training: the trial.
        write: what is written to the study.
        text, event, fields: what is said of it, see `Telemetry.say`.
    """

    training: Training
    write: TrialWrite
    text: str
    event: str
    fields: dict[str, Any]


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

    def report(
        self, reached: Sequence[tuple[Training, Evaluation]]
    ) -> list[tuple[Training, Evaluation]]:
        """Write the evaluations of trials that have reached a rung, in one transaction.

        Returns:
            Those of the trials that were not lost.
        """
        with self.phases("reports"):
            lost = self.handle.report_all([self._rung_report(*one) for one in reached])
            written = self._drop_lost(reached, lost, lambda one: one[0])
            for training, _ in written:
                self._changed(training.plan.trial_id)
        return written

    def evaluated(self, trainings: Sequence[Training]) -> set[int]:
        """Write the evaluations beside rungs of trials in training, in one transaction.

        Returns:
            The row ids of the trials that were lost.
        """
        spec, writes = self.handle.spec, []
        [key] = record_keys("evaluations")
        for training in trainings:
            found = {key: recorded_evaluations(training, spec)}
            writes.append(TrialWrite(training.plan.trial_id, found))
        lost = self.handle.storage.write(writes)
        for one in writes:
            if one.trial_id not in lost:
                self._changed(one.trial_id)
        return lost

    def _rung_report(self, training: Training, evaluation: Evaluation) -> RungReport:
        attributes = self._attributes(training, evaluation)
        system = constraint_attributes(judge(self.handle.spec, evaluation).violations)
        return RungReport(training.plan, training.rung, evaluation.value, attributes, system)

    def completed(self, training: Training, evaluation: Evaluation) -> Ending:
        """Write the files of a trial at the last rung; return its end as COMPLETE."""
        with self.phases("files"):
            attributes, system = self.records.complete(training, evaluation)
        self._alive()  # large trials take long to write
        plan, spec, found = training.plan, self.handle.spec, judge(self.handle.spec, evaluation)
        text = f"trial {plan.number} complete: objective {evaluation.final:+.4f}"
        fields: dict[str, Any] = {"value": evaluation.final}
        if spec.several:
            text += f", {values_text(spec.values, found.values)}"
            fields["values"] = dict(
                zip((one.name for one in spec.values), found.values, strict=True)
            )
        if spec.constraints:
            broken = broken_words(found.violations)
            text += f"; does not meet {broken}" if broken else ""
            fields["feasible"] = not broken
        state, values = TrialState.COMPLETE, found.values
        write = TrialWrite(plan.trial_id, attributes, system, end=state, values=values)
        return Ending(training, write, text, "trial.complete", fields)

    def pruned(self, training: Training, evaluation: Evaluation) -> Ending:
        """Return the end of a trial that is worse than its peers."""
        reason = (
            f"pruned at rung {training.rung} of {self.handle.spec.rungs}: "
            f"{evaluation.value:+.4f} is worse than its peers"
        )
        plan = training.plan
        write = TrialWrite(plan.trial_id, {REASON_KEY: reason}, end=TrialState.PRUNED)
        text, fields = f"trial {plan.number} {reason}", {"value": evaluation.value}
        return Ending(training, write, text, "trial.pruned", fields)

    def fail_diverged(self, trainings: list[Training]) -> list[Training]:
        """End the trials that have a fault; return the others."""
        endings = []
        for training in trainings:
            if fault := training.fault:
                plan = training.plan
                write = TrialWrite(plan.trial_id, {REASON_KEY: fault}, end=TrialState.FAIL)
                text, fields = f"trial {plan.number} failed: {fault}", {"reason": fault}
                endings.append(Ending(training, write, text, "trial.failed", fields))
        if endings:
            self.records.wait()  # a checkpoint must not be recorded after the trial's end
            self.end(endings)
        return [training for training in trainings if not training.fault]

    def end(self, endings: Sequence[Ending]) -> list[Ending]:
        """End trials in one transaction, and delete the files that they needed while they trained.

        Returns:
            The ends of the trials that were not lost.
        """
        if not endings:
            return []
        with self.phases("reports"):
            lost = self.handle.end_all([one.write for one in endings])
            written = self._drop_lost(endings, lost, lambda one: one.training)
        for one in written:
            plan = one.training.plan
            self.telemetry.finished(1)
            self.records.finished(one.training)
            self._changed(plan.trial_id)
            self.telemetry.say(one.text, one.event, trial=plan.number, **one.fields)
        return written

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

    def _drop_lost(
        self, given: Sequence[T], lost: Container[int], trial: Callable[[T], Training]
    ) -> list[T]:
        """Drop the trials that were lost; return what was given of the others."""
        for one in given:
            if trial(one).plan.trial_id in lost:
                self.drop(trial(one))
        return [one for one in given if trial(one).plan.trial_id not in lost]

    def _attributes(self, training: Training, evaluation: Evaluation) -> dict[str, Any]:
        plan = training.plan
        found = evaluation.record
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
