"""The game in turns in `examples/nim.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sweepd.envs.games.opponents import Scripted
from sweepd.envs.games.play import random_actions
from sweepd.envs.games.registry import get_game

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def test_the_last_stone_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    game = get_game("nim:NIM")
    env = game.make([game.params()], 50, together=1, device="cpu")
    obs, generator, won = env.reset(0), torch.Generator().manual_seed(1), [0, 0]
    for _ in range(60):
        mover, action = env.to_move(), random_actions(env, generator)
        made = env.step(action)
        left = obs.scatter_add(1, action[:, :1], -1.0 - action[:, 1:])
        assert torch.equal(made.terminated, left.sum(1) == 0)
        assert torch.equal(made.obs[~made.terminated], left[~made.terminated])
        winner = made.reward.argmax(1)[made.terminated]
        assert torch.equal(winner, mover[made.terminated])
        assert not bool(made.reward[~made.terminated].any())
        for seat in (0, 1):
            won[seat] += int((winner == seat).sum())
        obs = made.obs
    env.check()
    assert min(won) > 100
    assert game.versus is not None
    versus = game.versus(
        [game.params()],
        20,
        together=1,
        device="cpu",
        opponents=Scripted(game.scripted(game.params()), 1),
    )
    versus.reset(0)
    for _ in range(30):
        versus.step(random_actions(versus, generator))
    versus.check()
    assert float(versus.results().games.sum()) > 20
