"""The picture of the report on a program's files: values on fresh seeds."""

from __future__ import annotations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sweepd.deploy.programs.rules import FreshScore
from sweepd.envs.support.intervals import over_seeds

OWN, CHAMPION = "#1f5fa8", "#2a9d5c"


def draw_values(score: FreshScore, name: str) -> Figure:
    """The value of every fresh seed, and the means with their intervals."""
    rows = [(name, score.values, score.mean, OWN)]
    if score.champion is not None:
        theirs = score.champion.values
        mean = over_seeds(theirs, level=score.mean.level)
        rows.append((f"champion {score.champion.name}", theirs, mean, CHAMPION))
    figure = Figure(figsize=(11.0, 1.4 + 0.6 * len(rows)), layout="tight")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for row, (_, values, mean, colour) in enumerate(rows):
        axes.plot(values, [row] * len(values), "o", color=colour, alpha=0.35, markersize=6)
        if mean.known:
            axes.plot([mean.low, mean.high], [row, row], color=colour, linewidth=3)
        axes.plot([mean.value], [row], "D", color=colour, markersize=8)
    axes.set_yticks(range(len(rows)), [label for label, *_ in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(
        f"value on fresh seeds; mean and {100 * score.mean.level:.4g}% interval", fontsize=8
    )
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
