"""Curves in a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sweepd.envs.support.plot import BLANK, ROWS, Plot, Series


def drawn(plot: Plot, width: int = 60) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(plot)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def body(lines: list[str]) -> list[str]:
    """Return the rows of braille characters, without axes."""
    return [line.partition("┤")[2] or line.partition("│")[2] for line in lines[1 : 1 + ROWS]]


def test_a_line_goes_from_corner_to_corner() -> None:
    lines = drawn(Plot("title", [Series([(0.0, 0.0), (4.0, 1.0)], "cyan")], "rung"))
    assert lines[0] == "title"
    assert lines[1].startswith("1 ┤")
    assert lines[ROWS].startswith("0 ┤")
    rows = body(lines)
    assert ord(rows[-1][0]) > BLANK, "begins at the lower left"
    assert ord(rows[0][-1]) > BLANK, "ends at the upper right"
    assert ord(rows[0][0]) == BLANK
    assert lines[-1].split() == ["0", "rung", "4"]


def test_steps_hold_their_value_and_points_are_not_joined() -> None:
    points = [(0.0, 0.0), (10.0, 1.0)]
    steps = body(drawn(Plot("", [Series(points, "", "steps")], "x")))
    assert all(ord(one) > BLANK for one in steps[-1]), "0 until the end"
    dots = body(drawn(Plot("", [Series(points, "", "points")], "x")))
    assert sum(ord(one) > BLANK for row in dots for one in row) == 2


@pytest.mark.parametrize("width", [20, 60, 200])
def test_it_fits_the_width(width: int) -> None:
    series = [Series([(float(x), x**2 * 1e-9) for x in range(50)], "red")]
    lines = drawn(Plot("t" * 300, series, "complete trials"), width)
    assert max(map(len, lines)) <= width
    assert len(lines) == ROWS + 2


def test_few_very_low_values_do_not_hide_the_others() -> None:
    values = [(float(x), 1.0 + 0.01 * x) for x in range(40)] + [(40.0, -1e9)]
    lines = drawn(Plot("", [Series(values, "")], "x"))
    assert lines[ROWS].startswith("≤ ")
    assert "e+09" not in "".join(lines)


def test_equal_values_have_one_label() -> None:
    lines = drawn(Plot("", [Series([(1.0, 5.0)], "")], "x"))
    assert [line for line in lines if "┤" in line] == [lines[1 + ROWS // 2]]
