"""Random kills and suspensions of workers lose, duplicate and change no trial."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweepd.optimize.study.record.database import storage_url
from tests.chaos.harness import run_chaos
from tests.chaos.kinds import KINDS


@pytest.mark.slow
@pytest.mark.usefixtures("warmed_up")
@pytest.mark.parametrize("kind", KINDS)
def test_a_study_survives_its_workers(tmp_path: Path, kind: str) -> None:
    KINDS[kind].prepare(tmp_path)
    figures = run_chaos(
        tmp_path,
        storage_url(str(tmp_path / "s.db"), tmp_path),
        KINDS[kind],
        kills=3,
        trials=5,
        at_once=2,
        seed=1,
    )
    assert figures.problems == []
    assert sum(figures.kills.values()) >= 3
