"""Leagues as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from sweepd.agents.policy.league_pictures import equilibrium_words
from sweepd.agents.policy.ratings import Ratings, separation_words
from sweepd.envs.support.formatting import MISSING


def league_view(report: Mapping[str, Any], ratings: Ratings | None) -> RenderableType:
    """Return payoffs, equilibrium and ratings as `sweepd league` prints them.

    Args:
        report: of the league.
        ratings: of its players, in games of two players.
    """
    score, names = report["own" if ratings is None else "points"], report["players"]
    means = np.array(score["mean"], dtype=np.float64)
    lows = np.array(score["low"], dtype=np.float64)  # NaN where all games were equal
    form, what = "{:.1f}", "mean return of the row's player at one seat, the column's at the others"
    if ratings is not None:
        form, what = "{:.0%}", "points of the row's player"
    widest = form.format(np.nanmax(means - lows, initial=0.0))
    title = f"{what}; {report['games']} games, {report['confidence']:.0%} within ±{widest} or less"
    table = Table(Column("", no_wrap=True))
    for number, _ in enumerate(names, start=1):
        table.add_column(str(number), justify="right", no_wrap=True)
    for row, name in enumerate(names):
        cells = [form.format(mean) for mean in means[row]]
        if ratings is not None:
            cells[row] = MISSING  # nobody plays against itself
        table.add_row(f"{row + 1} {name}", *cells)
    lines = [
        _equilibrium_line("all players" if who == "all" else "the named players", found)
        for who, found in report["equilibrium"].items()
    ]
    if ratings is not None:
        lines += [ratings.table(), separation_words(ratings.groups)]
    return Group(Text(title), table, *(Text(line) for line in lines if line))


def _equilibrium_line(among: str, found: Mapping[str, Any]) -> str:
    words = f"equilibrium of {among}: {equilibrium_words(found, digits=2)}"
    if "exploitability" not in found or "verdict" in found:
        return words
    best = found["exploitability"]
    return (
        f"{words}; the best response, {best['by']}, gains {best['gain']:.2f} "
        f"({best['low']:.2f} … {best['high']:.2f})"
    )
