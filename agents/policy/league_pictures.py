"""Pictures and sentences of the reports of leagues."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sweepd.envs.support.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_league(path: Path, league: Mapping[str, Any], title: str) -> None:
    """Draw the report of a league of a game of several seats.

    It shows mean returns, own and of the team, for the row's player at one seat and the column's
    player at all others, and the equilibrium of all players.

    Args:
        path: of the picture.
        league: as `sweepd.agents.policy.league.report` returns it.
        title: of the picture.
    """
    from matplotlib.figure import Figure

    names = league["players"]
    count = len(names)
    figure = Figure(figsize=(2.4 + 0.95 * count, 2.2 + 0.42 * count), dpi=100)
    for place, (score, label) in enumerate((("own", "own return"), ("team", "return of the team"))):
        axes = figure.add_axes((0.1 + 0.46 * place, 0.32, 0.43, 0.56))
        mean = np.array(league[score]["mean"])
        texts = [[f"{own:.0f}" for own in row] for row in mean]
        draw_cells(axes, mean, texts, names if not place else [""] * count, names)
        axes.set_title(f"{label}: row at one seat, column at the others", fontsize=9)
    found = league["equilibrium"]["all"]
    figure.text(
        0.02, 0.03, f"equilibrium of the restricted game: {equilibrium_words(found)}", fontsize=8
    )
    figure.suptitle(title, fontsize=10)
    write_atomic(path, lambda target: figure.savefig(target, format="png"))


def draw_duels(path: Path, league: Mapping[str, Any], title: str) -> None:
    """Draw every pair's points with intervals and counts of games, and the equilibrium."""
    from matplotlib.figure import Figure

    names = league["players"]
    mean, low, high = (np.array(league["points"][key]) for key in ("mean", "low", "high"))
    count = len(names)
    figure = Figure(figsize=(2.6 + 1.1 * count, 2.2 + 0.5 * count), dpi=100)
    axes = figure.add_axes((0.2, 0.3, 0.77, 0.58))
    texts = [[""] * count for _ in names]
    for row, column in itertools.permutations(range(count), 2):
        counts = "-".join(str(league[key][row][column]) for key in ("wins", "draws", "losses"))
        ends = f"{100 * low[row, column]:.0f} to {100 * high[row, column]:.0f}"
        texts[row][column] = f"{100 * mean[row, column]:.0f}% ({ends})\n{counts}"
    draw_cells(axes, mean, texts, names, names, (0.0, 1.0))
    axes.set_title(
        "points of the row's player with 95% interval; won, drawn, lost of "
        f"{league['games']} games",
        fontsize=9,
    )
    found = league["equilibrium"]["all"]
    figure.text(0.02, 0.03, f"equilibrium: {equilibrium_words(found, digits=2)}", fontsize=8)
    figure.suptitle(title, fontsize=10)
    write_atomic(path, lambda target: figure.savefig(target, format="png"))


def draw_transfer(path: Path, transfer: Mapping[str, Any], title: str) -> None:
    """Draw the scores of players where a parameter has other values, with intervals.

    Cells are normalised scores, on a scale from uniform random play to the best scripted player, or
    means where there is no such scale; these are shaded from the lowest to the highest of their row.

    Args:
        path: of the picture.
        transfer: as `sweepd.deploy.games.transfer.play_transfer` or
            `sweepd.deploy.market.transfer.play_places` returns it.
        title: of the picture.
    """
    from matplotlib.figure import Figure

    names, rows = transfer["players"], transfer["rows"]
    shades = np.full((len(rows), len(names)), np.nan)
    texts = [["" for _ in names] for _ in rows]
    for index, row in enumerate(rows):
        cells = [row["players"][name] for name in names]
        texts[index] = [cell_words(cell, scaled=is_scaled(transfer)) for cell in cells]
        means = [cell["mean"] for cell in cells if "mean" in cell]
        for place, cell in enumerate(cells):
            if known := cell.get("normalised"):
                shades[index, place] = known["mean"]
            elif "mean" in cell:
                shades[index, place] = (cell["mean"] - min(means)) / (np.ptp(means) or 1.0)
    figure = Figure(figsize=(3.0 + 1.6 * len(names), 1.9 + 0.3 * len(rows)), dpi=100)
    axes = figure.subplots()
    draw_cells(axes, shades, texts, [str(row["value"]) for row in rows], names, (0.0, 1.0))
    axes.set_ylabel(transfer["over"], fontsize=8)
    axes.set_title(f"{title}\n{scale_words(transfer)}", fontsize=9)
    write_atomic(path, lambda target: figure.savefig(target, format="png", bbox_inches="tight"))


def cell_words(cell: Mapping[str, Any], *, scaled: bool) -> str:
    """Return a transfer matrix's cell as text: the normalised score, or else the mean.

    scaled: whether other cells are normalised.
    """
    if "misfit" in cell:
        return "does not fit"
    shown = cell["normalised"] or cell
    # Points and normalised scores are about 1; returns may be thousands.
    digits = 2 if max(abs(shown["mean"]), 1.0) < 10.0 else 0
    mean = "mean " if scaled and not cell["normalised"] else ""
    text = f"{mean}{shown['mean']:.{digits}f}"
    text += "*" if cell.get("trained") else ""
    if shown["low"] is None:
        return f"{text} (all equal)"
    return f"{text} ({shown['low']:.{digits}f} … {shown['high']:.{digits}f})"


def is_scaled(transfer: Mapping[str, Any]) -> bool:
    """Whether a transfer matrix has normalised scores."""
    return any(row["best"] for row in transfer["rows"])


def scale_words(transfer: Mapping[str, Any]) -> str:
    """Say what the cells of a transfer matrix are."""
    level = f"{transfer['confidence']:.0%} intervals over {transfer['sample']}"
    if is_scaled(transfer):
        return f"0: uniform random play, 1: the best scripted player; {level}"
    cells = [cell for row in transfer["rows"] for cell in row["players"].values()]
    seen = "; * with bars of its own study" if any(cell.get("trained") for cell in cells) else ""
    return f"{transfer['score']}; {level}{seen}"


def draw_cells(
    axes: Axes,
    shades: NDArray[np.float64],
    texts: Sequence[Sequence[str]],
    rows: Sequence[str],
    columns: Sequence[str],
    limits: tuple[float, float] | None = None,
) -> None:
    """Draw a table whose cells are shaded from red to green.

    Args:
        axes: where.
        shades: (rows, columns), what decides the shades.
        texts: of the cells.
        rows: names of the rows.
        columns: names of the columns.
        limits: the shades of red and green; None: the lowest and highest.
    """
    low, high = limits or (None, None)
    axes.imshow(shades, aspect="auto", cmap="RdYlGn", vmin=low, vmax=high, alpha=0.6)
    for row, column in np.ndindex(*shades.shape):
        axes.text(column, row, texts[row][column], ha="center", va="center", fontsize=7)
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right", fontsize=8)
    axes.set_yticks(range(len(rows)), rows, fontsize=8)


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
