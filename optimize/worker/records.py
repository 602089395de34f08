"""What the trials in hand leave on disk: checkpoints, curves, members, paths and pictures.

A thread writes most of it, beside the training. The order makes a kill harmless at any instant. A checkpoint is
recorded in the database once its file is whole; the file before it is deleted afterwards, and no checkpoint is ever
overwritten. A trial is told complete once its members and paths are whole; its picture and the copies for
optuna-dashboard, whose names are recorded before, are made afterwards. The next worker makes those that a killed worker
did not make.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from envs.support.errors import InputError, RunError
from envs.support.study_record import CHECKPOINT_KEY, TrialRecord
from optimize.experiments.artifacts import announce, announced, publish
from optimize.experiments.experiment import Evaluation, Experiment
from optimize.study.checkpoint import (
    Checkpoint,
    describe_rollouts,
    read_checkpoint,
    total_rollouts,
    write_checkpoint,
)
from optimize.study.gone import StudyGone
from optimize.study.storage import TrialLost
from optimize.study.study import Plan, StudyHandle
from optimize.worker.background import Background
from optimize.worker.batch import Trainer, Training
from optimize.worker.pace import CheckpointPace
from optimize.worker.telemetry import Curves

Place = tuple[int, int]  # how far a trial is: rollouts of all its members, rungs reached


class Records:
    """Writes for one worker.

    lost: told the id of a trial that turned out to be someone else's while its checkpoint was recorded. say: one line
    for a person.
    """

    def __init__(
        self,
        handle: StudyHandle,
        experiment: Experiment,
        lost: Callable[[int], None],
        say: Callable[[str], None],
    ) -> None:
        self.handle, self.experiment = handle, experiment
        self._lost, self._say = lost, say
        self._thread = Background("records")
        self._kept: dict[int, Place] = {}  # of each trial's newest checkpoint, by trial id
        self.pace = CheckpointPace(lambda: self._thread.busy)
        self._made_folder()

    def wait(self) -> None:
        """Return once everything is on disk. Raises what went wrong (OSError: a full disk)."""
        self._thread.wait()

    def close(self) -> None:
        """Write what is left, and end the thread."""
        self._thread.submit(self.handle.storage.remove_session)
        self._thread.close()

    def _made_folder(self) -> bool:
        """Make the study's folder where it is missing. Whether it was."""
        missing = not self.handle.run_dir.exists()
        if missing:
            self.handle.run_dir.mkdir(parents=True, exist_ok=True)
        return missing

    def look_after_folder(self) -> None:
        """Make the study's folder again, and say so, where it was deleted. The trials in training lose nothing: their
        state is in memory. Raises StudyGone where the database was deleted with it.

        Any thread may call it, so the trials are read from the database, not through the handle's cache.
        """
        self.handle.storage.file.check()
        if self._made_folder():
            complete = (TrialState.COMPLETE,)
            lost = len(
                self.handle.storage.get_all_trials(
                    self.handle.study_id, deepcopy=False, states=complete
                )
            )
            files = f"; the files of {lost} complete trial(s) are lost" if lost else ""
            self._say(
                f"the folder {self.handle.run_dir} was deleted meanwhile{files}; it is made again"
            )

    # -- while a trial trains
    # -----------------------------------------------------------------------------------------------------------------

    def curves(self, training: Training, evaluation: Evaluation) -> None:
        """The training curves since the last rung, and the rung's scores, for TensorBoard."""
        names = self.experiment.algorithm.curves
        taken, transitions = training.take_curves(names), self.handle.spec.transitions
        folder = self.handle.run_dir / "tensorboard" / f"trial-{training.plan.number:05d}"
        scores = {
            f"test/over_{self.experiment.member}s": evaluation.value,
            "test/objective": evaluation.final,
        }
        at = self.handle.spec.rung_end(training.rung) * transitions

        def write() -> None:
            curves = Curves(folder, (taken[0][0] if taken else 0) * transitions)
            for rollout, values in taken:
                curves.add(
                    {f"train/{name}": value for name, value in values.items()},
                    rollout * transitions,
                )
            curves.add(scores, at)
            curves.close()

        self._thread.submit(write)

    def checkpoints(self, trainings: Sequence[Training]) -> None:
        """Write checkpoints of the trials that have advanced since their last ones, inside a rung."""
        for training in trainings:
            if not self._is_kept(training):
                self.checkpoint(training)

    def _is_kept(self, training: Training) -> bool:
        """Whether the trial has not begun, or its newest checkpoint is as far as the trial."""
        return self._kept.get(training.plan.trial_id, (0, 0)) == _place_of(training)

    def checkpoint(self, training: Training) -> None:
        """Write a checkpoint of the trial as it is now, beside the training that goes on."""
        write = self._checkpoint_of(training)
        self._kept[training.plan.trial_id] = _place_of(training)

        def job() -> None:
            began = (
                time.thread_time()
            )  # what the training may miss: not the time of waiting for a disk
            try:
                try:
                    write()
                except (
                    FileNotFoundError
                ):  # the folder was deleted, or swept by the worker that finished the trial
                    write()
                self.pace.spent(time.thread_time() - began)
            except TrialLost:
                self._lost(training.plan.trial_id)

        self._thread.submit(job)

    def checkpoint_now(self, training: Training) -> None:
        """Write a checkpoint, if the trial has advanced since its last one, and return once it is on disk and recorded.
        Call `wait` before. Raises TrialLost where the trial is no longer ours.
        """
        if not self._is_kept(training):
            self._checkpoint_of(training)()

    def keep(self, training: Training) -> None:
        """Write a checkpoint as a file only, while the database is away: the next worker on this machine resumes the
        trial from it.
        """
        path, content = self._file_of(training)
        begun = any(member.learner is not None for member in training.members)
        if begun and not path.exists():  # the database may have recorded that file
            write_checkpoint(path, content)

    def _file_of(self, training: Training) -> tuple[Path, Checkpoint]:
        plan = training.plan
        # The trainer replaces a member's state as a whole, so the list is all that has to be kept.
        note, curves = (
            note_of(plan),
            {rollout: list(rows) for rollout, rows in training.curves.items()},
        )
        content = Checkpoint(list(training.members), training.rung, training.seconds, note, curves)
        token = self.handle.storage.held().get(plan.trial_id, "")
        rollouts, rung = _place_of(training)
        name = f"checkpoint-{rollouts:09d}-r{rung:03d}-{token[:8]}.safetensors"
        return self.handle.trial_dir(plan.number) / name, content

    def _checkpoint_of(self, training: Training) -> Callable[[], None]:
        trial_id, storage = training.plan.trial_id, self.handle.storage
        path, content = self._file_of(training)

        def write() -> None:
            """Write the file, then its record under the attempt's token, and delete the files before it last."""
            self.look_after_folder()
            before = [old for old in path.parent.glob("checkpoint-*.safetensors") if old != path]
            sha256 = write_checkpoint(path, content)
            recorded = {
                "path": f"{path.parent.name}/{path.name}",
                "sha256": sha256,
                "rung": content.rung,
                "rollouts": total_rollouts(content.members),
            }
            try:
                storage.set_trial_user_attr(trial_id, CHECKPOINT_KEY, recorded)
            except (TrialLost, StudyGone):
                path.unlink(missing_ok=True)
                raise
            for old in before:  # not what the trial's next holder may have written meanwhile
                old.unlink(missing_ok=True)

        return write

    def resume(self, training: Training) -> None:
        """Go on from the trial's last checkpoint that is here and whole, else from the beginning: the same numbers
        either way.
        """
        plan = training.plan
        self._kept.pop(plan.trial_id, None)
        checkpoint = self._unrecorded(plan) or self._recorded(plan)
        if checkpoint is None:
            return
        at = describe_rollouts(checkpoint.members)
        self._say(f"trial {plan.number} goes on from rung {checkpoint.rung} ({at})")
        training.members, training.rung, training.seconds = (
            checkpoint.members,
            checkpoint.rung,
            checkpoint.seconds,
        )
        training.curves.update(checkpoint.curves)
        self._kept[plan.trial_id] = _place_of(training)

    def _recorded(self, plan: Plan) -> Checkpoint | None:
        """The checkpoint that the database knows of."""
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
        """A newer checkpoint that the database does not know of: its worker was killed before it recorded the file, or
        the database was away. One of a rung that was not reported is left out: that rung has to be evaluated.
        """
        recorded = _place_in_name(Path(plan.checkpoint["path"])) if plan.checkpoint else (-1, 0)
        found = self.handle.trial_dir(plan.number).glob("checkpoint-*.safetensors")
        for path in sorted(found, key=_place_in_name, reverse=True):
            if _place_in_name(path) <= recorded:
                break
            with suppress(InputError):
                checkpoint = self._read(plan, path)
                if checkpoint.rung <= len(plan.reported):
                    return checkpoint
        return None

    def _read(self, plan: Plan, path: Path, sha256: str | None = None) -> Checkpoint:
        checkpoint = read_checkpoint(path, sha256)
        if len(checkpoint.members) != self.experiment.members or checkpoint.note != note_of(plan):
            raise InputError(f"{path} belongs to another trial")
        return checkpoint

    # -- when a trial ends
    # -----------------------------------------------------------------------------------------------------------------

    def complete(self, trainer: Trainer, training: Training, evaluation: Evaluation) -> None:
        """Everything that must be there before the trial is told complete. Raises TrialLost."""
        plan, handle = training.plan, self.handle
        members = self.experiment.write(
            handle.trial_dir(plan.number), trainer.actors(training), evaluation
        )
        record = TrialRecord(members=members)
        handle.set_attributes(plan.trial_id, record.to_attributes(handle.spec))
        announce(plan.trial_id, handle.storage, self.experiment.published)

    def ended(self, training: Training) -> None:
        """The trial was told: make its picture, and delete what it needed on disk while it trained."""
        self._thread.submit(lambda: self._sweep(training.plan.number))
        trial = self.handle.storage.get_trial(training.plan.trial_id)
        if trial.state == TrialState.COMPLETE:
            self._thread.submit(lambda: self._publish(trial))

    def dropped(self, training: Training) -> None:
        """The trial is not this worker's any longer: where it was finished elsewhere, nothing on disk is needed."""
        with suppress(KeyError):  # deleted
            if self.handle.storage.get_trial(training.plan.trial_id).state.is_finished():
                self._thread.submit(lambda: self._sweep(training.plan.number))

    def make_up(self) -> None:
        """Make the pictures that a killed worker left unmade, and delete what it left behind of finished trials."""
        for trial in self.handle.trials():
            if trial.state.is_finished():
                self._thread.submit(lambda number=trial.number: self._sweep(number))  # type: ignore[misc]
            here = (self.handle.trial_dir(trial.number) / self.experiment.published[-1]).exists()
            if (
                here
                and trial.state == TrialState.COMPLETE
                and announced(self.handle.run_dir, trial, missing=True)
            ):
                self._thread.submit(lambda trial=trial: self._publish(trial))  # type: ignore[misc]

    def _sweep(self, number: int) -> None:
        """Delete what a finished trial needed while it trained, half-written files of killed workers included."""
        folder = self.handle.trial_dir(number)
        for old in (*folder.glob("checkpoint-*.safetensors"), *folder.glob(".*.tmp.*")):
            old.unlink(missing_ok=True)

    def _publish(self, trial: FrozenTrial) -> None:
        folder, title = (
            self.handle.trial_dir(trial.number),
            f"{self.handle.name}, trial {trial.number}",
        )
        try:
            if not (folder / self.experiment.published[0]).exists():
                self.experiment.draw(folder, title)
            publish(self.handle.run_dir, folder, trial)
        except (
            OSError,
            RunError,
        ) as error:  # the trial is complete without it, and the next worker tries again
            said = error.strerror if isinstance(error, OSError) else None
            self._say(f"trial {trial.number}: its picture could not be made ({said or error})")


def _place_of(training: Training) -> Place:
    return total_rollouts(training.members), training.rung


def _place_in_name(path: Path) -> Place:
    """How far the checkpoint in this file is. Names that older versions wrote lack the rung."""
    found = re.match(r"checkpoint-(\d+)(?:-r(\d+))?-", path.name)
    return (int(found[1]), int(found[2] or 0)) if found else (-1, 0)


def note_of(plan: Plan) -> dict[str, Any]:
    """What identifies a trial in its checkpoint."""
    return {"number": plan.number, "seed": plan.seed, "params": plan.params}
