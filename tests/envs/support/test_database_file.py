"""Creation of SQLite files that several processes share."""

from __future__ import annotations

import multiprocessing
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from sweepd.envs.support.database_file import preparing_sqlite
from sweepd.envs.support.errors import InputError


def _prepare(path: Path, ready: Any) -> None:
    with preparing_sqlite(path, "--storage"):
        ready.set()
        signal.pause()


def test_only_one_process_prepares_a_file_until_it_ends_or_is_killed(tmp_path: Path) -> None:
    path, context = tmp_path / "folder" / "study.db", multiprocessing.get_context("fork")
    entered = [context.Event() for _ in range(2)]
    processes = [context.Process(target=_prepare, args=(path, event)) for event in entered]
    processes[0].start()
    try:
        assert entered[0].wait(30.0)
        processes[1].start()
        assert not entered[1].wait(0.5)
        processes[0].kill()
        assert entered[1].wait(30.0)
    finally:
        for process in processes:
            process.kill()
            process.join()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_a_place_without_room_for_the_lock_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    path.with_name("study.db.lock").mkdir()
    with (
        pytest.raises(InputError, match=r"--storage .*study\.db cannot be used \(.*directory"),
        preparing_sqlite(path, "--storage"),
    ):
        pass
    assert not path.exists()
