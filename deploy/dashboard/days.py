"""An account day by day: value, profit and loss, return, fees and trades, UTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sweepd.deploy.dashboard.series import Series
from sweepd.envs.crypto.data.timeframe import DAY


@dataclass(frozen=True)
class Day:
    """A day of an account. Money in quote units.

    day: its start, seconds since the epoch. value: at the close of its last bar.
    profit: change of the value without transfers. growth: time-weighted return.
    benchmark: return of equal weight; None if that is unknown.
    realised: profit of the day's sales.
    """

    day: int
    value: float
    profit: float
    growth: float
    benchmark: float | None
    realised: float
    fees: float
    trades: int
    flow: float


def days_of(series: Series, benchmark: Series | None, realised: Mapping[int, float]) -> list[Day]:
    """Return the days of an account, the newest first.

    A bar belongs to the day in which it opened, so that a day ends with the close at midnight.

    Args:
        series: the account.
        benchmark: equal weight.
        realised: profit of sales by day.
    """
    lines = series.lines
    if not lines.time.size:
        return []
    starts = lines.time // DAY * DAY
    names, first = np.unique(starts, return_index=True)
    last = np.append(first[1:], len(starts)) - 1
    # Each day begins with the last line of the day before; the first one with its own first line.
    before = np.maximum(first - 1, 0)
    flow = np.add.reduceat(lines.flow, first)
    # The first line is the start: what was there is no transfer.
    flow[0] -= lines.flow[0]
    profit = lines.value[last] - lines.value[before] - flow
    grown, others = series.growth, _growth_at(benchmark, lines.time[last], lines.time[before])
    safe = np.where(grown[before] > 0.0, grown[before], 1.0)
    growth = np.where(grown[before] > 0.0, grown[last] / safe - 1.0, 0.0)
    fees, trades = np.add.reduceat(lines.fees, first), np.add.reduceat(lines.trades, first)
    found = [
        Day(
            int(day),
            float(lines.value[last[place]]),
            float(profit[place]),
            float(growth[place]),
            others[place],
            realised.get(int(day), 0.0),
            float(fees[place]),
            int(trades[place]),
            float(flow[place]),
        )
        for place, day in enumerate(names)
    ]
    return found[::-1]


def _growth_at(series: Series | None, ends: np.ndarray, begins: np.ndarray) -> list[float | None]:
    """Return the returns of another account between the bars that open at `begins` and `ends`."""
    if series is None or not series.lines.time.size:
        return [None] * len(ends)
    time, grown = series.lines.time, series.growth
    places = [np.minimum(np.searchsorted(time, at), len(time) - 1) for at in (begins, ends)]
    return [
        float(grown[end] / grown[begin] - 1.0)
        if time[begin] == wanted[0] and time[end] == wanted[1] and grown[begin] > 0.0
        else None
        for begin, end, *wanted in zip(*places, begins, ends, strict=True)
    ]
