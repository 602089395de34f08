"""The pursuit game in `examples/pursuit.py`."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from sweepd.envs.games.opponents import Scripted
from sweepd.envs.games.phase_files import read_phases
from sweepd.envs.games.registry import get_game
from sweepd.envs.games.tensor_game import NoParams
from sweepd.optimize.objectives.games.curriculum import check_curriculum

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture
def pursuit(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return pytest.importorskip("pursuit")


def wrapped(number: float) -> float:
    return (number + 1.0) % 2.0 - 1.0


def test_it_agrees_with_a_scalar_game(pursuit: ModuleType) -> None:
    env = pursuit.Pursuit([NoParams()], 2)
    x, y, _ = env.reset(3)[0].tolist()
    generator = torch.Generator().manual_seed(4)
    for step in range(60):
        action = 2.0 * torch.rand(2, 2, generator=generator) - 1.0
        # The chaser comes nearer along x, so that the game ends before its last step.
        action[0, 0], action[1, 0] = (1.0, 0.0) if x > 0 else (-1.0, 0.0)
        (ax, ay), (bx, by) = action.tolist()
        made = env.step(action)
        x, y = wrapped(x + 0.05 * (bx - ax)), wrapped(y + 0.05 * (by - ay))
        far = max(abs(x), abs(y))
        reward = (far < 0.1) - 0.02 * far
        assert made.reward.tolist() == pytest.approx([reward, -reward], abs=1e-6)
        assert made.terminated.tolist() == [far < 0.1] * 2
        if far < 0.1:
            break
        assert made.truncated.tolist() == [step == 59] * 2
        assert made.obs[0].tolist() == pytest.approx([x, y, 1.0], abs=1e-5)
        assert made.obs[1].tolist() == pytest.approx([-x, -y, -1.0], abs=1e-5)


@pytest.mark.usefixtures("pursuit")
def test_a_runner_that_is_not_caught_wins() -> None:
    game = get_game("pursuit:PURSUIT")
    assert game.versus is not None
    opponents = Scripted(game.scripted(game.params()), 1)
    opponents.configure_member(0, {"straight": 1.0}, "second")
    env = game.versus(
        [game.params()], 200, together=1, device="cpu", opponents=opponents, outcome_rewards=True
    )
    obs = env.reset(1)
    points = torch.zeros(200)
    for _ in range(60):
        # Away from the chaser along both axes, which only its faster axis can follow.
        made = env.step(-obs[:, :2].sign())
        obs = made.obs
        points += torch.where(made.truncated, made.reward, 0.0)
    results = env.results()
    assert results.points[0, 0] > 0.9 * results.games[0, 0]
    assert points.sum() <= results.points[0, 0]


@pytest.mark.usefixtures("pursuit")
def test_its_phases_fit_the_game() -> None:
    check_curriculum(get_game("pursuit:PURSUIT"), read_phases(str(EXAMPLES / "pursuit.toml")), {})
