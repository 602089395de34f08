"""The worker's loop: ask for trials, train them rung by rung, evaluate, report, prune, tell.

`Worker.run` is the loop over batches, `Worker._train_batch` the loop over the rungs of one batch.
`sweepd.optimize.worker.reporting` writes results to the study, `sweepd.optimize.worker.records`
writes files.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from optuna.trial import TrialState

from sweepd.envs.support.errors import InputError, TryAgainLater
from sweepd.optimize.objectives.judged import judge
from sweepd.optimize.objectives.run import Evaluation, Interrupted, Run, Training, WorkerHooks
from sweepd.optimize.study.database.storage import TrialLost
from sweepd.optimize.study.insight.charts import StudyCharts
from sweepd.optimize.study.insight.history import history
from sweepd.optimize.study.insight.time_left import members_of, whole_programs, work_left
from sweepd.optimize.study.pause import PauseWatch
from sweepd.optimize.study.population import claim_population
from sweepd.optimize.study.recovery.deaths import CrashFile
from sweepd.optimize.study.recovery.heartbeat import BEAT_SECONDS, Heartbeat
from sweepd.optimize.study.recovery.registration import GRACE_SECONDS, list_workers
from sweepd.optimize.study.recovery.stale_trials import crash_file, recover_stale
from sweepd.optimize.study.recovery.stall import STALL_SECONDS, Progress
from sweepd.optimize.study.study import Plan, StudyHandle
from sweepd.optimize.worker.callbacks import Tell, silent
from sweepd.optimize.worker.evolution import evolution_of
from sweepd.optimize.worker.prometheus import serving_metrics
from sweepd.optimize.worker.records import Records
from sweepd.optimize.worker.reporting import TrialReporter
from sweepd.optimize.worker.sharing import DeviceShare, device_key, limit_memory
from sweepd.optimize.worker.stopping import MemoryLimit, StopRequest
from sweepd.optimize.worker.telemetry import Activity, Telemetry
from sweepd.optimize.worker.timing import Phases
from sweepd.optimize.worker.tracked import TrackedStudy

# Called in the middle of training, so it must return at once and never raise.
OnNewBest = Callable[[StudyHandle], None]
WAIT_SECONDS = 2.0
PATIENCE_SECONDS = 600.0
REFRESH_SECONDS = 5.0  # at rungs at which no trial ends, as reading a study takes long


class Outcome(Enum):
    """Why the loop ended: the study is complete, a signal arrived, or memory exceeded its limit."""

    DONE = "done"
    STOPPED = "stopped"
    RECYCLE = "recycle"


@dataclass(frozen=True)
class WorkerOptions:
    """Options of one worker.

    Attributes:
        total: number of finished trials at which the study is complete.
        alongside: run in parallel with another worker of this study on this machine.
        metrics_port: port for Prometheus, or None.
        evaluate_every: environment steps per member between two evaluations beside rungs; 0: none.
        track: names of trackers, see `sweepd.optimize.tracking`.
        max_memory: bytes of resident memory above which the process restarts itself at the next
            rung; 0 for no limit.
        fresh_seeds: seeds on which the selection of a complete study is measured, see
            `sweepd.optimize.worker.lifecycle`; 0 for none.
        beat_seconds: interval of the heartbeats.
        grace_seconds: time without a heartbeat after which a worker counts as dead.
        patience_seconds: how long to retry while the database does not answer.
        stall_seconds: time without progress after which the heartbeats of the trials stop (see
            `sweepd.optimize.study.recovery.stall`).
    """

    total: int
    alongside: bool = False
    metrics_port: int | None = None
    max_memory: int = 0
    fresh_seeds: int = 0
    evaluate_every: int = 0
    track: tuple[str, ...] = ()
    beat_seconds: float = BEAT_SECONDS
    grace_seconds: float = GRACE_SECONDS
    patience_seconds: float = PATIENCE_SECONDS
    stall_seconds: float = STALL_SECONDS


class Worker:
    """One process that trains trials of one study.

    Args:
        handle: the study.
        trainer: trains its trials.
        options: see `WorkerOptions`.
        telemetry: shows progress.
        name: name under which the worker is registered.
        stop: returns True once a signal asked the worker to stop.
        on_new_best: called between batches when the study has a new best trial.
        tell: calls the callbacks of `sweepd.optimize.worker.callbacks`.
    """

    def __init__(
        self,
        handle: StudyHandle,
        trainer: Run[Any],
        options: WorkerOptions,
        telemetry: Telemetry,
        name: str,
        stop: StopRequest,
        on_new_best: OnNewBest | None = None,
        tell: Tell = silent,
    ) -> None:
        self.handle, self.trainer, self.options = handle, trainer, options
        self.telemetry, self.name, self.stop = telemetry, name, stop
        self.on_new_best, self.tell = on_new_best, tell
        self.spec = handle.spec
        self.phases = Phases()
        self.batches: list[int] = []  # number of trials in each batch
        self.best = telemetry.best
        device, say = trainer.device, telemetry.say
        marks = Progress(options.stall_seconds)
        self.heartbeat = Heartbeat(handle.storage, name, options.beat_seconds, marks, say)
        self.crashes = CrashFile(crash_file(handle.run_dir, name))
        self.activity = Activity(telemetry, self.heartbeat, marks, self.crashes, str(device))
        alive = self.activity.alive
        self.pause = PauseWatch(handle.storage, handle.study_id)
        self.records = Records(handle, trainer, self.heartbeat.lost.add, say)
        self.evolution = evolution_of(handle, say)
        self.tracked = TrackedStudy(handle, options.track, say)
        self.reporter = TrialReporter(
            handle, trainer, self.records, telemetry, self.phases, alive, self.tracked.update
        )
        # A retried access may take minutes, in which a signal or a deleted study must be noticed.
        patience = handle.storage.patience
        patience.limit, patience.say = options.patience_seconds, say
        patience.stopping = self._stop_retrying
        self.memory = MemoryLimit(options.max_memory, telemetry.resident_bytes, say)
        trainer.attach(
            handle,
            WorkerHooks(
                stop=self._stop_or_lost,
                progress=self.activity.stepped,
                say=say,
                alive=alive,
                keep=self.records.checkpoints,
                pace=self.records.pace,
                evaluate_every=options.evaluate_every,
                evaluated=self._record_evaluations,
            ),
        )
        self.share = DeviceShare(device_key(device), lambda share: limit_memory(device, share))
        self._last_check = 0.0  # when `_stop_or_lost` was last called
        self._refreshed = -math.inf  # when `_refresh` last read
        self._looked = -math.inf  # when `_look_at_others` last read

    def run(self) -> Outcome:
        """Train batches until the study is complete, a signal arrives, or memory is exceeded."""
        metrics = serving_metrics(self.options.metrics_port, self.telemetry, self.heartbeat)
        # Left in reverse order: pending files are written while heartbeats still hold the trials.
        with (
            _frozen_objects(),
            metrics,
            self.tracked.tracking,
            self.share,
            self.heartbeat,
            self.pause,
            self.telemetry,
            closing(self.records),
            self.crashes,
        ):
            self.activity.supervisor.ready(f"working on study {self.handle.name}")
            self.records.finish_interrupted()
            self.tracked.catch_up()
            while not self.stop():
                if self.memory.passed:
                    return Outcome.RECYCLE
                if self.pause.paused:
                    with self.phases("paused"):
                        self._wait_while_paused()
                    continue
                plans = self._ask()
                if plans:
                    self.heartbeat.state = "training"
                    self.batches.append(len(plans))
                    self._train_batch(plans)
                elif self.telemetry.done >= self.options.total:
                    return Outcome.DONE
                else:  # other workers train the last trials, or have just requeued one
                    with self.phases("waiting"):
                        self._wait()
        return Outcome.STOPPED

    # -- asking for trials

    def _ask(self) -> list[Plan]:
        """Requeue the trials of dead workers, and claim a batch; empty where there is none."""
        with self.phases("asking"):
            self._recover()
            ask = claim_population if self.spec.evolves else StudyHandle.ask_batch
            plans = ask(self.handle, self.spec.trials_per_batch, self.name, self.options.total)
            # Of a trial that was lost, recovered, and is claimed here again.
            self.heartbeat.lost.difference_update(plan.trial_id for plan in plans)
            self._refresh()
        new_best, self.best = self.telemetry.best != self.best, self.telemetry.best
        if new_best and self.batches and plans and self.on_new_best is not None:
            self.on_new_best(self.handle)
        return plans

    def _recover(self) -> None:
        """Requeue, or fail, the trials of workers that died."""
        storage = self.handle.storage
        for trial in storage.patience(
            recover_stale,
            storage,
            self.handle.study_id,
            grace=self.options.grace_seconds,
            run_dir=self.handle.run_dir,
            populations=self.spec.evolves,
        ):
            company = "in its population" if self.spec.evolves else "alone"
            fate = (
                f"failed: {trial.deaths} workers died while they trained it {company} ({trial.how})"
                if trial.quarantined
                else f"requeued, its worker died ({trial.how})"
            )
            event = "trial.failed" if trial.quarantined else "trial.requeued"
            self.telemetry.say(f"trial {trial.number}: {fate}", event, trial=trial.number)

    def _refresh(self) -> None:
        """Update the counts, the best trial and the time left that are shown."""
        self._refreshed = time.monotonic()
        # One read of the trials for all.
        with self.handle.cached.read_once(self.handle.study_id):
            self.telemetry.counts, best = self.handle.counts(), self.handle.best()
            reached = [
                (trial.state.name, max(trial.intermediate_values, default=0))
                for trial in self.handle.trials()
            ]
        steps = self.telemetry.steps_per_trial
        self.telemetry.left(work_left(reached, self.spec, self.options.total, steps))
        self._look_at_others()
        if self.telemetry.drawn:
            rows = self.handle.storage.patience(self.handle.rows.read)
            self.telemetry.charts = StudyCharts(history(rows))
        if best is not None:
            before, number = self.telemetry.best, best.best_trial.number
            self.telemetry.best = (best.value, number)
            # Not for the one that the study had before this worker began.
            if self.batches and (before is None or before[1] != number):
                self.tell("on_new_best", number, best.value)

    def _look_at_others(self) -> None:
        """Update the pace of the other workers, as often as they publish it."""
        if time.monotonic() - self._looked < self.options.beat_seconds:
            return
        storage = self.handle.storage
        workers = storage.patience(list_workers, storage, self.handle.study_id)
        self.telemetry.others = sum(
            other.info.get("pace", 0.0)
            for other in workers
            if other.worker != self.name and other.beat_age < self.options.grace_seconds
        )
        self._looked = time.monotonic()

    # -- training a batch

    def _train_batch(self, plans: list[Plan]) -> None:
        """Train trials of one shape until each is complete, pruned, failed or requeued."""
        self._show_training(plans, "preparing", rung=0)
        try:
            if not self._prepare(plans):
                return
            trainings = self._begin(plans)
        except BaseException:
            # For example, the GPU is lost: another worker can train the trials.
            for plan in plans:
                with suppress(Exception):
                    self.handle.put_back(plan.trial_id)
            raise
        self._last_check = time.monotonic()  # measuring chunks is no suspension of the process
        try:
            while trainings:
                trainings = self._train_rung(trainings)
        except TryAgainLater:
            self._end_despite_error(trainings)
            if self.handle.gone():
                raise
            # The trials cannot be requeued: their heartbeats stop, and files keep their progress.
            # A diverged trial is left out: it resumes from its last checkpoint and diverges again.
            for training in trainings:
                if not training.fault:
                    self.records.save_unrecorded(training)
            raise
        except BaseException:
            self._end_despite_error(trainings)
            if self.handle.gone():  # there is no study to requeue the trials in
                raise
            # A fault of this machine: the next worker continues from the last checkpoints.
            with suppress(Exception):  # one error is enough
                self.records.wait()
            for training in trainings:
                with suppress(Exception):
                    self.reporter.requeue(training, with_checkpoint=False)
            raise

    def _end_despite_error(self, trainings: list[Training]) -> None:
        with suppress(Exception):  # one error is enough
            self.trainer.end(trainings)

    def _prepare(self, plans: list[Plan]) -> bool:
        """Decide what the trials share, such as opponents; return whether they can be trained."""

        def ask() -> None:
            self.activity.alive()
            if self._stop_or_pause():
                raise Interrupted

        try:
            with self.phases("league"):
                self.trainer.prepare(plans, ask)
        except Interrupted:
            for plan in plans:
                with suppress(TrialLost):
                    self.handle.put_back(plan.trial_id)
            return False
        except InputError as error:
            # No worker can train these trials against their recorded opponents.
            for plan in plans:
                with suppress(TrialLost):
                    self.handle.fail(plan.trial_id, f"its opponents from the league: {error}")
                self.telemetry.finished(1)
                self.telemetry.say(
                    f"trial {plan.number} failed: {error}",
                    "trial.failed",
                    trial=plan.number,
                    reason=str(error),
                )
            return False
        return True

    def _begin(self, plans: list[Plan]) -> list[Training]:
        """Start the trials, and load their checkpoints."""
        self._share_device()
        with self.phases("measuring"):
            trainings = self.trainer.begin(plans)
        for training in trainings:
            self.records.resume(training)
            self.tracked.update(training.plan.trial_id)
            self.tell("on_trial_begin", training.plan.number, dict(training.plan.params))
        if self.evolution is not None:
            self.evolution.resume(self.trainer, trainings)
        numbers = ", ".join(str(plan.number) for plan in plans)
        shape = plans[0].settings.shape
        described = " ".join(f"{name} {value}" for name, value in shape.items())
        described = f" ({described})" if described else ""
        trained = f"trials {numbers} together" if len(plans) > 1 else f"trial {numbers}"
        self.telemetry.say(
            f"training {trained}{described}",
            "batch.started",
            trials=[plan.number for plan in plans],
        )
        return trainings

    def _train_rung(self, batch: list[Training]) -> list[Training]:
        """Train to the next rung, evaluate and report; return the trials that continue."""
        trainings = batch if self.evolution is None else self.evolution.next(batch)
        now = {training.plan.number for training in trainings}
        others = [training for training in batch if training.plan.number not in now]
        self._begin_rung(trainings)
        try:
            with self.phases("training"):
                self.trainer.advance(trainings)
            trainings = self.reporter.fail_diverged(trainings)
            with self.phases("evaluation"):
                evaluations = self._judgeable(trainings, self.trainer.evaluate(trainings))
        except Interrupted:
            return self._after_interruption([*trainings, *others])
        trainings = self._finish_rung(trainings, evaluations, others)
        if not self.memory.at_rung():
            return trainings
        self.trainer.end(trainings)
        self.records.wait()
        for training in trainings:  # their checkpoints have just been written
            self.reporter.requeue(training, with_checkpoint=False)
        return []

    def _record_evaluations(self, trainings: Sequence[Training]) -> None:
        """Record the evaluations beside rungs of trials in training."""
        self.heartbeat.lost |= self.reporter.evaluated(trainings)

    def _judgeable(
        self, trainings: list[Training], evaluations: list[Evaluation | None]
    ) -> list[Evaluation | None]:
        """Return None, with the trial's fault set, for evaluations that lack a value of the study."""
        for training, evaluation in zip(trainings, evaluations, strict=True):
            if evaluation is not None and (fault := judge(self.spec, evaluation).fault):
                training.fault = fault
                self.trainer.end([training])
        return [
            None if training.fault else evaluation
            for training, evaluation in zip(trainings, evaluations, strict=True)
        ]

    def _begin_rung(self, trainings: list[Training]) -> None:
        """Publish the rung that is trained now, the lowest of a batch with resumed trials."""
        self.records.pace.begun()
        members = len(trainings) * members_of(self.spec, self.telemetry.steps_per_trial)
        self.telemetry.begin(whole_programs(members, self.spec.slots) / members)
        rung = min(t.rung for t in trainings) + 1
        self._show_training(
            [t.plan for t in trainings],
            f"rung {rung} of {self.spec.rungs}",
            rung,
            sum(map(self.trainer.steps_left, trainings)),
        )

    def _show_training(self, plans: list[Plan], doing: str, rung: int, steps: int = 0) -> None:
        info = {"rung": rung, "device_workers": self.share.workers, "num_envs": self.spec.num_envs}
        self.activity.training([plan.number for plan in plans], doing, steps, info)

    def _finish_rung(
        self,
        trainings: list[Training],
        evaluations: list[Evaluation | None],
        others: list[Training],
    ) -> list[Training]:
        """Report all trials, then complete, prune or checkpoint each; return those that continue.

        others: trials of the batch that had reached this rung before.
        """
        with self.phases("files"):
            self.records.wait()  # raises errors of the writes since the last rung
            self.records.ensure_folder()
        reached: list[tuple[Training, Evaluation]] = []
        for training, evaluation in zip(trainings, evaluations, strict=True):
            if evaluation is None:
                continue
            training.rung += 1
            training.undecided = self.evolution is not None
            reached.append((training, evaluation))
        self.records.curves(reached)
        reported = self.reporter.report(reached)
        for training, evaluation in reported:
            self.tell("on_rung", training.plan.number, training.rung, evaluation.value)
        self.reporter.fail_diverged(trainings)  # in the evaluation
        if self.evolution is not None:
            whole = [training for training, _ in reported]
            lost = len(whole) < sum(not training.fault for training in trainings)
            try:
                with self.phases("population"):
                    lost = lost or not self.evolution.change(self.trainer, reported, others)
            except Interrupted:
                return self._after_interruption([*whole, *others])
            if lost:
                return self._requeue([*whole, *others])
            self.reporter.fail_diverged(whole)
            reported = [(training, found) for training, found in reported if not training.fault]
        # All have reported before any is judged, as the pruner compares them with each other.
        with self.phases("reports"):
            verdicts = self.handle.judge([training.plan for training, _ in reported])
        self.trainer.end([own for (own, _), bad in zip(reported, verdicts, strict=True) if bad])
        endings, continuing = [], []
        for (training, evaluation), pruned in zip(reported, verdicts, strict=True):
            if training.rung >= self.spec.rungs:  # the last rung is never pruned: it is complete
                endings.append(self.reporter.completed(training, evaluation))
            elif pruned:
                endings.append(self.reporter.pruned(training, evaluation))
            else:
                continuing.append(training)
        for one in self.reporter.end(endings):
            if one.write.end == TrialState.COMPLETE:
                self.tell("on_trial_complete", one.training.plan.number, one.fields["value"])
        self.records.checkpoints(continuing)
        with self.phases("reports"):
            if endings or time.monotonic() - self._refreshed > REFRESH_SECONDS:
                self._refresh()
        return [*others, *continuing]

    def _after_interruption(self, trainings: list[Training]) -> list[Training]:
        """Requeue all trials to stop or pause; otherwise drop the lost ones and return the rest."""
        self._raise_if_gone()
        if not self._stop_or_pause():  # the heartbeats found that other workers took trials over
            lost = set(self.heartbeat.lost)
            for training in trainings:
                if training.plan.trial_id in lost:
                    self.reporter.drop(training)
            self.heartbeat.lost -= lost  # in place: other threads add to this set
            left = [training for training in trainings if training.plan.trial_id not in lost]
            if self.evolution is None:
                return left
            trainings = left  # a population is trained by one worker
        return self._requeue(trainings)

    def _requeue(self, trainings: list[Training]) -> list[Training]:
        """Requeue trials with checkpoints of their present state; return none."""
        self.trainer.end(trainings)
        self.records.wait()  # an older checkpoint must not be recorded after the one written now
        for training in self.reporter.fail_diverged(trainings):
            self.reporter.requeue(training, with_checkpoint=True)
        return []

    def _share_device(self) -> None:
        """Adapt to the number of workers on the device while little memory is in use."""
        self.trainer.release()
        if not self.share.look():
            return
        count, device = self.share.workers, self.trainer.device
        self.trainer.share_with(count)
        others = "another worker uses" if count == 2 else f"{count - 1} other workers use"
        self.telemetry.say(
            f"{others} {device}: this one limits itself to 1/{count} of the memory"
            if count > 1
            else f"no other worker uses {device} any more: memory is no longer limited",
            "device.shared",
            workers=count,
        )

    # -- waiting

    def _wait(self) -> None:
        """Wait while other workers train the last trials, to recover these if a worker dies."""
        if not self.telemetry.counts["RUNNING"]:
            self._sleep()
            return
        if self.heartbeat.state != "waiting":
            self.telemetry.say("waiting for trials of other workers", "worker.waiting")
            self.activity.idle("waiting", "waiting for other workers")
        until = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < until and not self._stop_or_pause():
            self._sleep()

    def _wait_while_paused(self) -> None:
        """Wait without GPU memory until the study is resumed."""
        self.trainer.release()
        name = self.handle.name
        self.telemetry.say(
            f"study {name} is paused; this worker waits for: sweepd resume {name}", "study.paused"
        )
        self.activity.idle("paused", "paused")
        while self.pause.paused and not self.stop():
            self._sleep()
        if not self.stop():
            self.telemetry.say(f"study {name} was resumed", "study.resumed")

    def _sleep(self) -> None:
        """Sleep for a moment; raise StudyGone if the study was deleted."""
        self._raise_if_gone()
        self.activity.alive()
        time.sleep(0.1)

    # -- questions of other threads and of the trainer

    def _stop_or_pause(self) -> bool:
        """Return whether to requeue all trials."""
        return self.stop() or self.pause.paused

    def _stop_or_lost(self) -> bool:
        """Return whether to interrupt training; called after every rollout and evaluation step."""
        self.activity.alive()
        before, self._last_check = self._last_check, time.monotonic()
        if self._last_check - before > self.options.grace_seconds / 2:
            # The process may have been suspended: find out whether the trials are still its own.
            self.heartbeat.try_beat()
        return self._stop_or_pause() or bool(self.heartbeat.lost) or self.heartbeat.gone is not None

    def _stop_retrying(self) -> bool:
        """Return whether to stop retrying an access to the database."""
        self.activity.alive()
        self._raise_if_gone()
        return self.stop()

    def _raise_if_gone(self) -> None:
        if self.heartbeat.gone is not None:
            raise self.heartbeat.gone


@contextmanager
def _frozen_objects() -> Iterator[None]:
    """Exclude the objects that exist now from collections, so that `_share_device` need not scan them."""
    gc.freeze()
    try:
        yield
    finally:  # or what this worker used could never be collected in a process that goes on
        gc.unfreeze()
