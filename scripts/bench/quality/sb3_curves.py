"""The picture of learning curves against Stable-Baselines3."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.bench.quality.sb3_rows import Row, row_of
from sweepd.deploy.export.sb3_terms import CLASSES

COLOURS = {"ours": "#1f77b4", "sb3": "#d95f02"}
COLUMNS = 4


def draw(rows: Mapping[str, Any], picture: Path) -> None:
    """Draw a panel per row: the median of the seeds and their range, by steps, of both sides.

    Args:
        rows: of the results file, by name.
        picture: PNG file.
    """
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(rows))
    lines = -(-len(rows) // columns)
    figure = Figure(figsize=(3.2 * columns, 2.6 * lines), dpi=110)
    for index, found in enumerate(rows.values()):
        row = row_of(found["row"])
        axes = figure.add_subplot(lines, columns, index + 1)
        for side, colour in COLOURS.items():
            if side in found["sides"]:
                _draw_side(axes, found["sides"][side]["runs"], colour, _label(row, side))
        if row.solved is not None:
            axes.axhline(row.solved, color="grey", linewidth=0.8, linestyle=":")
        axes.set_title(row.title, fontsize=9)
        axes.tick_params(labelsize=7)
        axes.legend(loc="lower right", fontsize=7, frameon=False)
    figure.supxlabel("1,000 steps of one seed", fontsize=9)
    figure.supylabel("return of an episode", fontsize=9)
    figure.tight_layout()
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture)


def _label(row: Row, side: str) -> str:
    return f"sweepd {row.algorithm.upper()}" if side == "ours" else f"SB3 {CLASSES[row.algorithm]}"


def _draw_side(axes: Any, runs: Mapping[str, Any], colour: str, label: str) -> None:
    looks = list(zip(*(run["curve"] for run in runs.values()), strict=True))
    steps = [look[0][0] / 1_000 for look in looks]
    scores = [[score for _, score in look] for look in looks]
    axes.plot(steps, [statistics.median(own) for own in scores], color=colour, label=label)
    low, high = ([find(own) for own in scores] for find in (min, max))
    axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
