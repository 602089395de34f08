"""Studies that were moved or copied with their folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from optimize.storage import open_storage, storage_url
from optimize.study import StudyHandle
from tests.optimize.conftest import Sweepd


def test_a_worker_on_a_copied_study_writes_into_the_copy(sweepd: Sweepd, market: Path) -> None:
    sweepd("train", "--n-trials", 1).finish()
    before = {path: path.read_bytes() for path in (market / "runs").rglob("*") if path.is_file()}
    shutil.copytree(market / "runs", market / "copy")
    sweepd("train", "--n-trials", 2, "--storage", "copy/sweepd.db").finish()
    assert {path: path.read_bytes() for path in (market / "runs").rglob("*") if path.is_file()} == before
    handle = StudyHandle(open_storage(storage_url(None, market / "copy"), create=False), "s")
    assert handle.run_dir.parent == market / "copy"
    assert (handle.trial_dir(1) / "members.safetensors").exists()
