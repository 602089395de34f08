"""The curves of a study in a terminal, which `sweepd train` and `sweepd watch` show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from sweepd.envs.support.formatting import duration, hourly, sparkline
from sweepd.envs.support.plot import Plot, Series

SIDE_BY_SIDE = 76  # columns of the terminal
SHOWN_PARTS = 24  # of the trials per hour
COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")  # of the running trials


class StudyCharts:
    """The objective by trial, and the learning curves of the trials in training.

    Side by side in a wide terminal; one without points is left out.

    Args:
        found: result of `sweepd.optimize.study.insight.history.history`.
    """

    def __init__(self, found: Mapping[str, Any]) -> None:
        charts = (_objective(found["values"]), _curves(found["running"]))
        self._shown = [chart for chart in charts if chart is not None]

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        if len(self._shown) < 2 or options.max_width < SIDE_BY_SIDE:
            yield from self._shown
            return
        grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
        for _one in self._shown:
            grid.add_column(ratio=1)
        grid.add_row(*self._shown)
        yield grid


def _objective(values: Sequence[Mapping[str, Any]]) -> RenderableType | None:
    if not values:
        return None
    order = list(enumerate(values, 1))
    return Plot(
        "objective: • each trial, ─ best so far",
        [
            Series([(at, one["value"]) for at, one in order], "dim", "points"),
            Series([(at, one["best"]) for at, one in order], "bold cyan", "steps"),
        ],
        "complete trials",
    )


def _curves(running: Sequence[Mapping[str, Any]]) -> RenderableType | None:
    begun = [one for one in running if one["rungs"]]
    if not begun:
        return None
    # The best ones last, so that they are drawn over the others.
    ranked = sorted(begun, key=lambda one: one["rungs"][-1][1])
    colours = {
        one["trial"]: COLOURS[place] if place < len(COLOURS) else "dim"
        for place, one in enumerate(reversed(ranked))
    }
    title = Text("running: ", no_wrap=True, overflow="ellipsis")
    for one in ranked[: -len(COLOURS) - 1 : -1]:
        title.append(f"trial {one['trial']} {one['rungs'][-1][1]:+.4g}  ", colours[one["trial"]])
    if all(len(one["rungs"]) == 1 for one in begun):
        return title  # two rungs make a line
    lines = [Series(one["rungs"], colours[one["trial"]]) for one in ranked]
    return Plot(title, lines, "rung")


def rate_line(found: Mapping[str, Any]) -> str:
    """Return the trials per hour over the study's time as one line; "" before the first trial ended.

    Args:
        found: result of `sweepd.optimize.study.insight.history.history`.
    """
    if not found["rates"]:
        return ""
    shown = found["rates"][-SHOWN_PARTS:]
    rates = [part["per_hour"] for part in shown]
    length = duration(shown[0]["seconds"])
    curve = sparkline(rates, lowest=0.0)
    return f"{curve}  up to {hourly(max(rates))}, in parts of {length}"
