"""Pausing a study: real workers release their trials, wait, and resume with the same numbers."""

from __future__ import annotations

import functools
import signal
import time
from pathlib import Path

import pytest
from optuna.trial import TrialState

from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.pause import PauseWatch, pause_study, resume_study
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.recovery.registration import WorkerRecord, list_workers
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker import worker as worker_module
from tests.optimize.conftest import Sweepd
from tests.optimize.study_files import count, numbers, open_handle, training_begun, wait_for

LONG = ("--budget", 960, "--pruner", "none", "--sampler", "random")
ENDLESS = ("--budget", 200_000, "--pruner", "none")


@pytest.fixture(autouse=True)
def attentive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers check for a pause several times a second."""
    monkeypatch.setattr(worker_module, "PauseWatch", functools.partial(PauseWatch, interval=0.1))


def _workers(folder: Path) -> list[WorkerRecord]:
    handle = open_handle(folder)
    return list_workers(handle.storage, handle.study_id)


def _paused(folder: Path) -> bool:
    return count(folder, "SELECT count(*) FROM sweepd_workers WHERE state = 'paused'") > 0


@pytest.mark.slow
def test_a_study_paused_repeatedly_equals_an_uninterrupted_one(
    market: Path, sweepd: Sweepd
) -> None:
    sweepd("train", "--n-trials", 2, *LONG, "--runs-dir", "alone/runs").finish()
    worker = sweepd("train", "--n-trials", 2, *LONG)
    interruptions = 0
    for _ in range(3):
        wait_for(lambda: training_begun(market) or worker.ended)
        handle = open_handle(market)
        pause_study(handle.storage, handle.study_id)
        wait_for(lambda: _paused(market) or worker.ended)
        interruptions += not worker.ended
        assert TrialState.RUNNING not in {t.state for t in handle.trials()}
        resume_study(handle.storage, handle.study_id)
    out = worker.finish()
    assert interruptions >= 2, "too quick to be interrupted"
    assert out.count("is paused") == out.count("was resumed") == interruptions
    assert "requeued at rollout" in out
    assert numbers(market) == numbers(market / "alone")
    assert {t.state for t in open_handle(market).trials()} == {TrialState.COMPLETE}


def test_a_paused_worker_releases_its_trials_waits_and_stops_on_sigterm(
    market: Path, sweepd: Sweepd
) -> None:
    worker = sweepd("train", "--n-trials", 2, *ENDLESS)
    wait_for(lambda: training_begun(market))
    began = time.monotonic()
    out = sweepd("pause", "s").finish()
    assert time.monotonic() - began < 10
    assert "paused, GPU memory released" in out
    assert "sweepd resume s" in out
    assert {t.state for t in open_handle(market).trials()} == {TrialState.WAITING}
    [seen] = _workers(market)
    assert (seen.state, seen.alive, seen.info.get("trials")) == ("paused", True, [])
    assert "paused since" in sweepd("pause", "s").finish()
    worker.signal(signal.SIGINT)
    assert "stopped by a signal" in worker.finish()


def test_a_worker_started_on_a_paused_study_waits_for_resume(market: Path, sweepd: Sweepd) -> None:
    sweepd("train", "--n-trials", 1, "--trials-per-batch", 1).finish()
    assert "no worker" not in sweepd("pause", "s").finish()
    worker = sweepd("train", "--n-trials", 2, "--trials-per-batch", 1)
    wait_for(lambda: "s is paused; this worker waits" in worker.output.read_text())
    wait_for(lambda: _paused(market))
    first = _workers(market)[0]
    time.sleep(1.0)
    assert len(open_handle(market).trials()) == 1
    assert _workers(market)[0].worker == first.worker
    assert "is resumed" in sweepd("resume", "s").finish()
    worker.finish()
    assert len(open_handle(market).trials()) == 2
    assert "was not paused" in sweepd("resume", "s").finish()
    assert "'none' is not in" in sweepd("pause", "none").finish(2)


@pytest.mark.slow
def test_pauses_are_not_counted_as_deaths(market: Path, sweepd: Sweepd) -> None:
    """Only attempts that ended with the death of a worker lead to quarantine."""
    worker = sweepd("train", "--n-trials", 1, "--trials-per-batch", 1, *ENDLESS)
    for _ in range(3):
        wait_for(lambda: training_begun(market))
        handle = open_handle(market)
        pause_study(handle.storage, handle.study_id)
        wait_for(lambda: _paused(market))
        resume_study(handle.storage, handle.study_id)
    wait_for(lambda: training_begun(market))
    worker.signal(signal.SIGKILL)
    worker.finish(-signal.SIGKILL)
    after = sweepd("train", "--n-trials", 1, "--trials-per-batch", 1, *ENDLESS)
    wait_for(lambda: "trial 0: " in after.output.read_text())
    assert "requeued, its worker died" in after.output.read_text()


def test_an_unavailable_database_neither_pauses_nor_resumes(
    market: Path, sweepd: Sweepd, tmp_path: Path
) -> None:
    sweepd("train", "--n-trials", 1, "--trials-per-batch", 1).finish()
    handle = StudyHandle(open_storage(storage_url(None, market / "runs"), busy_timeout=0.1), "s")
    assert pause_study(handle.storage, handle.study_id) is None
    watch = PauseWatch(handle.storage, handle.study_id, interval=0.05)
    with watch:
        assert watch.paused
        handle.storage.engine.dispose()
        database = market / "runs" / "sweepd.db"
        database.rename(tmp_path / "away.db")
        database.mkdir()
        time.sleep(0.3)
        assert watch.paused
        database.rmdir()
        (tmp_path / "away.db").rename(database)
        assert resume_study(handle.storage, handle.study_id)
        wait_for(lambda: not watch.paused)
