"""Days of an account: transfers are no profit, and the first line is the start."""

from __future__ import annotations

import numpy as np
import pytest

from sweepd.deploy.dashboard.series import Series, days_of
from sweepd.deploy.trading.live.records import AccountHistory, AccountRecord

DAY = 86_400


def series(value: list[float], flow: list[float], *, hours: int = 12) -> Series:
    count = len(value)
    none = np.zeros(count)
    time = 3600 * hours * np.arange(count, dtype=np.int64)
    lines = AccountHistory(
        time,
        np.array(value),
        none,
        np.array(flow),
        none,
        none,
        np.ones(count, dtype=np.int64),
        np.full(count, None, dtype=object),
    )
    return Series(AccountRecord("account", "account", None, 0, None, {}), lines)


def test_transfers_are_no_profit_and_the_first_line_is_the_start() -> None:
    own = series([1_000.0, 1_100.0, 1_600.0, 1_600.0], [1_000.0, 0.0, 500.0, 0.0])
    second, first = days_of(own, None, {0: 7.0})
    assert (first.day, first.profit, first.flow, first.realised) == (0, 100.0, 0.0, 7.0)
    assert (second.day, second.profit, second.flow, second.value) == (DAY, 0.0, 500.0, 1_600.0)
    assert (first.growth, second.growth) == (pytest.approx(0.1), pytest.approx(0.0))
    assert (first.trades, first.benchmark) == (2, None)


def test_the_benchmark_is_compared_over_the_same_bars() -> None:
    own, equal = (
        series(value, [0.0] * 4) for value in ([1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 2.0, 3.0])
    )
    second, first = days_of(own, equal, {})
    assert (first.benchmark, second.benchmark) == (1.0, 0.5)
    assert days_of(series([], []), None, {}) == []
