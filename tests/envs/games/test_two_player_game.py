"""The game of two players in `examples/two_player_game.py`."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import ModuleType

import pytest
import torch

from sweepd.envs.games.opponents import Scripted
from sweepd.envs.games.registry import get_game

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture
def duel(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return pytest.importorskip("two_player_game")


def test_every_pair_of_hands(duel: ModuleType) -> None:
    hands = torch.tensor(list(itertools.product(range(3), repeat=2)))
    env = duel.Duel([duel.Rounds(rounds=2)], 18)
    assert not env.reset(0).any()
    made = env.step(hands.flatten())
    wins = [(1, 0), (2, 1), (0, 2)]
    points = [((own, other) in wins) - ((other, own) in wins) for own, other in hands.tolist()]
    assert made.reward.view(9, 2).tolist() == [[point, -point] for point in points]
    assert made.obs.view(9, 2, 2, 3).argmax(3).tolist() == [
        [[own, other], [other, own]] for own, other in hands.tolist()
    ]
    assert not (made.terminated | made.truncated).any()
    assert env.step(hands.flatten()).truncated.all()


@pytest.mark.usefixtures("duel")
def test_it_has_its_scripted_player_as_opponent() -> None:
    game = get_game("two_player_game:DUEL")
    assert game.versus is not None
    opponents = Scripted(game.scripted(game.params()), 1)
    env = game.versus(
        [game.params()], 50, together=1, device="cpu", opponents=opponents, outcome_rewards=True
    )
    obs = env.reset(1)
    # The imitator shows one's own last hand, and rock at first.
    for _ in range(7):
        made = env.step((obs[:, :3].argmax(1) + 1) % 3)
        obs = made.obs
    assert made.truncated.all()
    assert made.reward.tolist() == [1.0] * 50
    assert env.results().points.tolist() == [[50.0]]
