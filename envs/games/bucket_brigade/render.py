"""Drawings of a night of Bucket Brigade: as text for a terminal, and as an RGB frame."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweepd.envs.games.bucket_brigade.game import BucketBrigade
from sweepd.envs.games.bucket_brigade.rules import BURNING, RUINED, SAFE, WORK

MARKS = {SAFE: ".", BURNING: "*", RUINED: "x"}
STATES = {SAFE: "safe", BURNING: "burning", RUINED: "ruined"}
_COLORS = {SAFE: "#4c9f70", BURNING: "#e8641b", RUINED: "#4a4a4a"}
_PAPER, _INK, _WORKER = "#f7f4ee", "#222222", "#2b6cb0"


class Scene(NamedTuple):
    """One game after a night.

    Attributes:
        houses: Their states.
        acts: Every agent's (house, mode, signal).
        night: Nights played.
        rewards: The agents' rewards of that night, if known.
    """

    houses: tuple[int, ...]
    acts: tuple[tuple[int, int, int], ...]
    night: int
    rewards: tuple[float, ...] | None = None


def scene(
    env: BucketBrigade,
    game: int = 0,
    rewards: Sequence[float] | None = None,
    *,
    ended_night: int | None = None,
) -> Scene:
    """Return the scene of a game; synchronizes.

    Args:
        env: The environment.
        game: Index of the game.
        rewards: The agents' rewards of the last night, if known.
        ended_night: Number of the last night of the game that ended last, to show that night. None
            shows the game that is being played.
    """
    state = env.state if ended_night is None else env.final
    houses, acts = state["houses"], state["acts"]
    return Scene(
        tuple(houses[:, game].tolist()),
        tuple((house, mode, signal) for house, mode, signal in acts[..., game].tolist()),
        int(env.age[game]) if ended_night is None else ended_night,
        None if rewards is None else tuple(rewards),
    )


def as_text(shown: Scene) -> str:
    """Draw the ring of houses, clockwise from the top, with the agents at each; list their actions.

    A house is its number and `.` (safe), `*` (burning) or `x` (ruined). An agent is a letter, upper
    case if it works.
    """
    count = len(shown.houses)
    cells = [
        f"{house}{MARKS[state]}" + _agents_at(shown, house)
        for house, state in enumerate(shown.houses)
    ]
    widest = max(map(len, cells))
    high = max(3, math.ceil(count / 2) + 1)
    wide = max(4 * high, 3 * widest + 2)
    lines = [[" "] * (wide + widest) for _ in range(high)]
    for house, cell in enumerate(cells):
        angle = 2 * math.pi * house / count
        row = round((high - 1) * (1 - math.cos(angle)) / 2)
        column = round(wide * (1 + math.sin(angle)) / 2)
        while any(letter != " " for letter in lines[row][column : column + len(cell) + 1]):
            row = (row + 1) % high  # rounding has put two into the same place
        lines[row][column : column + len(cell)] = cell
    ring = [" ".join(["", "".join(line).rstrip()]) for line in lines]
    return "\n".join([f"night {shown.night}", *(line.rstrip() for line in ring), *_report(shown)])


def _agents_at(shown: Scene, house: int) -> str:
    here = [
        name(agent) if mode == WORK else name(agent).lower()
        for agent, (place, mode, _) in enumerate(shown.acts)
        if place == house and shown.night
    ]
    return "".join(here)


def _report(shown: Scene) -> list[str]:
    if not shown.night:
        return ["no agent has acted yet"]
    lines = []
    for agent, (house, mode, signal) in enumerate(shown.acts):
        does, says = ("work" if flag == WORK else "rest" for flag in (mode, signal))
        earned = "" if shown.rewards is None else f"  {shown.rewards[agent]:+.1f}"
        lines.append(f"{name(agent)} {does}s at {house}, signals {says}{earned}")
    return lines


def name(agent: int) -> str:
    """Return an agent's name: A to Z, then AA, AB, …"""
    first, last = divmod(agent, 26)
    return ("" if first == 0 else chr(ord("A") + first - 1)) + chr(ord("A") + last)


def as_frame(shown: Scene, size: int = 480) -> NDArray[np.uint8]:
    """Draw the same as an image, (size, size, 3) uint8.

    Agents stand inside the ring at their house, as a full circle if they work and an empty one if
    they rest; a second circle around it means that the agent signals work.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Circle

    figure = Figure(figsize=(size / 100, size / 100), dpi=100, facecolor=_PAPER)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(-1.25, 1.25)
    axes.set_ylim(-1.25, 1.25)
    axes.set_axis_off()
    count = len(shown.houses)
    step = 2 * math.pi / count
    radius = min(0.18, 0.8 * math.sin(math.pi / max(count, 2)))
    for house, state in enumerate(shown.houses):
        x, y = math.sin(step * house), math.cos(step * house)
        axes.add_patch(Circle((x, y), radius, facecolor=_COLORS[state], edgecolor=_INK))
        axes.text(
            x, y, str(house), color="white", ha="center", va="center", fontsize=min(12, 70 * radius)
        )
        here = [agent for agent, act in enumerate(shown.acts) if act[0] == house and shown.night]
        for place, agent in enumerate(here):
            _, mode, signal = shown.acts[agent]
            inward = 1.0 - 1.2 * radius - 0.13 * (1 + place)
            turn = step * house
            at = (inward * math.sin(turn), inward * math.cos(turn))
            if signal == WORK:
                axes.add_patch(
                    Circle(at, 0.075, fill=False, edgecolor=_COLORS[BURNING], linewidth=2)
                )
            works = mode == WORK
            axes.add_patch(
                Circle(at, 0.055, facecolor=_WORKER if works else _PAPER, edgecolor=_WORKER)
            )
            axes.text(
                *at,
                name(agent),
                color="white" if works else _WORKER,
                ha="center",
                va="center",
                fontsize=8,
            )
    team = "" if shown.rewards is None else f"\nteam {sum(shown.rewards):+.1f}"
    axes.text(0, 0, f"night {shown.night}{team}", color=_INK, ha="center", va="center", fontsize=11)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="rgba", facecolor=_PAPER)
    return np.frombuffer(drawn.getvalue(), dtype=np.uint8).reshape(size, size, 4)[..., :3].copy()
