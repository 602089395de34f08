"""Promotions of a program's files that are killed leave the old champion or the new one, whole."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
from pathlib import Path

import pytest

from sweepd.deploy.programs.candidates import ProgramStudy
from sweepd.deploy.programs.gate import ProgramGate
from sweepd.deploy.registry.registry import Registry
from tests.deploy.builders import promoter_of
from tests.deploy.programs.studies import SLOT, study_of
from tests.deploy.registry_chaos import audit, die_at


def promote(folder: Path, study: ProgramStudy, point: int = 0) -> None:
    """Promote, and kill the process at this point; 0: nowhere."""
    registry = Registry(folder)
    if point:
        die_at(registry, point)
    promoter_of(ProgramGate, study, registry).run()


@pytest.mark.slow
def test_a_promotion_that_is_killed_anywhere_leaves_the_old_champion_or_the_new_one(
    tmp_path: Path,
) -> None:
    start = Registry(tmp_path / "start")
    first = study_of(tmp_path / "weak", 0.5)
    old = promoter_of(ProgramGate, first, start).run().champion
    start.database.engine.dispose()
    better = study_of(tmp_path / "good", 0.9)
    seen = set()
    for point in range(1, 200, 2):
        folder = tmp_path / str(point)
        shutil.copytree(start.folder, folder)
        worker = multiprocessing.get_context("fork").Process(
            target=promote, args=(folder, better, point)
        )
        worker.start()
        worker.join(120)
        champion = audit(folder, slot=SLOT)[0]  # loads the bundles: all hashes are checked
        seen.add(champion)
        if worker.exitcode == 0:
            break
        assert worker.exitcode == -signal.SIGKILL
        found = promoter_of(ProgramGate, better, Registry(folder)).run()
        assert found.outcome == ("promoted" if champion == old else "champion already")
        assert found.looks == 2  # a look that was counted before the kill is the same look
        assert audit(folder, slot=SLOT)[1] == old
    assert worker.exitcode == 0
    assert point > 10
    assert len(seen) == 2
