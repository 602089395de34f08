"""Metrics after and before fees, as all screens show them."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from rich.console import Console

from sweepd.envs.crypto.scoring import luck
from sweepd.envs.crypto.scoring.figures import (
    BEFORE_FEES,
    COLUMNS,
    MEDIAN_RATIO,
    figures,
    figures_table,
    path_metrics,
    shown,
    window_metrics,
)
from sweepd.envs.crypto.scoring.metrics import PathTrades
from sweepd.envs.crypto.scoring.selection import TrialReturns, median_path

FEES = 2e-3


def trades(drifts: tuple[float, ...], *, paid: bool) -> PathTrades:
    """Paths that earn the drifts more per bar than equal weight, and pay fees or none."""
    rng = np.random.default_rng(0)
    shape = len(drifts), 500
    equal = 0.01 * rng.standard_normal(shape)
    gross = equal + 0.01 * rng.standard_normal(shape) + np.array(drifts)[:, None]
    fees = np.full(shape, FEES if paid else 0.0)
    common = {name: np.full(shape, 0.5) for name in ("trades", "notional", "exposure")}
    return PathTrades(returns=gross - fees, equal_weight=equal, fees=fees, **common)


DRIFTS = (3e-3, -3e-3, 1e-3)  # the last one is the median path


def test_before_fees_are_the_same_trades_on_a_market_without_fees() -> None:
    paid, free = trades(DRIFTS, paid=True), trades(DRIFTS, paid=False)
    for one, other in zip(paid.before_fees().summarise("1h"), free.summarise("1h"), strict=True):
        assert one.to_dict() == pytest.approx(other.to_dict())
    after, before = paid.summarise("1h"), free.summarise("1h")
    found = path_metrics(paid, "1h", after)
    for name in ("sharpe", "sortino", "annual_return", "total_return", "max_drawdown"):
        assert found[name] == pytest.approx(np.mean([getattr(one, name) for one in after]))
        mean = np.mean([getattr(one, name) for one in before])
        assert found[name + BEFORE_FEES] == pytest.approx(mean)
    assert found["fees"] == pytest.approx(500 * FEES)
    one = window_metrics(after[0], before[0])
    assert one["information_ratio"] == after[0].information_ratio
    assert one["information_ratio_before_fees"] == before[0].information_ratio


def test_the_information_ratio_is_the_one_of_the_path_that_the_gate_judges() -> None:
    """The metric, the gate's ratio and the ratio in status are one number."""
    paths = trades(DRIFTS, paid=True)
    after, excess = paths.summarise("1h"), paths.returns - paths.equal_weight
    found = path_metrics(paths, "1h", after)
    returns = TrialReturns()
    returns.add(0, excess, np.arange(500))
    # Among so many trials, the DSR of each path is 0 and does not tell them apart.
    deflation = returns.deflate(returns.moments[0], 1_000)
    assert set(deflation.by_path) == {0.0}
    assert deflation.path == median_path(returns.moments[0]) == 2
    annual = np.sqrt(24 * 365.25)
    assert found[MEDIAN_RATIO] == pytest.approx(annual * deflation.moments.sharpe, rel=1e-12)
    assert found[MEDIAN_RATIO] == after[2].information_ratio
    assert "information_ratio" not in found  # the mean over paths is no figure of its own


def test_the_median_path_of_an_even_number_is_the_lower_one_and_fewest_bars_tie() -> None:
    moments = [luck.moments(row) for row in trades((2e-3, -2e-3, 1e-3, 0.0), paid=False).returns]
    ratios = [one.sharpe / one.error for one in moments]
    assert ratios[median_path(moments)] == sorted(ratios)[1]
    assert median_path([luck.moments(np.zeros(2))] * 3) == 1
    alone = np.array([1.0, 50.0, 1.0, 1.0])  # the lowest ratio becomes one near 0
    assert median_path(moments, alone) != median_path(moments)


def test_each_screen_has_the_same_rows() -> None:
    paths = trades(DRIFTS, paid=True)
    found = path_metrics(paths, "1h", paths.summarise("1h"))
    console = Console(file=io.StringIO(), width=200)
    console.print(figures_table(found, "title"))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    cells = [[cell.strip() for cell in re.split("[┃│]", line)[1:-1]] for line in lines]
    rows = {row[0]: tuple(row) for row in cells if len(row) == 4}
    assert rows.pop("") == ("", *COLUMNS)
    assert rows == {one.label: one.cells for one in figures(found)}
    ratio = found[MEDIAN_RATIO], found[MEDIAN_RATIO + BEFORE_FEES]
    assert rows["information ratio, median path"][1:] == (*map("{:+.2f}".format, ratio), "")
    assert rows["return, whole length"][3] == shown(
        "equal_weight_return", found["equal_weight_return"]
    )
    assert rows["fees paid"] == ("fees paid", "100.00%", "", "")
    # Of a game, and without the figures before fees.
    assert figures({"mean": 1.0, "length": 2.0}) == []
    assert [one.before for one in figures({"sharpe": 1.0})] == [""]
