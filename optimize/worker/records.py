"""Files of the trials in training: checkpoints, curves, members and tables.

A background thread writes most of them. The order of writes makes a kill harmless at any time:

* A checkpoint is recorded in the database once its file is complete; then the previous file is
  deleted. No checkpoint is ever overwritten.
* A trial is told COMPLETE once its members and tables are written. Pictures are drawn when somebody
  looks at them, see `sweepd.optimize.objectives.trial_files`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import torch
from optuna.trial import TrialState

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.files import write_atomic
from sweepd.envs.support.formatting import counted
from sweepd.optimize.objectives.artifacts import announcements
from sweepd.optimize.objectives.pace import CheckpointPace
from sweepd.optimize.objectives.run import Evaluation, Run, Training
from sweepd.optimize.study.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from sweepd.optimize.study.database.gone import StudyGone
from sweepd.optimize.study.database.storage import TrialLost, TrialWrite
from sweepd.optimize.study.population import schedule_record
from sweepd.optimize.study.record.keys import CHECKPOINT_KEY
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.study import Plan, StudyHandle
from sweepd.optimize.tracking.picture import EVALUATION, RUNG_VALUE
from sweepd.optimize.worker.tracked import finite


class Background:
    """Runs jobs in one thread, in the order of submission.

    A job that raises does not stop the others; the next `wait` raises its error.
    """

    def __init__(self, name: str) -> None:
        # The pool's initializer also changes the default number of torch threads of every thread
        # that has not computed yet. Asking for the number here fixes it for the calling thread.
        torch.get_num_threads()
        # With several torch threads, this thread would start a second OpenMP team. With more
        # threads than cores, libgomp lets idle threads sleep instead of spin, which would slow
        # training down by a third for the rest of the process.
        self._pool = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix=name, initializer=torch.set_num_threads, initargs=(1,)
        )
        self._pending: list[Future[None]] = []  # submitted since the last `wait`

    def submit(self, job: Callable[[], None]) -> None:
        """Append a job to the queue."""
        self._pending.append(self._pool.submit(job))

    @property
    def left(self) -> int:
        """Number of jobs that are waiting or running."""
        return sum(not future.done() for future in self._pending)

    def wait(self) -> None:
        """Wait for all jobs submitted so far.

        Raises:
            Exception: the first error of a job since the last call.
        """
        submitted, self._pending = self._pending, []
        errors = [error for future in submitted if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Wait for all jobs as `wait` does, then end the thread."""
        try:
            self.wait()
        finally:
            self._pool.shutdown()


Progress = tuple[int, int]  # of a trial: rollouts of all its members, rungs reached


class Records:
    """Writes the files of one worker's trials.

    Args:
        handle: the study.
        run: knows what a complete trial writes.
        lost: called with the id of a trial that another worker took over before its checkpoint
            was recorded.
        say: prints one line.
    """

    def __init__(
        self,
        handle: StudyHandle,
        run: Run[Any],
        lost: Callable[[int], None],
        say: Callable[[str], None],
    ) -> None:
        self.handle, self.run = handle, run
        self._lost, self._say = lost, say
        self._thread = Background("records")
        self._saved: dict[int, Progress] = {}  # progress in the newest checkpoint, by trial id
        self.pace = CheckpointPace(lambda: self._thread.left > 0)
        handle.run_dir.mkdir(parents=True, exist_ok=True)

    def wait(self) -> None:
        """Wait until all is on disk; raise the error of a failed write, e.g. OSError."""
        self._thread.wait()

    def close(self) -> None:
        """Write what is pending, and end the thread."""
        self._thread.submit(self.handle.storage.remove_session)
        self._thread.close()

    def ensure_folder(self) -> None:
        """Create the study's folder again if it was deleted.

        Trials in training lose nothing: their state is in memory. Any thread may call this method,
        so it reads the trials from the database, not through the handle's cache.

        Raises:
            StudyGone: the database was deleted as well.
        """
        self.handle.storage.file.check()
        if not self.handle.run_dir.exists():
            self.handle.run_dir.mkdir(parents=True, exist_ok=True)
            complete = self.handle.storage.get_all_trials(
                self.handle.study_id, deepcopy=False, states=(TrialState.COMPLETE,)
            )
            lost = len(complete)
            files = f"; the files of {counted(lost, 'complete trial')} are lost" if lost else ""
            self._say(f"the folder {self.handle.run_dir} was deleted{files}; created it again")

    # -- while a trial trains

    def curves(self, reached: Sequence[tuple[Training, Evaluation]]) -> None:
        """Write the training curves since the last rung and the rung's metrics for TensorBoard.

        With the evaluations since that rung.
        """
        spec = self.handle.spec
        curves = []
        for training, evaluation in reached:
            value = {RUNG_VALUE: evaluation.value, "objective": evaluation.final}
            scores = finite({**(evaluation.record.metrics or {}), **value})
            end, taken = spec.rung_end(training.rung), self.run.take_curves(training)
            begin = spec.rung_end(training.rung - 1)
            beside = {
                at: finite({EVALUATION: value})
                for at, value in training.evaluations.items()
                if begin < at < end
            }
            curves.append((training.plan.number, taken, beside | {end: scores}))

        def job() -> None:
            for number, taken, tests in curves:
                points = {
                    rollout * spec.transitions: {f"train/{name}": own for name, own in new.items()}
                    for rollout, new in taken
                }
                for at, scores in tests.items():
                    test = {f"test/{name}": own for name, own in scores.items()}
                    points.setdefault(at * spec.transitions, {}).update(test)
                # Hides what an interrupted attempt wrote after its last checkpoint.
                first = taken[0][0] * spec.transitions if taken else None
                folder = self.handle.run_dir / "tensorboard" / f"trial-{number:05d}"
                _write_events(folder, points, first)

        self._thread.submit(job)

    def checkpoints(self, trainings: Sequence[Training]) -> None:
        """Write checkpoints of those trials that have advanced since their last one.

        They are of the trials' present states, and written in the background.
        """
        due = self._due(trainings)
        if not due:
            return

        def job() -> None:
            began = time.thread_time()  # CPU time taken from training, without waiting for the disk
            lost = self._write_checkpoints(due)
            self.pace.spent(time.thread_time() - began)
            for trial_id in lost:
                self._lost(trial_id)

        self._saved |= {plan.trial_id: content.progress for plan, content in due}
        self._thread.submit(job)

    def checkpoint_now(self, training: Training) -> None:
        """Write and record a checkpoint if the trial has advanced. Call `wait` before.

        Raises:
            TrialLost: another worker has taken over the trial.
        """
        due = self._due([training])
        if due and self._write_checkpoints(due):
            raise TrialLost(training.plan.trial_id)

    def _due(self, trainings: Sequence[Training]) -> list[tuple[Plan, Checkpoint]]:
        """Return the states of those trials that have advanced since their newest checkpoint."""
        states = ((training.plan, self.run.checkpoint(training)) for training in trainings)
        return [
            (plan, content)
            for plan, content in states
            if self._saved.get(plan.trial_id, (0, 0)) != content.progress
        ]

    def save_unrecorded(self, training: Training) -> None:
        """Write a checkpoint without recording it, while the database does not answer.

        The next worker on this machine resumes the trial from the file.
        """
        content = self.run.checkpoint(training)
        path = self._checkpoint_file(training.plan, content)
        if content.begun and not path.exists():  # the database may have recorded that file
            write_checkpoint(path, content)

    def _checkpoint_file(self, plan: Plan, content: Checkpoint) -> Path:
        """Return the path of a checkpoint."""
        # The attempt's token keeps an older attempt, which may still run, from using this name.
        token = self.handle.storage.held().get(plan.trial_id, "")
        name = f"checkpoint-{content.rollouts:09d}-r{content.rung:03d}-{token[:8]}.safetensors"
        return self.handle.trial_dir(plan.number) / name

    def _write_checkpoints(self, due: Sequence[tuple[Plan, Checkpoint]]) -> set[int]:
        """Write files, record them under the attempts' tokens, then delete the older files.

        Returns:
            The row ids of the trials that were lost.
        """
        self.ensure_folder()
        files: dict[int, tuple[Path, list[Path]]] = {}  # by row id, the new and the older ones
        writes = []
        for plan, content in due:
            path = self._checkpoint_file(plan, content)
            older = [old for old in path.parent.glob("checkpoint-*.safetensors") if old != path]
            files[plan.trial_id] = path, older
            try:
                sha256 = write_checkpoint(path, content)
            except FileNotFoundError:
                # The folder was deleted, or cleaned by the worker that finished the trial.
                self.ensure_folder()
                sha256 = write_checkpoint(path, content)
            recorded = {
                "path": f"{path.parent.name}/{path.name}",
                "sha256": sha256,
                "rung": content.rung,
                "rollouts": content.rollouts,
            }
            writes.append(TrialWrite(plan.trial_id, {CHECKPOINT_KEY: recorded}))
        try:
            lost = self.handle.storage.write(writes)
        except StudyGone:
            for path, _ in files.values():
                path.unlink(missing_ok=True)
            raise
        for trial_id, (path, older) in files.items():
            # Not newer files, which the trial's next worker may have written.
            for old in [path] if trial_id in lost else older:
                old.unlink(missing_ok=True)
        return lost

    def resume(self, training: Training) -> None:
        """Load the trial's last valid checkpoint, if there is one.

        Without one, the trial starts again; its results are the same.
        """
        plan = training.plan
        self._saved.pop(plan.trial_id, None)
        checkpoint = self._unrecorded(plan) or self._recorded(plan)
        if checkpoint is None:
            return
        at = checkpoint.at(self.handle.spec.unit)
        self._say(f"trial {plan.number} resumes from rung {checkpoint.rung} ({at})")
        self.run.resume(training, checkpoint)
        self._saved[plan.trial_id] = checkpoint.progress

    def _recorded(self, plan: Plan) -> Checkpoint | None:
        """Return the checkpoint recorded in the database."""
        if plan.checkpoint is None:
            return None
        try:
            return self._read(
                plan, self.handle.run_dir / plan.checkpoint["path"], plan.checkpoint["sha256"]
            )
        except InputError as error:
            self._say(f"trial {plan.number} starts again: {error}")
            return None

    def _unrecorded(self, plan: Plan) -> Checkpoint | None:
        """Return a newer checkpoint that is not recorded, if there is one.

        Its worker was killed before it recorded the file, or the database did not answer.
        Checkpoints of a rung that was not reported are skipped: that rung must be evaluated.
        """
        recorded = _progress_in_name(Path(plan.checkpoint["path"])) if plan.checkpoint else (-1, 0)
        found = self.handle.trial_dir(plan.number).glob("checkpoint-*.safetensors")
        for path in sorted(found, key=_progress_in_name, reverse=True):
            if _progress_in_name(path) <= recorded:
                break
            with suppress(InputError):
                checkpoint = self._read(plan, path)
                if checkpoint.rung <= max(plan.reported, default=self.handle.first_rung):
                    return checkpoint
        return None

    def _read(self, plan: Plan, path: Path, sha256: str | None = None) -> Checkpoint:
        checkpoint = read_checkpoint(path, sha256)
        if checkpoint.note != plan.note:
            raise InputError(f"{path} belongs to another trial")
        return checkpoint

    # -- when a trial ends

    def complete(
        self, training: Training, evaluation: Evaluation
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Write the files that must exist before the trial is COMPLETE.

        Returns:
            The user attributes and the system attributes that name them.
        """
        plan, handle = training.plan, self.handle
        members = self.run.write(training, handle.trial_dir(plan.number), evaluation)
        if handle.spec.evolves:
            made = schedule_record(handle, plan.number)
            write_atomic(
                handle.trial_dir(plan.number) / "schedule.json", json.dumps(made, indent=1)
            )
        record = TrialRecord(members=members)
        return record.to_attributes(handle.spec), announcements(self.run.shown(training))

    def finished(self, training: Training) -> None:
        """Delete the checkpoints of a finished trial."""
        self._clean(training.plan.number)

    def dropped(self, training: Training) -> None:
        """Delete the checkpoints of a lost trial if another worker has finished it."""
        with suppress(KeyError):  # the trial was deleted
            if self.handle.storage.get_trial(training.plan.trial_id).state.is_finished():
                self._clean(training.plan.number)

    def finish_interrupted(self) -> None:
        """Delete the checkpoints of finished trials that a killed worker did not."""
        for trial in self.handle.trials():
            if trial.state.is_finished():
                self._clean(trial.number)

    def _clean(self, number: int) -> None:
        """Delete a finished trial's checkpoints and the incomplete files of killed workers."""
        folder = self.handle.trial_dir(number)

        def job() -> None:  # in the background, after the writes that are pending
            for old in (*folder.glob("checkpoint-*.safetensors"), *folder.glob(".*.tmp.*")):
                old.unlink(missing_ok=True)
            self.run.clean(folder)

        self._thread.submit(job)


def _write_events(
    folder: Path, points: Mapping[int, Mapping[str, float]], first: int | None
) -> None:
    """Write a file for TensorBoard: an event per step, which is faster than one per value.

    Args:
        folder: of the trial's curves.
        points: values by step and name.
        first: earlier files are hidden from this step on; None: nothing is.
    """
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # take long to import
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    with closing(EventFileWriter(str(folder))) as writer:
        now = time.time()
        if first is not None:
            writer.add_event(Event(wall_time=now, step=first, file_version="brain.Event:2"))
            start = SessionLog(status=SessionLog.START)
            writer.add_event(Event(wall_time=now, step=first, session_log=start))
        for step, named in points.items():
            values = [Summary.Value(tag=tag, simple_value=own) for tag, own in named.items()]
            writer.add_event(Event(wall_time=now, step=step, summary=Summary(value=values)))


def _progress_in_name(path: Path) -> Progress:
    """Read the progress from the name of a checkpoint."""
    found = re.match(r"checkpoint-(\d+)-r(\d+)-", path.name)
    return (int(found[1]), int(found[2])) if found else (-1, 0)
