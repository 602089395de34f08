"""Drawings of hockey games, and hockey by its name."""

from __future__ import annotations

import pytest
import torch
from PIL import Image, ImageColor

from sweepd.envs.games.hockey.players import PLAYERS
from sweepd.envs.games.hockey.render import (
    HEIGHT,
    SCALE,
    TEAMS,
    TOP,
    WIDTH,
    HockeyScene,
    Racket,
    as_image,
    as_text,
    outline,
    scene_of,
)
from sweepd.envs.games.registry import get_game
from sweepd.envs.games.render import HockeyRenderer, showing

AT = (-2.0, 1.5)  # of the left racket
SCENE = HockeyScene(
    (Racket(*AT, 0.0, holds=False), Racket(3.0, -1.0, 1.2, holds=True)),
    (1.0, 1.0),
    ((-1.0, 1.0), (0.5, -2.0)),
    (2, 1),
    75,
)


def at(image: Image.Image, x: float, y: float) -> tuple[int, ...]:
    """Return the colour of a place of the field."""
    column, row = WIDTH / 2 + SCALE * x, (HEIGHT + TOP) / 2 - SCALE * y
    found = image.getpixel((round(column), round(row)))
    assert isinstance(found, tuple)
    return found


def test_the_image_has_everything_in_its_place() -> None:
    image = as_image(SCENE, "game 1")
    ice = at(image, 0.5, 3.0)
    left, right = (ImageColor.getrgb(colour) for colour in TEAMS)
    assert at(image, AT[0] - 0.2, AT[1]) == left
    # The right racket looks to the left; its angle turns it counterclockwise.
    assert at(image, 3.0 + 0.05, -1.0 + 0.15) == right
    assert at(image, 3.0 - 0.45, -1.0) == ice
    assert max(at(image, *SCENE.puck)) < 40
    assert at(image, 1.0 + 0.25, 1.0) == right  # the ring of the holder
    assert at(image, -1.0, 1.0) != ice
    assert at(image, -1.5, -1.5) == ice


def test_the_text_has_everything_in_its_place() -> None:
    first, wall, *field = as_text(SCENE).splitlines()
    assert first == "left 2 : 1 right,  1.50 s, right holds the puck"
    assert set(wall.strip()) == {"#"}
    middle = (len(field) - 1) // 2  # below the field is a wall
    row, column = next((r, line.index("O")) for r, line in enumerate(field) if "O" in line)
    assert (row, column) == (middle - 4, 35 + 8)
    assert field[middle - 6][35 - 16 - 1] == "1"
    for mark in "12":  # a racket is 0.36 square metres, and a cell 1/32 of one
        assert 8 <= sum(line.count(mark) for line in field) <= 14
    assert sum(line.count(".") for line in field) == 2
    assert field[middle].startswith("|")


def test_a_racket_without_angle_has_its_front_towards_the_other_goal() -> None:
    (x, y), *_ = outline(Racket(-3.0, 0.5, 0.0, holds=False), 1)
    assert (x, y) == pytest.approx((-2.9, 0.1))
    (x, y), *_ = outline(Racket(3.0, 0.5, 0.0, holds=False), -1)
    assert (x, y) == pytest.approx((2.9, 0.9))


def test_games_are_shown_with_score_time_and_trail() -> None:
    game = get_game("hockey")
    params = game.params(mode="train_shooting")
    env, renderer = showing(game, params, pictures=True)
    assert isinstance(renderer, HockeyRenderer)
    env.reset_member(0, 3)
    generator = torch.Generator().manual_seed(1)
    memory = torch.zeros(2, 1)
    obs, goals = env.observe(), [0, 0]
    for _ in range(6):
        assert ",  0.00 s" in renderer.text("game", final=False)
        for step in range(1, 82):  # noqa: B007 - used after the loop
            uniforms = torch.rand(2, 1, generator=generator)
            action, memory = PLAYERS["strong"].act(obs, memory, uniforms)
            made = env.step(action)
            obs = made.obs
            final = bool((made.terminated | made.truncated)[0])
            shown = renderer.text("game", final=final)
            if final:
                break
        if bool(made.terminated[0]):
            goals[int(env.final_obs()[0, 12] < 0)] += 1
        assert f"left {goals[0]} : {goals[1]} right, {step * 0.02:5.2f} s" in shown
        assert shown.count(".") > 2  # the clock's, and the trail's
    assert sum(goals) > 0


def test_scene_without_keep_mode() -> None:
    game = get_game("hockey")
    env, renderer = showing(game, game.params(keep_mode=False), pictures=True)
    env.reset_member(0, 1)
    env.step(torch.rand(2, 3) * 2 - 1)
    assert renderer.picture("", final=False).size == (WIDTH, HEIGHT)
    assert not any(racket.holds for racket in scene_of(env.observe()[0].tolist(), (), (0, 0), 0)[0])
