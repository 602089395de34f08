"""The worker: take a batch of trials, train it rung by rung, report, judge, tell; put everything back when asked to
stop.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

import torch
from optuna.trial import TrialState
from rich.console import Console

from envs.support.errors import TryAgainLater
from envs.support.study_record import TOTAL_KEY
from envs.support.supervisor import Supervisor
from optimize.experiments.experiment import Evaluation, Experiment
from optimize.study.checkpoint import describe_rollouts
from optimize.study.deaths import CrashFile
from optimize.study.gone import StudyGone
from optimize.study.pause import PauseWatch
from optimize.study.recovery import BEAT_SECONDS, Heartbeat, crash_file, recover_stale
from optimize.study.registration import GRACE_SECONDS, claim_closing, leave, register_worker
from optimize.study.stall import STALL_SECONDS, Progress
from optimize.study.storage import TrialLost
from optimize.study.study import Plan, StudyHandle, count_states
from optimize.worker.batch import Interrupted, Trainer, Training
from optimize.worker.measure import make_chunks
from optimize.worker.metrics import serving_metrics
from optimize.worker.records import Records
from optimize.worker.sharing import DeviceShare, device_key, keep_to
from optimize.worker.stopping import Life, MemoryLimit, StopRequest, start_again
from optimize.worker.summary import print_summary
from optimize.worker.telemetry import Telemetry
from optimize.worker.timing import Phases

AfterStudy = Callable[[StudyHandle, Console], None]
OnNewBest = Callable[
    [StudyHandle], None
]  # must return at once and never raise: training goes on behind it
WAIT_SECONDS = 2.0
PATIENCE_SECONDS = 600.0
CLOSING_SECONDS = 3600.0  # what a promotion may take without a sign of life


class Outcome(Enum):
    """Why a worker's loop ended: the study has its total; a signal came; memory passed its limit."""

    DONE = "done"
    STOPPED = "stopped"
    RECYCLE = "recycle"


@dataclass(frozen=True)
class WorkerOptions:
    """total: finished trials that the study shall have. alongside: run beside another worker of this study on this
    machine. metrics_port: where Prometheus is answered, None: nowhere. max_memory: bytes of resident memory above which
    the process starts itself again at the next rung; 0: never. stall_seconds: without progress after which the
    heartbeats of its trials stop (`optimize/study/stall.py`).
    """

    total: int
    alongside: bool = False
    metrics_port: int | None = None
    max_memory: int = 0
    beat_seconds: float = BEAT_SECONDS
    grace_seconds: float = GRACE_SECONDS
    patience_seconds: float = PATIENCE_SECONDS
    stall_seconds: float = STALL_SECONDS


class Worker:
    """One process working on one study."""

    def __init__(
        self,
        handle: StudyHandle,
        experiment: Experiment,
        options: WorkerOptions,
        telemetry: Telemetry,
        name: str,
        stop: StopRequest,
    ) -> None:
        self.handle, self.experiment, self.options, self.telemetry, self.name, self.stop = (
            handle,
            experiment,
            options,
            telemetry,
            name,
            stop,
        )
        self.spec = handle.spec
        self.progress = Progress(options.stall_seconds)
        self.heartbeat = Heartbeat(
            handle.storage, name, options.beat_seconds, self.progress, telemetry.say
        )
        self.pause = PauseWatch(handle.storage, handle.study_id)
        self.records = Records(handle, experiment, self.heartbeat.lost_trial, telemetry.say)
        self.crashes = CrashFile(crash_file(handle.run_dir, name))
        self.supervisor = Supervisor()
        patience = handle.storage.patience
        patience.limit, patience.say, patience.stopping = (
            options.patience_seconds,
            telemetry.say,
            self._asked_to_stop,
        )
        self.memory = MemoryLimit(options.max_memory, telemetry.resident_bytes, telemetry.say)
        self.chunks = make_chunks(experiment, telemetry.say, self._alive)
        device = experiment.device
        self.share = DeviceShare(device_key(device), lambda share: keep_to(device, share))
        self.trained = 0
        self.phases = Phases()
        self.batches: list[int] = []
        self.on_new_best: OnNewBest | None = None
        self.best = telemetry.best

    # -- the loop
    # -----------------------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Work until the study has its total, a signal comes, or memory passes its limit."""
        gc.freeze()  # what there is by now stays: `_share_device` need not go through it before every batch
        metrics = serving_metrics(self.options.metrics_port, self.telemetry, self.heartbeat)
        with (
            metrics,
            self.share,
            self.heartbeat,
            self.pause,
            self.telemetry,
            closing(self.records),
            self.crashes,
        ):
            self.supervisor.ready(f"working on study {self.handle.name}")
            self.records.make_up()
            while not self.stop():
                if self.memory.passed:
                    return Outcome.RECYCLE
                if self.pause.paused:
                    with self.phases("paused"):
                        self._sit_out()
                    continue
                with self.phases("asking"):
                    self._recover()
                    plans = self.handle.ask_batch(
                        self.spec.trials_per_batch, self.name, self.options.total
                    )
                    self._refresh()
                new_best, self.best = self.telemetry.best != self.best, self.telemetry.best
                if new_best and self.batches and plans and self.on_new_best is not None:
                    self.on_new_best(self.handle)
                if plans:
                    self.heartbeat.state = "training"
                    self.batches.append(len(plans))
                    self._batch(plans)
                elif self.telemetry.done >= self.options.total:
                    return Outcome.DONE
                else:  # others train the last trials, or have just put one back
                    with self.phases("waiting"):
                        self._wait()
        return Outcome.STOPPED

    def _recover(self) -> None:
        storage = self.handle.storage
        for taken in storage.patience(
            recover_stale,
            storage,
            self.handle.study_id,
            grace=self.options.grace_seconds,
            run_dir=self.handle.run_dir,
        ):
            fate = (
                f"failed: {taken.deaths} workers died while they trained it alone ({taken.how})"
                if taken.quarantined
                else f"put back, its worker died ({taken.how})"
            )
            self.telemetry.say(f"trial {taken.number}: {fate}")

    def _refresh(self) -> None:
        telemetry, trials = self.telemetry, self.handle.trials()
        telemetry.counts = count_states(trials)
        complete = [t for t in trials if t.state == TrialState.COMPLETE and t.value is not None]
        if complete:
            best = max(complete, key=lambda t: (t.value, -t.number))
            telemetry.best = (float(best.value or 0.0), best.number)

    def _wait(self) -> None:
        """The last trials run elsewhere: stay, to take them over if their worker dies or puts them back."""
        if not self.telemetry.counts["RUNNING"]:
            self._sleep()
            return
        if self.heartbeat.state != "waiting":
            self.telemetry.say("waiting for the trials that other workers are training")
            self._idle("waiting", "waiting for other workers")
        until = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < until and not self._stop_or_pause():
            self._sleep()

    def _sit_out(self) -> None:
        """Someone wants the machine for a while: hold none of its memory until the study is resumed."""
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.telemetry.say(
            f"study {self.handle.name} is paused; this worker waits, until: sweepd resume {self.handle.name}"
        )
        self._idle("paused", "paused")
        while self.pause.paused and not self.stop():
            self._sleep()
        if not self.stop():
            self.telemetry.say(f"study {self.handle.name} was resumed")

    def _idle(self, state: str, activity: str) -> None:
        self.heartbeat.state, self.telemetry.activity, self.telemetry.share_of_batch = (
            state,
            activity,
            0.0,
        )
        self.heartbeat.info = {
            "trials": [],
            "device": str(self.experiment.device),
            **self._figures(),
        }
        self.heartbeat.try_beat()

    def _figures(self) -> dict[str, Any]:
        return {**self.telemetry.figures(), "storage_retries": self.handle.storage.retries}

    def _alive(self) -> None:
        """A piece of work was finished, or there is none: said to systemd's watchdog and to the heartbeats."""
        self.progress.mark()
        self.supervisor.alive(self.telemetry.line)

    def _sleep(self) -> None:
        self._raise_if_gone()
        self._alive()
        time.sleep(0.1)

    # -- one batch
    # ----------------------------------------------------------------------------------------------------------------

    def _begin(self, plans: list[Plan]) -> tuple[Trainer, list[Training]]:
        """Programs of a fitting size, and the trials as far as their checkpoints are."""
        shape = plans[0].settings.shape
        self._share_device()
        with self.phases("measuring"):
            slots = self.chunks.size(shape)
        trainer = Trainer(
            self.experiment,
            stop=self._stop_or_lost,
            progress=self._progress,
            say=self.telemetry.say,
            slots=slots,
            ran_out=lambda left: self.chunks.ran_out(shape, left),
            keep=self.records.checkpoints,
            pace=self.records.pace,
        )
        trainings = [trainer.start(plan) for plan in plans]
        for training in trainings:
            self.records.resume(training)
        numbers = ", ".join(str(plan.number) for plan in plans)
        described = " ".join(f"{name} {value}" for name, value in shape.items())
        self.telemetry.say(
            f"training {'trials' if len(plans) > 1 else 'trial'} {numbers} together ({described})"
        )
        return trainer, trainings

    def _batch(self, plans: list[Plan]) -> None:
        self._describe(plans, 0)
        try:
            trainer, trainings = self._begin(plans)
        except BaseException:  # the GPU is lost, say: the trials wait for whoever comes next
            for plan in plans:
                with suppress(Exception):
                    self.handle.put_back(plan.trial_id)
            raise
        self._asked = time.monotonic()
        try:
            while trainings:
                self.records.pace.begun()
                self._describe([t.plan for t in trainings], min(t.rung for t in trainings) + 1)
                self._done_steps, self._want_steps = (
                    0,
                    sum(
                        (self.spec.rung_end(t.rung + 1) - m.rollouts) * self.spec.transitions
                        for t in trainings
                        for m in t.members
                    ),
                )
                try:
                    with self.phases("training"):
                        trainer.advance(trainings, lambda t: t.rung + 1)
                    trainings = self._fail_diverged(trainings)
                    with self.phases("evaluation"):
                        evaluations = trainer.evaluate(trainings)
                except Interrupted:
                    self._raise_if_gone()
                    if not self._stop_or_pause():
                        trainings = self._without_lost(trainings)
                        continue
                    self.records.wait()  # or an older checkpoint would be recorded after the one that is written now
                    for training in self._fail_diverged(trainings):
                        self._put_back(training, with_checkpoint=True)
                    return
                trainings = self._rung(trainer, trainings, evaluations)
                if self.memory.at_rung():
                    self.records.wait()
                    for training in trainings:
                        self._put_back(
                            training, with_checkpoint=False
                        )  # the rung's has just been written
                    return
        except TryAgainLater:
            if self.handle.gone():
                raise
            # The database cannot be told: the heartbeats stop, and files keep what was learned meanwhile.
            for training in trainings:
                if (
                    not training.fault
                ):  # a trial that diverged goes back to its last checkpoint, and diverges again
                    self.records.keep(training)
            raise
        except BaseException:
            if self.handle.gone():  # there is nothing to put the trials back into
                raise
            # The machine's trouble, not the trials': they wait for the next worker, from their last checkpoints.
            with suppress(Exception):  # one error is enough
                self.records.wait()
            for training in trainings:
                with suppress(Exception):
                    self._put_back(training, with_checkpoint=False)
            raise

    def _share_device(self) -> None:
        """Between batches, when this process holds the least: who else is there?"""
        gc.collect()
        if self.share.look():
            count = self.share.workers
            self.chunks.share_with(count)
            others = "another worker is" if count == 2 else f"{count - 1} other workers are"
            self.telemetry.say(
                f"{others} on {self.experiment.device}, too: this one keeps to 1/{count} of its memory"
                if count > 1
                else f"this worker has {self.experiment.device} to itself again"
            )

    def _asked_to_stop(self) -> bool:
        """Asked while an access to the database is tried again."""
        self._alive()
        self._raise_if_gone()
        return self.stop()

    def _raise_if_gone(self) -> None:
        if self.heartbeat.gone is not None:
            raise self.heartbeat.gone

    def _stop_or_pause(self) -> bool:
        return self.stop() or self.pause.paused

    def _stop_or_lost(self) -> bool:
        """Asked by the trainer after every rollout and every step of an evaluation."""
        self._alive()
        before, self._asked = self._asked, time.monotonic()
        if self._asked - before > self.options.grace_seconds / 2:
            self.heartbeat.try_beat()  # this process may have been asleep: are its trials still its own?
        return self._stop_or_pause() or bool(self.heartbeat.lost) or self.heartbeat.gone is not None

    def _without_lost(self, trainings: list[Training]) -> list[Training]:
        lost, self.heartbeat.lost = set(self.heartbeat.lost), set()
        kept = []
        for training in trainings:
            if training.plan.trial_id in lost:
                self._drop(training)
            else:
                kept.append(training)
        return kept

    def _drop(self, training: Training) -> None:
        fate = self.handle.storage.give_up(training.plan.trial_id)
        self.telemetry.say(
            f"trial {training.plan.number} {fate} meanwhile; its copy here is dropped"
        )
        self.records.dropped(training)

    def _describe(self, plans: list[Plan], rung: int) -> None:
        """Say what is in training from now on, also where it is read should this process die. rung: 0 while the
        programs are made.
        """
        self._alive()
        numbers = [plan.number for plan in plans]
        self.crashes.training(numbers)
        doing = f"rung {rung} of {self.spec.rungs}" if rung else "preparing"
        self.telemetry.activity = f"trials {', '.join(map(str, numbers))}, {doing}"
        self.telemetry.share_of_batch = 0.0
        self.heartbeat.info = {
            "trials": numbers,
            "rung": rung,
            "device": str(self.experiment.device),
            "device_workers": self.share.workers,
            "num_envs": self.spec.num_envs,
            **self._figures(),
        }
        self.heartbeat.try_beat()

    def _progress(self, steps: int) -> None:
        self.telemetry.steps(steps)
        self._done_steps += steps
        self.telemetry.share_of_batch = self._done_steps / max(self._want_steps, 1)
        self.heartbeat.info = {**self.heartbeat.info, **self._figures()}

    # -- at a rung
    # ----------------------------------------------------------------------------------------------------------------

    def _fail_diverged(self, trainings: list[Training]) -> list[Training]:
        failed = [t for t in trainings if t.fault]
        if failed:
            self.records.wait()
        for training in failed:
            self._tell(training, lambda t=training: self.handle.fail(t.plan.trial_id, t.fault))  # type: ignore[misc]  # mypy infers no type for t
            self.telemetry.say(f"trial {training.plan.number} failed: {training.fault}")
        return [t for t in trainings if not t.fault]

    def _rung(
        self, trainer: Trainer, trainings: list[Training], evaluations: list[Evaluation | None]
    ) -> list[Training]:
        """All report, then all are judged; the pruned and the complete leave, the rest is checkpointed and goes on."""
        with self.phases("files"):
            self.records.wait()  # what was begun a rung ago is long done, and what went wrong with it is heard here
            self.records.look_after_folder()
        rate = trainer.steps / max(trainer.seconds, 1e-9)
        standing: list[tuple[Training, Evaluation]] = []
        for training, evaluation in zip(trainings, evaluations, strict=True):
            if evaluation is None:
                continue
            training.rung += 1
            self.records.curves(training, evaluation)
            attributes = self._attributes(training, evaluation, rate)

            def told(
                t: Training = training, e: Evaluation = evaluation, a: dict[str, Any] = attributes
            ) -> None:
                self.handle.set_attributes(t.plan.trial_id, a)
                self.handle.report(t.plan, t.rung, e.value)

            with self.phases("reports"):
                held = self._hold(training, told)
            if held:
                standing.append((training, evaluation))
        self._fail_diverged(trainings)
        with self.phases("reports"):
            verdicts = self.handle.judge([t.plan for t, _ in standing])
        goes_on = []
        for (training, evaluation), pruned in zip(standing, verdicts, strict=True):
            number, rung = training.plan.number, training.rung
            if rung >= self.spec.rungs:
                self._tell(training, lambda t=training, e=evaluation: self._complete(trainer, t, e))  # type: ignore[misc]
                self.telemetry.say(f"trial {number} complete: objective {evaluation.final:+.4f}")
            elif pruned:
                reason = f"pruned at rung {rung} of {self.spec.rungs}: {evaluation.value:+.4f} is worse than its peers"
                self._tell(
                    training,
                    lambda t=training, r=reason: self.handle.prune(t.plan.trial_id, r),  # type: ignore[misc]
                )
                self.telemetry.say(f"trial {number} {reason}")
            else:
                self.records.checkpoint(training)
                goes_on.append(training)
        with self.phases("reports"):
            self._refresh()
        return goes_on

    def _hold(self, training: Training, write: Callable[[], None]) -> bool:
        """Write to a trial; False where it turned out to be someone else's by now."""
        try:
            write()
        except TrialLost:
            self._drop(training)
            return False
        return True

    def _tell(self, training: Training, write: Callable[[], None]) -> None:
        """Finish a trial; what it needed on disk is no longer needed."""
        if self._hold(training, write):
            self.trained += 1
            self.telemetry.finished(1)
            self.records.ended(training)

    def _attributes(
        self, training: Training, evaluation: Evaluation, rate: float
    ) -> dict[str, Any]:
        plan = training.plan
        record = replace(
            evaluation.record(),
            env_params=asdict(self.experiment.env_params(plan.settings)),
            learner_params=asdict(self.experiment.learner_params(plan.settings)),
            shape=plan.settings.shape,
            seed=plan.seed,
            num_envs=self.spec.num_envs,
            device=device_name(self.experiment.device),
            steps_per_second=round(rate),
            seconds=round(training.seconds, 1),
        )
        return record.to_attributes(self.spec)

    def _complete(self, trainer: Trainer, training: Training, evaluation: Evaluation) -> None:
        with self.phases("files"):
            self.records.complete(trainer, training, evaluation)
        self._alive()
        self.handle.complete(training.plan.trial_id, evaluation.final)

    def _put_back(self, training: Training, *, with_checkpoint: bool) -> None:
        """RUNNING to WAITING under the same number; first with a checkpoint where there is something new to keep."""
        trial_id = training.plan.trial_id
        if trial_id not in self.handle.storage.held():
            return
        try:
            if with_checkpoint and any(member.learner is not None for member in training.members):
                self.records.checkpoint_now(training)
            self.handle.put_back(trial_id)
        except TrialLost:
            self._drop(training)
            return
        at = describe_rollouts(training.members)
        self.telemetry.say(f"trial {training.plan.number} put back at {at} of {self.spec.rollouts}")


def device_name(device: torch.device) -> str:
    """ "cpu", or the GPU's model."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def work(
    handle: StudyHandle,
    experiment: Experiment,
    options: WorkerOptions,
    console: Console,
    after_study: AfterStudy | None = None,
    on_new_best: OnNewBest | None = None,
) -> bool:
    """Register, work to the study's total, sum up, and hand over to `after_study`. False where it was asked to stop
    before. Raises StudyGone where the study or its database was deleted meanwhile.

    on_new_best: called between batches whenever the study has a new best trial.
    """
    try:
        return _work(handle, experiment, options, console, after_study, on_new_best)
    except Exception as error:
        # A deleted study shows in many ways: a missing row, a missing table, a refused reference.
        gone = handle.gone()
        if gone is None:
            raise
        handle.storage.tidy()
        files = (
            f"; its files in {handle.run_dir} are left as they are"
            if handle.run_dir.exists()
            else ""
        )
        raise StudyGone(f"{gone}: this worker stops{files}") from error


def _work(
    handle: StudyHandle,
    experiment: Experiment,
    options: WorkerOptions,
    console: Console,
    after_study: AfterStudy | None,
    on_new_best: OnNewBest | None,
) -> bool:
    telemetry = Telemetry(console, handle.name, experiment.device)
    telemetry.total = options.total
    telemetry.steps_per_trial = experiment.members * handle.spec.rollouts * handle.spec.transitions
    stop, life = StopRequest(telemetry.say), Life.present()
    telemetry.recycled = life.recycled
    handle.storage.set_study_user_attr(handle.study_id, TOTAL_KEY, options.total)
    with stop.installed():
        name = register_worker(
            handle.storage,
            handle.study_id,
            alongside=options.alongside,
            say=telemetry.say,
            name=life.worker,
        )
        try:
            worker = Worker(handle, experiment, options, telemetry, name, stop)
            worker.on_new_best = on_new_best
            telemetry.say(
                f"Using Vectorized Environments: {handle.spec.num_envs * handle.spec.slots} parallel envs "
                f"({handle.spec.num_envs} per member x {handle.spec.slots} members per program)"
            )
            if life.recycled:
                telemetry.say(
                    f"the same process with fresh memory, started again {life.recycled} times so far"
                )
            outcome = worker.run()
            if outcome is Outcome.RECYCLE and not stop():
                worker.supervisor.starting_again("starting again with fresh memory")
                handle.storage.engine.dispose()
                start_again(Life(life.recycled + 1, name))
        except BaseException:
            leave(handle.storage, name)
            raise
    try:
        if outcome is not Outcome.DONE:
            worker.supervisor.stopping("stopped as asked")
            console.print(
                f"stopped as asked; {_left(handle)}. Start it again to go on.",
                highlight=False,
                soft_wrap=True,
            )
            return False
        print_summary(handle, console, telemetry, worker.batches, worker.phases)
        worker.supervisor.expect_silence(CLOSING_SECONDS)
        if after_study is not None and claim_closing(handle.storage, handle.study_id, name):
            # Beats until the end, so that a worker in another container does not take the closing over meanwhile.
            heartbeat = Heartbeat(handle.storage, name, options.beat_seconds)
            heartbeat.info = worker.heartbeat.info
            with heartbeat:
                after_study(handle, console)
        return True
    finally:
        leave(handle.storage, name)


def _left(handle: StudyHandle) -> str:
    counts = handle.counts()
    ended = f"{counts['COMPLETE']} complete, {counts['PRUNED']} pruned, {counts['FAIL']} failed"
    return f"{counts['WAITING']} trials wait, {counts['RUNNING']} run elsewhere, {ended}"
