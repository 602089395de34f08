"""Drawings of a hockey game: as text for a terminal, and as an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from sweepd.envs.games.hockey.physics import (
    DT,
    GOAL_BACK_X,
    GOAL_X,
    GOAL_Y,
    LIP_X,
    LIP_Y,
    OUTLINE,
    POST_X,
    POST_Y,
    PUCK_RADIUS,
    WALL_Y,
)

Point = tuple[float, float]

WIDTH, HEIGHT = 544, 496  # pixels; multiples of 16, as video codecs need
SCALE = 58  # pixels per metre
TOP = 56  # pixels above the field, for the caption and the score
SUPERSAMPLING = 3  # images are drawn that much larger and reduced, for smooth edges
ICE, BOARD, LINE, INK, PUCK = "#eef3f7", "#3b4652", "#b9c6d2", "#222222", "#111111"
TEAMS = ("#c0392b", "#1f5fa8")  # of player 1, on the left, and player 2
TRAIL = 14  # former positions of the puck that are drawn
COLUMNS_PER_M, ROWS_PER_M = 8, 4  # in the terminal, where characters are twice as high as wide


class Racket(NamedTuple):
    """A player: position in the world, angle, and whether it holds the puck."""

    x: float
    y: float
    angle: float
    holds: bool


class HockeyScene(NamedTuple):
    """A moment of a game.

    Attributes:
        rackets: player 1, on the left, and player 2.
        puck: its position.
        trail: its former positions, the oldest first.
        score: goals of both players in the games that were shown.
        time: steps since the start of the game.
    """

    rackets: tuple[Racket, Racket]
    puck: Point
    trail: tuple[Point, ...]
    score: tuple[int, int]
    time: int

    @property
    def headline(self) -> str:
        """Score, time, and who holds the puck."""
        holders = [
            f", {side} holds the puck"
            for side, racket in zip(("left", "right"), self.rackets, strict=True)
            if racket.holds
        ]
        left, right = self.score
        return f"left {left} : {right} right, {self.time * DT:5.2f} s{''.join(holders)}"


def scene_of(
    seen: Sequence[float], trail: Sequence[Point], score: tuple[int, int], time: int
) -> HockeyScene:
    """Return the scene that player 1 observes, whose frame is the world."""
    counters = seen[16:18] or (0.0, 0.0)  # without keep mode there are none
    left, right = (
        Racket(seen[first], seen[first + 1], seen[first + 2], counters[player] > 0)
        for player, first in enumerate((0, 6))
    )
    return HockeyScene((left, right), (seen[12], seen[13]), tuple(trail), score, time)


def outline(racket: Racket, side: int) -> list[Point]:
    """Return the corners of a racket in the world. side: 1 for player 1, -1 for player 2."""
    cos, sin = math.cos(racket.angle), math.sin(racket.angle)
    return [
        (racket.x + side * (cos * x - sin * y), racket.y + side * (sin * x + cos * y))
        for x, y in OUTLINE
    ]


def as_text(shown: HockeyScene) -> str:
    """Draw the field from above: rackets as 1 and 2, the puck as O, where it was as dots."""
    half_width, half_height = round(GOAL_BACK_X * COLUMNS_PER_M), round(WALL_Y * ROWS_PER_M)
    cells = [[" "] * (2 * half_width + 1) for _ in range(2 * half_height + 1)]

    def place(x: float, y: float) -> tuple[int, int]:
        row = half_height - round(y * ROWS_PER_M)
        column = half_width + round(x * COLUMNS_PER_M)
        return min(max(row, 0), len(cells) - 1), min(max(column, 0), len(cells[0]) - 1)

    for row, line in enumerate(cells):
        y = (half_height - row) / ROWS_PER_M
        line[half_width] = ":"
        if abs(y) > GOAL_Y:
            line[place(-POST_X, y)[1]] = line[place(POST_X, y)[1]] = "#"
        else:
            line[0] = line[-1] = "|"
    for x, y in shown.trail:
        row, column = place(x, y)
        cells[row][column] = "."
    for side, mark, racket in zip((1, -1), "12", shown.rackets, strict=True):
        corners = outline(racket, side)
        for row in range(len(cells)):
            for column in range(len(cells[0])):
                x = (column - half_width) / COLUMNS_PER_M
                if _inside(x, (half_height - row) / ROWS_PER_M, corners):
                    cells[row][column] = mark
    row, column = place(*shown.puck)
    cells[row][column] = "O"
    left, right = place(-POST_X, 0.0)[1], place(POST_X, 0.0)[1]
    wall = " " * left + "#" * (right - left + 1)
    return "\n".join([shown.headline, wall, *("".join(line).rstrip() for line in cells), wall])


def _inside(x: float, y: float, corners: Sequence[Point]) -> bool:
    """Whether a point is in a convex polygon, given counterclockwise."""
    ends = [*corners[1:], corners[0]]
    return all(
        (bx - ax) * (y - ay) - (by - ay) * (x - ax) >= 0
        for (ax, ay), (bx, by) in zip(corners, ends, strict=True)
    )


def as_image(shown: HockeyScene, caption: str) -> Image.Image:
    """Draw the field from above, with a caption and the score over it."""
    image = Image.new("RGB", (SUPERSAMPLING * WIDTH, SUPERSAMPLING * HEIGHT), "white")
    draw = ImageDraw.Draw(image)
    _draw_field(draw)
    for age, (x, y) in enumerate(reversed(shown.trail), 1):
        # The trail grows thinner and lighter with age.
        share = 1.0 - age / (TRAIL + 1)
        draw.ellipse(_disc(x, y, 0.7 * share * PUCK_RADIUS), fill=_blend(ICE, PUCK, 0.5 * share))
    for side, colour, racket in zip((1, -1), TEAMS, shown.rackets, strict=True):
        corners = [_pixel(x, y) for x, y in outline(racket, side)]
        draw.polygon(corners, fill=colour)
        # The front face, which catches and shoots.
        draw.line(corners[:2], fill=INK, width=SUPERSAMPLING * 3)
    holder = next((k for k, racket in enumerate(shown.rackets) if racket.holds), None)
    if holder is not None:
        draw.ellipse(_disc(*shown.puck, PUCK_RADIUS + 0.07), fill=TEAMS[holder])
    draw.ellipse(_disc(*shown.puck, PUCK_RADIUS), fill=PUCK)
    small = image.resize((WIDTH, HEIGHT), Image.Resampling.BOX)
    _write(small, shown, caption)
    return small


def _draw_field(draw: ImageDraw.ImageDraw) -> None:
    """Draw boards, ice, lines, and goals."""
    draw.rectangle(
        (*_pixel(-GOAL_BACK_X, WALL_Y + 0.2), *_pixel(GOAL_BACK_X, -WALL_Y - 0.2)), fill=BOARD
    )
    # Counterclockwise from the upper right corner, with the notches of both goals.
    right = [(POST_X, -WALL_Y), (POST_X, -POST_Y), (LIP_X, -LIP_Y)]
    right += [(x, -y) for x, y in reversed(right)]
    ice = [*right, *((-x, -y) for x, y in right)]
    draw.polygon([_pixel(x, y) for x, y in ice], fill=ICE)
    for side, colour in zip((-1, 1), TEAMS, strict=True):
        near, far = sorted((side * GOAL_X, side * GOAL_BACK_X))
        draw.rectangle(
            (*_pixel(near, GOAL_Y), *_pixel(far, -GOAL_Y)), fill=_blend(ICE, colour, 0.45)
        )
    draw.line((*_pixel(0, WALL_Y), *_pixel(0, -WALL_Y)), fill=LINE, width=SUPERSAMPLING * 2)
    draw.ellipse(_disc(0.0, 0.0, 0.9), outline=LINE, width=SUPERSAMPLING * 2)


def _write(image: Image.Image, shown: HockeyScene, caption: str) -> None:
    """Write the caption and the score."""
    draw = ImageDraw.Draw(image)
    small, large = ImageFont.load_default(13), ImageFont.load_default(22)
    middle = WIDTH / 2
    draw.text((10, 8), caption, fill=INK, font=small)
    clock = f"{shown.time * DT:.2f} s"
    draw.text((WIDTH - 10, 8), clock, fill=INK, font=small, anchor="ra")
    left, right = (str(goals) for goals in shown.score)
    draw.text((middle - 14, 26), left, fill=TEAMS[0], font=large, anchor="ra")
    draw.text((middle, 26), ":", fill=INK, font=large, anchor="ma")
    draw.text((middle + 14, 26), right, fill=TEAMS[1], font=large, anchor="la")


def _pixel(x: float, y: float) -> Point:
    """Return a place of the field in the enlarged image."""
    middle = (HEIGHT + TOP) / 2
    return SUPERSAMPLING * (WIDTH / 2 + SCALE * x), SUPERSAMPLING * (middle - SCALE * y)


def _disc(x: float, y: float, radius: float) -> tuple[float, float, float, float]:
    """Return the box of a disc."""
    return (*_pixel(x - radius, y + radius), *_pixel(x + radius, y - radius))


def _blend(one: str, other: str, share: float) -> str:
    """Mix two colours, with that share of the second."""
    parts = (
        round((1 - share) * int(one[k : k + 2], 16) + share * int(other[k : k + 2], 16))
        for k in (1, 3, 5)
    )
    return "#" + "".join(f"{part:02x}" for part in parts)
