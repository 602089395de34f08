"""A database that goes away and comes back, or doesn't."""

from __future__ import annotations

import functools
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import optuna
import pytest
import sqlalchemy as sa
from optuna.trial import TrialState

from sweepd.envs.support.errors import TryAgainLater
from sweepd.optimize.cli import train as train_command
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.database.patience import Patience
from sweepd.optimize.study.database.storage import StudyStorage
from sweepd.optimize.study.record.database import is_away, storage_url
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker.reporting import TrialReporter
from sweepd.optimize.worker.worker import WorkerOptions
from tests.optimize.conftest import Sweepd
from tests.optimize.study_files import hold, numbers, open_handle, wait_for
from tests.postgres_server import PostgresServer

AWAY = sa.exc.OperationalError("SELECT 1", {}, Exception("database is locked"))


def _fails(times: int, error: Exception = AWAY) -> Callable[[], str]:
    left = times

    def operation() -> str:
        nonlocal left
        if left:
            left -= 1
            raise error
        return "done"

    return operation


def test_operations_are_retried_until_the_database_is_available_and_reported_once() -> None:
    patience = Patience(60.0)
    said: list[str] = []
    patience.say = said.append
    assert patience(_fails(3)) == "done"
    assert patience.retries == 3
    assert [line.split(" (")[0].split(" after")[0] for line in said] == [
        "the database is unavailable",
        "the database is available again",
    ]


def test_retries_end_at_the_limit_and_sooner_during_a_stop() -> None:
    patience = Patience(0.5)
    began = time.monotonic()
    with pytest.raises(TryAgainLater, match="database is locked"):
        patience(_fails(1000))
    assert 0.5 < time.monotonic() - began < 5
    patience = Patience(3600.0)
    patience.stopping = lambda: True
    with pytest.raises(TryAgainLater):
        patience(_fails(1000))


def test_operations_that_the_database_refuses_are_not_retried() -> None:
    for error in (
        sa.exc.IntegrityError("x", {}, Exception()),
        ValueError("no"),
        KeyError("no such trial"),
    ):
        patience = Patience(60.0)
        with pytest.raises(type(error)):
            patience(_fails(1, error))
        assert patience.retries == 0
    wrapped = optuna.exceptions.StorageInternalError("commit")
    assert not is_away(wrapped)
    wrapped.__cause__ = AWAY
    assert is_away(wrapped)


def test_a_nested_operation_is_retried_with_the_outer_one() -> None:
    patience = Patience(60.0)
    part = _fails(1)

    def whole() -> str:
        return patience(part)

    assert patience(whole) == "done"
    assert patience.retries == 1


def test_operations_wait_for_a_locked_file_and_write_once(tmp_path: Path) -> None:
    storage: StudyStorage = open_storage(
        storage_url(str(tmp_path / "s.db"), tmp_path), busy_timeout=0.05
    )
    study = optuna.create_study(storage=storage, study_name="s")
    [trial_id] = storage.claim_new(study._study_id, "w", 1)
    storage.patience.limit = 60.0
    with closing(sqlite3.connect(tmp_path / "s.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        storage.patience.say = lambda _: other.rollback() if other.in_transaction else None
        storage.set_trial_intermediate_value(trial_id, 1, 0.5)
        assert storage.patience.retries == 1
        other.execute("BEGIN IMMEDIATE")
        storage.set_trial_state_values(trial_id, TrialState.COMPLETE, [1.0])
        assert storage.patience.retries == 2
        (trial,) = study.get_trials()
        assert trial.state == TrialState.COMPLETE
        assert trial.intermediate_values == {1: 0.5}
        [lost] = storage.claim_new(study._study_id, "w", 2)
        optuna.load_study(study_name="s", storage=storage.url).tell(1, 2.0)
        other.execute("BEGIN IMMEDIATE")
        assert storage.give_up(lost) == "was set to COMPLETE by another program"
    assert storage.patience.retries == 3


@pytest.mark.extra
def test_stopping_the_server_during_training_loses_and_repeats_nothing(
    market: Path,
    sweepd: Sweepd,
    postgresql: PostgresServer,
    postgresql_database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """First for a moment, then for longer than the worker retries: it exits with code 75, and the
    next worker resumes from the files.
    """
    study = ("--n-trials", 3, "--budget", 1920, "--pruner", "none", "--sampler", "random")
    sweepd("train", *study, "--runs-dir", "alone/runs").finish()
    monkeypatch.setattr(
        train_command, "WorkerOptions", functools.partial(WorkerOptions, patience_seconds=4.0)
    )
    hold(monkeypatch, TrialReporter, "report", market)
    hold(monkeypatch, StudyHandle, "judge", market)
    here = ("--storage", postgresql_database)
    first = sweepd("train", *study, *here)
    try:
        wait_for((market / "report.reached").exists)
        postgresql.stop()
        (market / "report.go").touch()
        wait_for(lambda: "the database is unavailable" in first.output.read_text())
        postgresql.start()
        wait_for(lambda: "the database is available again" in first.output.read_text())
        wait_for((market / "judge.reached").exists)
        postgresql.stop()
        (market / "judge.go").touch()
        out = first.finish(75)
        assert "after a restart, the worker resumes from the last checkpoints" in out
        assert "does not answer now" in sweepd("train", *study, *here).finish(75)
    finally:
        postgresql.stop()
        postgresql.start()
    handle = open_handle(market, postgresql_database)
    assert {t.state for t in handle.trials()} == {TrialState.RUNNING}
    # A slow first rung also left checkpoints from within it (-r000-), which may be recorded.
    assert len(list(handle.run_dir.glob("trial-*/checkpoint-*-r001-*.safetensors"))) == 3
    out = sweepd("train", *study, *here).finish()
    assert "its worker died" in out
    assert out.count("resumes from rung 1") == 3
    assert numbers(market, postgresql_database) == numbers(market / "alone")
    assert not list(handle.run_dir.glob("trial-*/checkpoint-*.safetensors"))


def test_a_worker_waits_for_a_locked_database_and_continues(market: Path, sweepd: Sweepd) -> None:
    """The dashboard, a backup, or a person with sqlite3 may hold the file for longer than the
    driver waits.
    """
    worker = sweepd("train", "--n-trials", 3, "--pruner", "none")
    database = market / "runs" / "sweepd.db"
    while not (database.exists() and "training trials" in worker.output.read_text()):
        assert not worker.ended, worker.output.read_text()
        time.sleep(0.02)
    with closing(sqlite3.connect(database, isolation_level=None, timeout=30)) as other:
        other.execute("BEGIN IMMEDIATE")
        time.sleep(1)
        other.rollback()
    worker.finish()
    with closing(sqlite3.connect(database)) as other:
        assert other.execute("SELECT state, count(*) FROM trials GROUP BY state").fetchall() == [
            ("COMPLETE", 3)
        ]
