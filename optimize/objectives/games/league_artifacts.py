"""The league of a trial: its members against each other and the game's baseline players."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sweepd.agents.policy.league import frozen_players, play_matches, report
from sweepd.agents.policy.members import Member
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.games.game import Game
from sweepd.envs.support.files import write_atomic

ROUNDS = 12  # games of every pair, times the game's seats


def write_league(
    folder: Path,
    game: Game,
    params: Any,
    members: Sequence[Member],
    seed: int,
    *,
    sampled: bool = False,
) -> None:
    """Play the league and write `league.json`, see `sweepd.agents.policy.league.report`.

    Args:
        folder: of the trial.
        game: the game.
        params: its parameters.
        members: of the trial.
        seed: of all random numbers.
        sampled: whether the members draw their actions.
    """
    names = [f"seed {index}" for index in range(len(members))]
    players = frozen_players(names, members, derive_seed(seed, "play") if sampled else None)
    matches = play_matches(game, params, [players], ROUNDS * game.seats(params), seed)
    write_atomic(folder / "league.json", json.dumps(report(matches, len(members)), indent=1))


def draw_league(folder: Path, title: str) -> None:
    """Draw `league.png` from `league.json`.

    It shows mean returns, own and of the team, for the row's player at one seat and the column's
    player at all others, and the equilibrium of all players.
    """
    from matplotlib.figure import Figure

    league = json.loads((folder / "league.json").read_text(encoding="utf-8"))
    names = league["players"]
    count = len(names)
    figure = Figure(figsize=(2.4 + 0.95 * count, 2.2 + 0.42 * count), dpi=100)
    for place, (score, label) in enumerate((("own", "own return"), ("team", "return of the team"))):
        axes = figure.add_axes((0.1 + 0.46 * place, 0.32, 0.43, 0.56))
        mean = np.array(league[score]["mean"])
        axes.imshow(mean, aspect="auto", cmap="viridis")
        middle = (mean.min() + mean.max()) / 2
        for row, column in np.ndindex(count, count):
            # Dark cells of viridis are the low values.
            colour = "white" if mean[row, column] < middle else "black"
            axes.text(
                column,
                row,
                f"{mean[row, column]:.0f}",
                ha="center",
                va="center",
                fontsize=7,
                color=colour,
            )
        axes.set_xticks(range(count), names, rotation=60, ha="right", fontsize=8)
        axes.set_yticks(range(count), names if not place else [""] * count, fontsize=8)
        axes.set_title(f"{label}: row at one seat, column at the others", fontsize=9)
    found = league["equilibrium"]["all"]
    figure.text(
        0.02, 0.03, f"equilibrium of the restricted game: {equilibrium_words(found)}", fontsize=8
    )
    figure.suptitle(title, fontsize=10)
    write_atomic(folder / "league.png", lambda path: figure.savefig(path, format="png"))


def equilibrium_words(found: Mapping[str, Any], digits: int = 0) -> str:
    """Describe an equilibrium of `league.json` in words. digits: of payoffs, after the point."""
    if "unsolved" in found:
        return str(found["unsolved"])
    weights = ", ".join(f"{name} {weight:.0%}" for name, weight in found["weights"].items())
    words = f"{weights}; it pays {found['payoff']:.{digits}f}"
    bound = found["payoff_bound"]
    if bound > found["payoff"]:
        words = f"{words} (stopped by its time limit; none pays more than {bound:.{digits}f})"
    return f"{words}; {found['verdict']}" if "verdict" in found else words
