"""Kuhn and Leduc poker in words."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from sweepd.envs.games.registry import get_game
from sweepd.envs.games.render import showing
from sweepd.envs.games.tensor_game import TensorGame
from sweepd.envs.games.text_card import HEIGHT, WIDTH, text_card
from sweepd.envs.games.turns_view import TurnsRenderer


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
    own, public = (int(env.state["cards"][0, place]) // 2 for place in (1, 2))
    assert f"card of Odo: {'JQK'[own]}; of you: face down; public card: not yet shown" in text
    assert "  you check\n  Odo raises" in text
    _, text = shown("leduc", 1, 1, 2, 1, 1, 2, 0)
    assert f"public card: {'JQK'[public]}" in text
    assert "decisions of round 1: call, raise, call; of round 2: call, raise" in text
    assert text.endswith("Odo raises\n  you fold")


@pytest.mark.parametrize("name", ["kuhn", "leduc"])
def test_pictures_show_the_words(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    game = get_game(name)
    env, renderer = showing(game, game.params(), pictures=True)
    env.reset_member(0, 1)
    first = renderer.picture("game 1", final=False)
    env.step(torch.tensor([1]))
    drawn: list[str] = []

    def card(text: str) -> Image.Image:
        drawn.append(text)
        return text_card(text)

    monkeypatch.setattr("sweepd.envs.games.turns_view.text_card", card)
    second = renderer.picture("game 1", final=False)
    assert first.size == second.size == (WIDTH, HEIGHT)
    assert first.tobytes() != second.tobytes()
    assert drawn == [renderer.text("game 1", final=False).plain]


def test_a_text_of_any_length_is_a_picture_of_the_same_size() -> None:
    for text in ("", "one", "a\n" + "word " * 500, "\n" * 90):
        assert text_card(text).size == (WIDTH, HEIGHT)
    # Nothing is written beyond the right edge.
    wide = text_card("caption\n" + "n" * 80)
    assert wide.getpixel((WIDTH - 2, 40)) == (255, 255, 255)
