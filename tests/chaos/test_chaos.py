"""Random kills and suspensions of workers lose, duplicate and change no trial."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweepd.optimize.study.record.database import storage_url
from tests.chaos.harness import prepare, run_chaos


@pytest.mark.slow
def test_a_study_survives_its_workers(tmp_path: Path) -> None:
    prepare(tmp_path)
    figures = run_chaos(
        tmp_path,
        storage_url(str(tmp_path / "s.db"), tmp_path),
        kills=3,
        trials=5,
        at_once=2,
        seed=1,
    )
    assert figures.problems == []
    assert sum(figures.kills.values()) >= 3
