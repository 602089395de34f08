"""`sweepd status` and the dashboard read: they wait for no writer, and change nothing."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from envs.errors import InputError
from optimize import actions
from optimize.progress import StudyWatch
from tests.optimize.conftest import TRAIN, search_app

NOBODY = 65534


@pytest.fixture
def runs(market: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runs directory of a study without trials."""
    monkeypatch.chdir(market)
    with monkeypatch.context() as patch:
        patch.setattr(actions, "work", lambda *_: None)
        CliRunner().invoke(search_app(), ["train", *TRAIN, "--n-trials", "1"], catch_exceptions=False)
    return market / "runs"


def status(runs: Path) -> str:
    done = CliRunner().invoke(search_app(), ["status", "--json", "--runs-dir", str(runs)], catch_exceptions=False)
    assert [study["study"] for study in json.loads(done.output)] == ["s"]
    return done.output


@pytest.mark.parametrize("begin", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_status_does_not_wait_for_a_writer(runs: Path, begin: str) -> None:
    """It would wait for a minute, and fail then."""
    (runs / "sweepd.db.lock").unlink()
    with closing(sqlite3.connect(runs / "sweepd.db", isolation_level=None)) as writer:
        writer.execute(begin)
        writer.execute("CREATE TABLE other (x)")
        status(runs)
        assert StudyWatch(None, None, runs).progress("s")["total"] == 0
    assert not (runs / "sweepd.db.lock").exists()


def test_a_database_that_is_locked_against_readers_is_named(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optimize.storage.READER_TIMEOUT", 0.1)
    with closing(sqlite3.connect(runs / "sweepd.db")) as original:
        original.execute(f"VACUUM INTO '{runs / 'copy.db'}'")  # a file that is not in WAL mode
    with closing(sqlite3.connect(runs / "copy.db", isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        refused = CliRunner().invoke(search_app(), ["status", "--storage", "runs/copy.db"])
    assert isinstance(refused.exception, InputError)
    assert "database is locked" in str(refused.exception)


@pytest.mark.parametrize("content", [b"", b"nonsense" * 1000], ids=["empty", "noise"])
def test_a_file_that_is_no_database_of_studies_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(content)
    refused = CliRunner().invoke(search_app(), ["status", "--storage", str(path)])
    assert isinstance(refused.exception, InputError)
    assert "x.db" in str(refused.exception)
    assert path.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == ["x.db"]


@pytest.fixture
def protected(runs: Path) -> Iterator[Path]:
    """A copy of the runs directory that nobody but root can write to, in a folder that all can read."""
    folder = Path(tempfile.mkdtemp(prefix="sweepd-test-"))
    shutil.copytree(runs, folder / "runs")
    for path in (folder, folder / "runs"):
        path.chmod(0o755 if path == folder else 0o555)
    for path in (folder / "runs").glob("sweepd.db*"):
        path.chmod(0o444)
    yield folder / "runs"
    (folder / "runs").chmod(0o755)
    shutil.rmtree(folder)


def test_status_reads_what_it_cannot_write(protected: Path) -> None:
    def look() -> None:
        os.chdir("/")
        if os.geteuid() == 0:
            os.setuid(NOBODY)
        status(protected)

    process = multiprocessing.get_context("fork").Process(target=look)
    process.start()
    process.join(60)
    assert process.exitcode == 0
