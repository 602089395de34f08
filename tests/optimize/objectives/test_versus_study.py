"""Studies on PettingZoo's games of two: they learn, and say whether the game is zero-sum."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.optimize.conftest import Running
from tests.optimize.objectives.test_role_study import SPACE, words
from tests.optimize.study_files import open_handle

STONES = "pettingzoo:tests.envs.external.stones_module"
BIDS = "versus:tests.envs.external.duel_module"


@pytest.mark.parametrize(
    ("name", "more", "least"),
    [
        (STONES, ("--opponents", "past=0.5,self=0.5"), 0.85),
        (BIDS, ("--opponents", "league=0.5,self=0.5", "--trials-per-batch", "1"), 0.75),
    ],
)
def test_a_policy_learns_to_beat_random_play(
    name: str, more: tuple[str, ...], least: float, tmp_path: Path
) -> None:
    (tmp_path / "tiny.toml").write_text(SPACE)
    asked = words(name, "--budget", "12288", "--rungs", "2", "--no-auto-deploy", *more)
    out = Running(asked, tmp_path, tmp_path / "out.txt").finish()
    assert f"{name}: zero-sum in 1024 steps of random play" in out
    (trial,) = open_handle(tmp_path).trials()
    assert trial.value > least
    if name == BIDS:
        (report,) = tmp_path.glob("runs/*/league.json")
        assert {"trial 0", "random"} <= set(json.loads(report.read_text())["players"])
