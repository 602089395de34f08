"""Studies that were moved or copied with their folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sweepd.optimize.cli import train as train_command
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.study import StudyHandle
from tests.optimize.conftest import TRAIN, Sweepd, search_app


def test_a_worker_on_a_copied_study_writes_into_the_copy(sweepd: Sweepd, market: Path) -> None:
    sweepd("train", "--n-trials", 1).finish()
    before = {path: path.read_bytes() for path in (market / "runs").rglob("*") if path.is_file()}
    shutil.copytree(market / "runs", market / "copy")
    sweepd("train", "--n-trials", 2, "--storage", "copy/sweepd.db").finish()
    assert {
        path: path.read_bytes() for path in (market / "runs").rglob("*") if path.is_file()
    } == before
    handle = StudyHandle(open_storage(storage_url(None, market / "copy"), create=False), "s")
    assert handle.run_dir.parent == market / "copy"
    assert (handle.trial_dir(1) / "members.safetensors").exists()


def test_the_worker_that_creates_a_study_on_a_server_uses_the_given_runs_dir(
    market: Path, monkeypatch: pytest.MonkeyPatch, postgresql_database: str
) -> None:
    """The workers that join it do the same."""
    monkeypatch.chdir(market)
    used: list[Path] = []
    monkeypatch.setattr(train_command, "work", lambda handle, *_: used.append(handle.run_dir))
    words = ["train", *TRAIN, "--storage", postgresql_database, "--runs-dir", "elsewhere"]
    for _ in range(2):
        CliRunner().invoke(search_app(), words, catch_exceptions=False)
    assert [folder.parent for folder in used] == [market / "elsewhere"] * 2
    assert used[0] == used[1]
