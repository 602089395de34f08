"""Pictures of a trial on a game, and its league: made when somebody looks at the trial."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from sweepd.agents.algorithms.table import get_algorithm
from sweepd.agents.policy.members import load_members
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.games.game import Game
from sweepd.envs.games.pairings import SAMPLED, is_versus
from sweepd.envs.support.files import write_atomic
from sweepd.optimize.objectives.games.duels import write_duels
from sweepd.optimize.objectives.games.evaluation import mean_interval
from sweepd.optimize.objectives.games.league_artifacts import write_league
from sweepd.optimize.study.record.specs import GameSpec


def has_league(game: Game, spec: GameSpec) -> bool:
    """Return whether the members of a trial play a league: of a game with several seats."""
    several = game.seats(game.params(**spec.env)) > 1
    return several and not game.external and get_algorithm(spec.algorithm).frozen


def draw_game(game: Game, spec: GameSpec, folder: Path, title: str) -> None:
    """Play the league of a complete trial, and draw its pictures; see `Objective.draw`."""
    params = game.params(**spec.env)
    versus = is_versus(game, params)
    if has_league(game, spec):
        members = load_members(folder / "members.safetensors")
        seed, sampled = derive_seed(spec.seed, "league"), spec.play == SAMPLED
        if versus:
            write_duels(folder, game, params, members, seed, title, sampled=sampled)
        else:
            write_league(folder, game, params, members, seed, title, sampled=sampled)
    draw_returns(folder, title, "points of a game" if versus else "return of an episode")


def draw_returns(folder: Path, title: str, of_episode: str) -> None:
    """Draw `returns.png` from `episodes.parquet`.

    It shows the return of every episode by seed, the means, and the mean over seeds with the interval
    in `metrics.json`, unless seeds are few. of_episode: what the returns are, for the axis.
    """
    from matplotlib.figure import Figure

    frame = pd.read_parquet(folder / "episodes.parquet")
    means = frame.groupby("seed")["return"].mean().to_numpy(dtype=np.float64)
    metrics = json.loads((folder / "metrics.json").read_text())
    figure = Figure(figsize=(7, 4.2), dpi=100)
    axes = figure.add_axes((0.11, 0.13, 0.87, 0.77))
    # Points of one seed are spread sideways, so that equal returns do not hide each other.
    shift = np.random.default_rng(0).uniform(-0.25, 0.25, len(frame))
    axes.scatter(
        frame["seed"] + shift,
        frame["return"],
        s=9,
        alpha=0.5,
        color="tab:blue",
        label="one episode",
    )
    axes.scatter(
        np.arange(len(means)), means, marker="_", s=600, color="black", label="mean of a seed"
    )
    found = mean_interval(metrics, metrics["resampled"], metrics["interval"])
    shown = found.trusted(len(means))
    label = f"mean, {found.over}" if shown else "mean over seeds"
    axes.axhline(found.value, color="tab:orange", label=label)
    if shown and found.known:
        axes.axhspan(found.low, found.high, color="tab:orange", alpha=0.15)
    axes.set_xticks(range(len(means)))
    axes.set_xlabel("seed")
    axes.set_ylabel(of_episode)
    axes.set_title(title, y=1.0)  # without a height, matplotlib draws the ticks twice to find one
    axes.grid(alpha=0.3, axis="y")
    axes.legend(loc="best", fontsize=8)
    write_atomic(folder / "returns.png", lambda path: figure.savefig(path, format="png"))
