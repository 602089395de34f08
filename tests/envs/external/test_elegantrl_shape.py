"""`examples/elegantrl_env.py`: an environment in ElegantRL's shape, as it is and as a game."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

import sweepd
from sweepd.parts import NoParams
from sweepd.testing import check_env

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SMALL = {"budget": 256, "rungs": 2, "horizon": 16, "n_envs": 4, "episodes": 2, "seeds": 1}


@pytest.fixture
def reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SWEEPD_STORAGE", raising=False)
    return pytest.importorskip("elegantrl_env")


def test_the_game_has_the_rules_of_the_environment(reach: ModuleType) -> None:
    plain, game = reach.Reach(64), reach.ReachGame([NoParams()], envs_per_member=64)
    plain.state, plain.age = game.reset(3).clone(), torch.zeros(64)
    generator, ends = torch.Generator().manual_seed(4), 0
    for _ in range(60):
        action = 4.0 * torch.rand(64, 1, generator=generator) - 2.0
        state, reward, done, _ = plain.step(action)
        made = game.step(action)
        ended = made.terminated | made.truncated
        torch.testing.assert_close(made.reward, reward, rtol=0, atol=1e-6)
        assert torch.equal(ended, done)
        torch.testing.assert_close(made.obs[~done], state[~done], rtol=0, atol=1e-6)
        ends += int(done.sum())
        plain.state = made.obs.clone()  # the starts that the game drew
    assert ends > 64  # by truncation, and by reaching the goal


def test_both_keep_the_laws_of_environments(reach: ModuleType) -> None:
    check_env(reach.ReachGame)
    check_env("elegantrl_env:make")


@pytest.mark.parametrize("name", ["make", "REACH"])
@pytest.mark.usefixtures("reach")
def test_a_study_repeats_its_numbers(name: str) -> None:
    settings = {**SMALL, "env": f"elegantrl_env:{name}", "threads": 1, "gpu": "cpu", "slots": 4}
    values = []
    for study_name in ("one", "two"):
        study = sweepd.create_study(study_name, n_trials=1, fresh_seeds=0, **settings)
        study.run()
        values.append(study.trials()["value"].iloc[0])
    assert values[0] == values[1]
