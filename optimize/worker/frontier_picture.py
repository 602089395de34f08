"""The picture of a frontier: the first two values of a study's trials."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweepd.envs.support.files import write_atomic
from sweepd.optimize.objectives.artifacts import attach_files
from sweepd.optimize.study.study import StudyHandle

PICTURE = "frontier.png"


def write_frontier(handle: StudyHandle, found: Mapping[str, Any]) -> Path | None:
    """Draw `frontier.png` into the study's folder, as its artifact.

    Args:
        handle: the study.
        found: result of `frontier_of`.

    Returns:
        The file; None without a trial on a frontier.
    """
    if not found["frontier"]:
        return None
    from matplotlib.figure import Figure

    front = {point["trial"] for point in found["frontier"]}
    rows = [row for row in handle.rows.read() if row.judged and row.further]
    figure = Figure(figsize=(7, 4.5), dpi=100)
    axes = figure.add_axes((0.12, 0.13, 0.85, 0.78))
    for name, style, size, part in (
        ("breaks a constraint", "x", 30, [row for row in rows if not row.feasible]),
        ("a trial", "o", 14, [r for r in rows if r.feasible and r.number not in front]),
        ("frontier", "D", 30, [row for row in rows if row.number in front]),
    ):
        if part:
            x, y = ([row.values[index] for row in part] for index in (1, 0))
            axes.scatter(x, y, s=size, marker=style, label=name)
    for row in rows:
        if row.number == found["chosen"]:
            axes.annotate(
                f"trial {row.number}",
                (row.values[1], row.values[0]),
                xytext=(6, 6),
                textcoords="offset points",
            )
    first, second = (f"{one['name']} ({one['direction']})" for one in found["values"][:2])
    axes.set_xlabel(second)
    axes.set_ylabel(first)
    axes.set_title(handle.name)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize=8)
    path = handle.run_dir / PICTURE
    write_atomic(path, lambda file: figure.savefig(file, format="png"))
    attach_files(handle.storage, handle.study_id, handle.run_dir, [PICTURE])
    return path
