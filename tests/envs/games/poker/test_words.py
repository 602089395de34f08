"""Kuhn and Leduc poker in words."""

from __future__ import annotations

import pytest
import torch

from envs.games.registry import get_game
from envs.games.render import showing
from envs.games.tensor_game import TensorGame
from envs.games.turns_view import TurnsRenderer
from envs.support.errors import InputError


def shown(name: str, seat: int, *actions: int) -> tuple[TensorGame, str]:
    """Return a game after these decisions, and its text."""
    game = get_game(name)
    env, _ = showing(game, game.params(), pictures=False)
    assert isinstance(env, TensorGame)
    env.reset_member(0, 1)
    renderer = TurnsRenderer(env, ("you", "Odo"), seat)
    final = False
    for action in actions:
        final = bool(env.step(torch.tensor([action])).terminated[0])
        renderer.note()
    return env, renderer.text("", final=final).plain


def test_kuhn_in_words() -> None:
    env, text = shown("kuhn", 0, 0, 1, 1)
    own = "JQK"[int(env.reached["cards"][0, 0])]
    assert f"card of you: {own}; of Odo: face down" in text
    assert "decisions: pass, bet, bet" in text
    for line in ("you pass", "Odo bets", "you call"):
        assert f"  {line}\n" in text + "\n"


def test_leduc_in_words() -> None:
    env, text = shown("leduc", 1, 1, 2)
    own, public = (int(env._state["cards"][0, place]) // 2 for place in (1, 2))
    assert f"card of Odo: {'JQK'[own]}; of you: face down; public card: not yet shown" in text
    assert "  you check\n  Odo raises" in text
    _, text = shown("leduc", 1, 1, 2, 1, 1, 2, 0)
    assert f"public card: {'JQK'[public]}" in text
    assert "decisions of round 1: call, raise, call; of round 2: call, raise" in text
    assert text.endswith("Odo raises\n  you fold")


def test_they_have_no_pictures() -> None:
    game = get_game("kuhn")
    with pytest.raises(InputError, match=r"kuhn has no pictures; these have some: .*card-duel"):
        showing(game, game.params(), pictures=True)
