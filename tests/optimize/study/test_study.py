"""The study as a worker sees it: taking a batch, and closing the study."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
import torch
from rich.console import Console

from sweepd.envs.crypto.data.bars import Bars
from sweepd.optimize.objectives.market.experiment import CryptoExperiment
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.database.tables import workers
from sweepd.optimize.study.recovery.registration import claim_closing, list_workers
from sweepd.optimize.study.study import Plan, StudyHandle
from sweepd.optimize.worker.lifecycle import work
from sweepd.optimize.worker.worker import Outcome, Worker, WorkerOptions
from tests.optimize.study_files import make_handle, wait_for
from tests.optimize.worker.test_batch import make_spec


def test_an_error_while_a_batch_is_claimed_puts_its_trials_back(
    bars: Bars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = make_handle(tmp_path, make_spec(bars))
    [held] = handle.ask_batch(1, "w", 9)
    plan = StudyHandle.plan

    def interrupted(
        own: StudyHandle, trial_id: int, shape: dict[str, object] | None, total: int
    ) -> Plan | None:
        if own.storage.get_trial(trial_id).number == 2:
            raise KeyboardInterrupt
        return plan(own, trial_id, shape, total)

    monkeypatch.setattr(StudyHandle, "plan", interrupted)
    with pytest.raises(KeyboardInterrupt):
        handle.ask_batch(3, "w", 9)
    assert [t.state.name for t in handle.trials()] == ["RUNNING", "WAITING", "WAITING"]
    assert list(handle.storage.held()) == [held.trial_id]
    monkeypatch.undo()
    handle.put_back(held.trial_id)
    assert [p.number for p in handle.ask_batch(3, "w", 9)] == [0, 1, 2]


def test_a_worker_that_closes_a_study_sends_heartbeats_until_it_is_closed(
    bars: Bars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker in another container can see only its heartbeats."""
    handle = make_handle(tmp_path, make_spec(bars))
    other = open_storage(handle.storage.url)
    closed = []

    def close(closing: StudyHandle, _: Console) -> None:
        with other.transaction() as session:
            old = other.now(session) - 10_000.0
            session.execute(workers.update().values(host="elsewhere", beat=old))
        wait_for(lambda: list_workers(other, closing.study_id)[0].beat_age < 60.0)
        [worker] = list_workers(other, closing.study_id)
        assert (worker.state, worker.alive) == ("closing", None)
        closed.append(claim_closing(other, closing.study_id, "another"))

    monkeypatch.setattr(Worker, "run", lambda _: Outcome.DONE)
    experiment = CryptoExperiment(handle.spec, bars, torch.device("cpu"))
    assert work(handle, Trainer(experiment), WorkerOptions(0, beat_seconds=0.05), Console(), close)
    assert closed == [False]
    with other.transaction() as session:
        assert session.execute(sa.select(workers)).all() == []
