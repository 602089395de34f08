"""Promotions that are killed or run concurrently leave the old champion or the new one."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from sweepd.deploy.games.candidates import GameStudy
from sweepd.deploy.games.gate import GameGate
from sweepd.deploy.gates import bundle_types
from sweepd.deploy.registry.registry import Registry
from tests.deploy.builders import promoter_of
from tests.deploy.games.players import GOOD, SLOT, WEAK, study_of
from tests.deploy.registry_chaos import audit, die_at

GAMES = 10  # fewer cannot be ahead in a majority surely enough at a second look


def promote(folder: Path, study: GameStudy, point: int = 0) -> None:
    """Promote, and kill the process at this point; 0: nowhere."""
    torch.set_num_threads(1)
    registry = Registry(folder)
    if point:
        die_at(registry, point)
    promoter_of(GameGate, study, registry, games=GAMES).run()


def in_processes(folder: Path, studies: Sequence[GameStudy], point: int = 0) -> list[int | None]:
    """Promote the studies in concurrent processes; return their exit codes."""
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=promote, args=(folder, study, point)) for study in studies]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    return [worker.exitcode for worker in workers]


@pytest.mark.slow
def test_a_promotion_that_is_killed_anywhere_leaves_the_old_champion_or_the_new_one(
    tmp_path: Path,
) -> None:
    start = Registry(tmp_path / "start")
    old = (
        promoter_of(GameGate, study_of(tmp_path / "weak", [WEAK]), start, games=GAMES)
        .run()
        .champion
    )
    start.database.engine.dispose()
    better = study_of(tmp_path / "good", [GOOD])
    seen = set()
    for point in range(1, 200, 4):  # every one is tried where bundles of markets are killed
        folder = tmp_path / str(point)
        shutil.copytree(start.folder, folder)
        (code,) = in_processes(folder, [better], point)
        champion = audit(folder, slot=SLOT)[0]
        seen.add(champion)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        found = promoter_of(GameGate, better, Registry(folder), games=GAMES).run()
        assert found.outcome == ("promoted" if champion == old else "champion already")
        assert found.looks == 2  # a look that was counted before the kill is the same look
        assert audit(folder, slot=SLOT)[1] == old
    assert code == 0
    assert point > 10
    assert len(seen) == 2


def test_of_promoters_that_race_the_best_player_wins(tmp_path: Path) -> None:
    studies = [
        study_of(tmp_path / name, [push]) for name, push in (("a", WEAK), ("b", GOOD), ("c", GOOD))
    ]
    registry = Registry(tmp_path / "deployments")
    assert in_processes(registry.folder, studies) == [0, 0, 0]
    champion, previous, _, moves = audit(registry.folder, slot=SLOT)
    assert champion is not None
    best = registry.bundle(champion, *bundle_types())
    assert (
        best.manifest.origin.members_sha256
        == studies[1].complete[0].user_attrs["sweepd:members"]["sha256"]
    )
    assert moves == (1 if previous is None else 2)
