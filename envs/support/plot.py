"""Curves in a terminal, drawn with braille characters of 2 x 4 dots."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

# Bit of each dot of a braille character, by row and column.
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
BLANK = 0x2800
ROWS = 7  # characters
LEAST_WIDTH, MOST_WIDTH = 24, 100


@dataclass(frozen=True)
class Series:
    """A line, or points.

    Attributes:
        points: pairs of finite x and y, by x.
        style: colour, as rich names it.
        kind: "points"; "line" from point to point; "steps": the value holds until the next point.
    """

    points: Sequence[tuple[float, float]]
    style: str
    kind: str = "line"


class Plot:
    """A diagram that adapts to the width it is given. A panel that updates itself draws it once.

    Args:
        title: above it.
        series: later ones are drawn over earlier ones; at least one point in all of them.
        below: what the horizontal axis is.
    """

    def __init__(self, title: str | Text, series: Iterable[Series], below: str) -> None:
        self._title, self._below = title, below
        self._series = [one for one in series if one.points]
        every = [point for one in self._series for point in one.points]
        xs, ys = np.array(every, dtype=float).T
        self._left, self._right = float(xs.min()), float(xs.max())
        self._low, self._high, self._cut = *_range(ys), False
        self._cut = self._low > float(ys.min())
        self._kept: tuple[int, list[Text]] = (0, [])  # width, and the lines for it

    def __rich_measure__(self, _: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(LEAST_WIDTH, options.max_width), min(MOST_WIDTH, options.max_width))

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, MOST_WIDTH)
        if self._kept[0] != width:
            self._kept = width, list(self._lines(width))
        yield from self._kept[1]

    def _lines(self, width: int) -> Iterable[Text]:
        texts = {0: f"{self._high:.4g}", ROWS - 1: f"{'≤ ' if self._cut else ''}{self._low:.4g}"}
        if self._low == self._high:
            texts = {ROWS // 2: texts[0]}
        margin = max(map(len, texts.values()))
        columns = max(1, width - margin - 2)
        title = self._title.copy() if isinstance(self._title, Text) else Text(self._title)
        title.no_wrap, title.overflow = True, "ellipsis"
        yield title
        cells, styles = self._drawn(columns)
        for row in range(ROWS):
            label = texts.get(row, "")
            line = Text(no_wrap=True)
            line.append(f"{label:>{margin}} {'┤' if label else '│'}", style="dim")
            for style, run in itertools.groupby(range(columns), styles[row].__getitem__):
                line.append("".join(chr(BLANK | int(cells[row, at])) for at in run), style=style)
            yield line
        first, last = f"{self._left:.4g}", f"{self._right:.4g}"
        if first == last:
            last = ""
        middle = f" {self._below} ".center(max(0, columns - len(first) - len(last)))
        yield Text(f"{'':{margin + 2}}{first}{middle}{last}", style="dim", no_wrap=True)

    def _drawn(self, columns: int) -> tuple[np.ndarray, list[list[str]]]:
        cells = np.zeros((ROWS, columns), dtype=int)
        styles = [["" for _ in range(columns)] for _ in range(ROWS)]
        for one in self._series:
            for x, y in self._dots(one, 2 * columns, 4 * ROWS):
                row, column = y // 4, x // 2
                cells[row, column] |= DOTS[y % 4][x % 2]
                styles[row][column] = one.style
        return cells, styles

    def _dots(self, one: Series, width: int, height: int) -> Iterable[tuple[int, int]]:
        """Return column and row of each dot, from the upper left."""
        places = [self._place(point, width, height) for point in one.points]
        yield from places
        if one.kind == "points":
            return
        for (x0, y0), (x1, y1) in itertools.pairwise(places):
            if one.kind == "steps":
                yield from ((x, y0) for x in range(x0, x1 + 1))
                yield from ((x1, y) for y in range(min(y0, y1), max(y0, y1) + 1))
            else:
                count = max(abs(x1 - x0), abs(y1 - y0), 1)
                for step in range(count + 1):
                    at = step / count
                    yield round(x0 + at * (x1 - x0)), round(y0 + at * (y1 - y0))

    def _place(self, point: tuple[float, float], width: int, height: int) -> tuple[int, int]:
        x = _share(point[0], self._left, self._right)
        y = _share(point[1], self._low, self._high)
        return round(x * (width - 1)), round((1.0 - y) * (height - 1))


def _share(value: float, low: float, high: float) -> float:
    return 0.5 if high <= low else min(1.0, max(0.0, (value - low) / (high - low)))


def _range(values: np.ndarray) -> tuple[float, float]:
    """Return the ends of the vertical axis; a few very low values do not decide them."""
    low, quarter, upper = np.quantile(values, [0.0, 0.25, 0.75])
    fence = quarter - 3.0 * (upper - quarter)
    high = float(values.max())
    return float(max(low, fence) if upper > quarter and math.isfinite(fence) else low), high
