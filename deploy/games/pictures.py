"""The picture of the report on a player: a panel's results."""

from __future__ import annotations

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sweepd.deploy.games.duel_panel import CANDIDATE, DuelPanel
from sweepd.deploy.games.panel import Panel
from sweepd.deploy.games.rules import MAJORITY

OWN, OTHER, CHAMPION = "#1f5fa8", "#8a8a8a", "#2a9d5c"


def draw_panel(panel: Panel, name: str) -> Figure:
    """The returns of all players, and the candidate's difference to each."""
    if isinstance(panel, DuelPanel):
        return _draw_duels(panel, name)
    others = panel.opponents
    figure = Figure(figsize=(11.0, 1.6 + 0.42 * (1 + len(others))), layout="tight")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    returns = panel.episodes.returns[0]
    shift = np.random.default_rng(0).uniform(-0.2, 0.2, returns.size)
    rows = [(name, panel.own, OWN)]
    rows += [
        (f"champion {other.name}", other.own, CHAMPION)
        if other is panel.champion
        else (other.name, other.own, OTHER)
        for other in others
    ]
    left.scatter(returns, shift, s=6, alpha=0.35, color=OWN, linewidths=0)
    for row, (_, found, colour) in enumerate(rows):
        left.plot(
            [found.low, found.high], [row, row], color=colour, linewidth=3, solid_capstyle="butt"
        )
        left.plot([found.mean], [row], "o", color=colour, markersize=6)
    left.set_yticks(range(len(rows)), [label for label, _, _ in rows], fontsize=8)
    left.set_xlabel("return of a game", fontsize=8)
    for row, other in enumerate(others, start=1):
        gap = other.difference
        colour = "#2a9d5c" if gap.low > 0.0 and other.share.low > MAJORITY else "#c0392b"
        right.plot(
            [gap.low, gap.high], [row, row], color=colour, linewidth=3, solid_capstyle="butt"
        )
        right.plot([gap.mean], [row], "o", color=colour, markersize=6)
    right.axvline(0.0, color="black", linewidth=1)
    right.set_yticks(range(1, len(rows)), [label for label, _, _ in rows[1:]], fontsize=8)
    right.set_xlabel(f"{name} is better by", fontsize=8)
    for axes in (left, right):
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.tick_params(axis="x", labelsize=8)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_duels(panel: DuelPanel, name: str) -> Figure:
    """Won, drawn and lost games against every opponent, and the ratings of all players."""
    others, rating = panel.opponents, panel.ratings
    labels = [
        f"champion {other.name}" if other is panel.champion else other.name for other in others
    ]
    figure = Figure(figsize=(11.0, 1.8 + 0.42 * (1 + len(others))), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for row, other in enumerate(others):
        start = 0
        for count, colour in zip(
            (other.ahead, other.equal, other.behind), (CHAMPION, "#d0d0d0", "#c0392b"), strict=True
        ):
            left.barh(row, count, left=start, color=colour, height=0.7)
            if count:
                left.text(start + count / 2, row, str(count), ha="center", va="center", fontsize=7)
            start += count
    left.axvline(panel.games / 2, color="black", linewidth=1)
    left.set_yticks(range(len(others)), labels, fontsize=8)
    left.set_ylim(len(others) - 0.5, -0.5)
    left.set_xlabel(f"games that {name} won, drew and lost", fontsize=8)
    order = sorted(range(len(rating.names)), key=lambda index: -rating.ratings[index])
    shown_names = {CANDIDATE: name} | dict(zip([o.name for o in others], labels, strict=True))
    for row, index in enumerate(order):
        own = rating.names[index] == CANDIDATE
        colour = OWN if own else OTHER
        right.plot([rating.low[index], rating.high[index]], [row, row], color=colour, linewidth=3)
        right.plot([rating.ratings[index]], [row], "o", color=colour, markersize=6)
    right.set_yticks(range(len(order)), [shown_names[rating.names[i]] for i in order], fontsize=8)
    right.set_ylim(len(order) - 0.5, -0.5)
    right.set_xlabel("Bradley-Terry rating in Elo points, 95%", fontsize=8)
    for axes in (left, right):
        axes.tick_params(axis="x", labelsize=8)
        axes.grid(alpha=0.25, axis="x")
        axes.spines[["top", "right"]].set_visible(False)
    return figure
