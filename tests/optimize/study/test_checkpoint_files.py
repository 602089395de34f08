"""Files and records of checkpoints: a kill between the two, and a folder that is deleted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from optuna.trial import TrialState

from sweepd.agents.engine.description import DESCRIPTION, packed
from sweepd.envs.crypto.data.bars import Bars
from sweepd.optimize.objectives.members.trainer import MemberTraining, Trainer
from sweepd.optimize.study.checkpoint import MemberState
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.keys import CHECKPOINT_KEY
from sweepd.optimize.study.space.search_space import Settings
from sweepd.optimize.study.study import Plan, StudyHandle
from sweepd.optimize.worker.records import Records
from tests.optimize.study_files import make_handle
from tests.optimize.worker.test_batch import make_spec


class Killed(BaseException):
    """Ends a worker at the place where it is raised."""


class OneWorker:
    """The `Records` of a worker that holds one trial of one member, and its output."""

    def __init__(self, handle: StudyHandle, trial_id: int) -> None:
        self.handle, self.said = handle, list[str]()
        run = Trainer.__new__(Trainer)  # checkpoints need no environments
        self.records = Records(handle, run, lambda _: None, self.said.append)
        trial = handle.storage.get_trial(trial_id)
        reported = dict(trial.intermediate_values)
        plan = Plan(
            trial_id,
            trial.number,
            {},
            Settings({}, {}, {}),
            0,
            None,
            reported,
            trial.user_attrs.get(CHECKPOINT_KEY),
        )
        self.training = MemberTraining(plan, members=[MemberState()])

    def train(self, rollouts: int, rung: int, seconds: float) -> None:
        state = {"weights": torch.full((2,), float(rollouts)), DESCRIPTION: packed({})}
        self.training.members = [MemberState(state, state, rollouts)]
        self.training.rung, self.training.seconds = rung, seconds

    def report(self, rung: int) -> None:
        self.handle.storage.set_trial_intermediate_value(self.training.plan.trial_id, rung, 0.5)

    @property
    def files(self) -> list[Path]:
        return sorted(self.handle.run_dir.glob("trial-*/checkpoint-*"))


@pytest.fixture
def worker(bars: Bars, tmp_path: Path) -> OneWorker:
    handle = make_handle(tmp_path, make_spec(bars))
    [trial_id] = handle.storage.claim_new(handle.study_id, "w", 1)
    return OneWorker(handle, trial_id)


def _next_worker(dead: OneWorker) -> OneWorker:
    """Another process that takes the trial, and has resumed it."""
    trial_id = dead.training.plan.trial_id
    dead.handle.storage.set_trial_state_values(trial_id, TrialState.WAITING)
    handle = StudyHandle(open_storage(dead.handle.storage.url, create=False), "s")
    assert handle.storage.claim_waiting(handle.study_id, trial_id, "w2", 1)
    found = OneWorker(handle, trial_id)
    found.records.resume(found.training)
    return found


def _without_database(records: Records, training: MemberTraining) -> None:
    records.save_unrecorded(training)


def _killed_before_the_record(records: Records, training: MemberTraining) -> None:
    records.checkpoints([training])
    with pytest.raises(Killed):
        records.wait()


@pytest.mark.parametrize("write", [_without_database, _killed_before_the_record])
@pytest.mark.parametrize("rung", [0, 1])
def test_a_recorded_file_is_not_overwritten(
    worker: OneWorker,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[Records, MemberTraining], None],
    rung: int,
) -> None:
    """Rung 0: nothing but the time spent has changed since. Rung 1: the rung was evaluated and
    reported since.
    """
    records = worker.records
    worker.train(8, 0, seconds=1.0)
    records.checkpoints([worker.training])
    records.wait()
    if rung:
        worker.report(1)
    worker.train(8, rung, seconds=2.0)

    def kill(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(worker.handle.storage, "write", kill)
        if rung or write is _without_database:
            write(records, worker.training)
        else:
            records.checkpoint_now(worker.training)  # has nothing to write
            records.checkpoints([worker.training])
            records.wait()
    again = _next_worker(worker)
    assert again.said == [f"trial 0 resumes from rung {rung} (rollout 8)"]
    assert again.training.members[0].learner is not None
    again.train(9, rung, seconds=3.0)
    again.records.checkpoint_now(again.training)
    assert len(again.files) == 1


def test_a_trial_that_has_not_begun_has_no_checkpoint(worker: OneWorker) -> None:
    worker.records.checkpoints([worker.training])
    worker.records.wait()
    worker.records.checkpoint_now(worker.training)
    worker.records.save_unrecorded(worker.training)
    assert worker.files == []


def test_the_checkpoint_that_recreates_a_deleted_folder_reports_it(worker: OneWorker) -> None:
    worker.train(8, 0, seconds=1.0)
    worker.records.checkpoints([worker.training])
    worker.records.wait()
    shutil.rmtree(worker.handle.run_dir)
    worker.train(9, 0, seconds=2.0)
    worker.records.checkpoints([worker.training])
    worker.records.wait()
    assert worker.said == [f"the folder {worker.handle.run_dir} was deleted; created it again"]
    assert len(worker.files) == 1
