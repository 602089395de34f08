"""The study as a worker sees it: taking a batch, and closing the study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import torch
from rich.console import Console

from sweepd.envs.crypto.data.bars import Bars
from sweepd.optimize.objectives.market.experiment import CryptoExperiment
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.database.storage import StudyStorage, TrialWrite
from sweepd.optimize.study.database.tables import workers
from sweepd.optimize.study.recovery.registration import claim_closing, list_workers
from sweepd.optimize.study.search import Search
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker.lifecycle import work
from sweepd.optimize.worker.worker import Outcome, Worker, WorkerOptions
from tests.optimize.study_files import make_handle, wait_for
from tests.optimize.worker.test_batch import make_spec


def test_an_error_while_a_batch_is_claimed_puts_its_trials_back(
    bars: Bars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = make_handle(tmp_path, make_spec(bars))
    [held] = handle.ask_batch(1, "w", 9)
    draw = Search.draw

    def interrupted(
        own: Search, storage: Any, name: str, trial_id: int, number: int, *more: Any
    ) -> Any:
        if number == 2:
            raise KeyboardInterrupt
        return draw(own, storage, name, trial_id, number, *more)

    monkeypatch.setattr(Search, "draw", interrupted)
    with pytest.raises(KeyboardInterrupt):
        handle.ask_batch(3, "w", 9)
    assert [t.state.name for t in handle.trials()] == ["RUNNING", *3 * ["WAITING"]]
    assert list(handle.storage.held()) == [held.trial_id]
    monkeypatch.undo()
    handle.put_back(held.trial_id)
    assert [p.number for p in handle.ask_batch(3, "w", 9)] == [0, 1, 2]


def test_a_report_writes_the_attributes_that_have_changed(
    bars: Bars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = make_handle(tmp_path, make_spec(bars))
    [plan] = handle.ask_batch(1, "w", 1)
    write, written = StudyStorage.write, []

    def noted(own: StudyStorage, writes: Sequence[TrialWrite]) -> set[int]:
        written.append(dict(writes[0].attributes))
        return write(own, writes)

    monkeypatch.setattr(StudyStorage, "write", noted)
    handle.report(plan, 1, 0.5, {"a": 1, "b": 2.0})
    handle.report(plan, 2, 0.6, {"a": 1, "b": 3.0, "c": [0.5]})
    assert written == [{"a": 1, "b": 2.0}, {"b": 3.0, "c": [0.5]}]
    assert handle.trials()[0].user_attrs == {"a": 1, "b": 3.0, "c": [0.5]}


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
