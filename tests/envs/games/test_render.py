"""Rendering of Gymnasium's environments."""

from __future__ import annotations

import pytest
import torch

from sweepd.envs.games.registry import get_game
from sweepd.envs.games.render import showing
from sweepd.envs.support.errors import InputError

MODULE = "gym:tests.envs.external.registering"


def test_an_environment_draws_itself_and_never_the_next_episode() -> None:
    game = get_game(f"{MODULE}:tests/Drawn-v0")
    env, renderer = showing(game, game.params(), pictures=True)
    env.reset_member(0, 1)
    assert renderer.fps == 10.0
    seen = []
    for _ in range(4):
        made = env.step(torch.zeros(1, dtype=torch.int64))
        picture = renderer.picture("", final=bool(made.truncated[0]))
        assert picture.size == (30, 20)
        seen.append(picture.getpixel((0, 0)))
    assert [red for red, _, _ in seen] == [50, 100, 100, 50]  # the third step ends the episode


def test_an_environment_without_pictures_is_named() -> None:
    game = get_game(f"{MODULE}:tests/Counter-v0")
    with pytest.raises(
        InputError, match=r"Counter-v0 draws no pictures \(its render modes: none\)"
    ):
        showing(game, game.params(), pictures=True)
    env, renderer = showing(game, game.params(), pictures=False)
    env.reset_member(0, 1)
    assert renderer.text("step 0", final=False).startswith("step 0\nobserves")


def test_an_environment_whose_drawing_fails_is_named() -> None:
    game = get_game(f"{MODULE}:tests/Blank-v0")
    with pytest.raises(
        InputError, match="Blank-v0 cannot be shown: ValueError: nothing to draw with"
    ):
        showing(game, game.params(), pictures=True)


def test_a_wrapped_environment_is_shown_as_it_is_played() -> None:
    game = get_game(f"{MODULE}:tests/Drawn-v0")
    params = game.params(wrappers=['frame-stack {"frames": 2}'])
    env, renderer = showing(game, params, pictures=True)
    env.reset_member(0, 1)
    assert env.state_dim == 6
    env.step(torch.zeros(1, dtype=torch.int64))
    assert renderer.picture("", final=False).getpixel((0, 0))[0] == 50
