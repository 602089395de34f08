"""`sweepd status` and the dashboard read: they wait for no writer, and change nothing."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sweepd.envs.support.errors import InputError
from sweepd.optimize.cli import train as train_command
from sweepd.optimize.cli.progress import StudyWatch
from tests.optimize.conftest import TRAIN, search_app


def drop_capabilities() -> None:
    """Make the permissions of files hold for this process where root runs it: capset(2) with no
    capability at all.

    The user stays root, so everything that only root may read (a virtual environment in a 0700
    folder) is still found.
    """
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    none = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable, 64 bits each
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capset(header, none):
        raise OSError(ctypes.get_errno(), "capset")


@pytest.fixture
def runs(market: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runs directory of a study without trials."""
    monkeypatch.chdir(market)
    with monkeypatch.context() as patch:
        patch.setattr(train_command, "work", lambda *_: None)
        CliRunner().invoke(
            search_app(), ["train", *TRAIN, "--n-trials", "1"], catch_exceptions=False
        )
    return market / "runs"


def status(runs: Path) -> str:
    done = CliRunner().invoke(
        search_app(), ["status", "--json", "--runs-dir", str(runs)], catch_exceptions=False
    )
    assert [study["study"] for study in json.loads(done.output)] == ["s"]
    return done.output


@pytest.mark.parametrize("begin", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_status_does_not_wait_for_a_writer(runs: Path, begin: str) -> None:
    """Otherwise it would wait for a minute and then fail."""
    (runs / "sweepd.db.lock").unlink()
    with closing(sqlite3.connect(runs / "sweepd.db", isolation_level=None)) as writer:
        writer.execute(begin)
        writer.execute("CREATE TABLE other (x)")
        status(runs)
        assert StudyWatch(None, None, runs).progress("s")["total"] == 0
    assert not (runs / "sweepd.db.lock").exists()


def test_a_database_that_is_locked_against_readers_is_named(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweepd.optimize.study.record.database.READER_TIMEOUT", 0.1)
    with closing(sqlite3.connect(runs / "sweepd.db")) as original:
        original.execute(f"VACUUM INTO '{runs / 'copy.db'}'")  # a file that is not in WAL mode
    with closing(sqlite3.connect(runs / "copy.db", isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        refused = CliRunner().invoke(search_app(), ["status", "--storage", "runs/copy.db"])
    assert isinstance(refused.exception, InputError)
    assert "database is locked" in str(refused.exception)


@pytest.mark.parametrize("content", [b"", b"nonsense" * 1000], ids=["empty", "noise"])
def test_a_file_that_is_no_study_database_is_not_changed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(content)
    refused = CliRunner().invoke(search_app(), ["status", "--storage", str(path)])
    assert isinstance(refused.exception, InputError)
    assert "x.db" in str(refused.exception)
    assert path.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == ["x.db"]


@pytest.fixture
def protected(runs: Path) -> Iterator[Path]:
    """The runs directory, where neither the folder nor the database's files can be written to."""
    files = list(runs.glob("sweepd.db*"))
    for path in files:
        path.chmod(0o444)
    runs.chmod(0o555)
    yield runs
    runs.chmod(0o755)
    for path in files:
        path.chmod(0o644)


@pytest.mark.skipif(
    os.geteuid() == 0 and sys.platform != "linux", reason="root writes to every file"
)
def test_status_reads_what_it_cannot_write(protected: Path) -> None:
    def look() -> None:
        if os.geteuid() == 0:
            drop_capabilities()
        with pytest.raises(PermissionError):
            (protected / "new").touch()
        status(protected)

    process = multiprocessing.get_context("fork").Process(target=look)
    process.start()
    process.join(60)
    assert process.exitcode == 0
