"""Benchmarks of a slot on the same bars as the account: equal weight, each ticker held, cash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweepd.deploy.trading.book import EqualWeight
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.live.records import (
    BENCHMARK,
    CASH,
    EQUAL_WEIGHT,
    AccountBar,
    AccountRecord,
    Changes,
)

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Benchmark:
    """Some of the assets, bought once in equal parts and held; without assets, cash.

    They are bought at the first open after the start, with fee and slippage, as in `EqualWeight`.

    Args:
        value: initial value, quote units.
        assets: places of the assets.
        fee: fraction of an order.
        slippage: fraction of an order.
    """

    def __init__(self, value: float, assets: Sequence[int], *, fee: float, slippage: float) -> None:
        self._assets = list(assets)
        self._cash = 0.0 if self._assets else value
        self._held = EqualWeight(value, max(1, len(self._assets)), fee=fee, slippage=slippage)

    def next_bar(self, open_: Array, hole: Mask) -> None:
        """Buy what is not bought yet, at the opens (N,) of a bar."""
        if self._assets:
            self._held.next_bar(open_[self._assets], hole[self._assets])

    def adjust(self, factors: Array) -> None:
        """Follow a change of units: earlier prices were multiplied by `factors`, (N,)."""
        if self._assets:
            self._held.adjust(factors[self._assets])

    def value(self, close: Array) -> float:
        """Return the value at closes (N,), in quote units."""
        return self._held.value(close[self._assets]) if self._assets else self._cash

    def state(self) -> dict[str, Any]:
        """Return what `restored` needs, for JSON."""
        return {"assets": self._assets, "cash": float(self._cash), "held": self._held.state()}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Benchmark:
        """Return the benchmark of which `state` was taken."""
        benchmark = cls(state["cash"], state["assets"], fee=0.0, slippage=0.0)
        benchmark._held = EqualWeight.restored(state["held"])
        return benchmark


def benchmarks(
    tickers: Sequence[str], value: float, *, fee: float, slippage: float
) -> dict[str, Benchmark]:
    """Return the benchmarks by name: equal weight, each ticker held, and cash."""
    sets: dict[str, list[int]] = {EQUAL_WEIGHT: list(range(len(tickers)))}
    sets |= {f"hold {ticker}": [place] for place, ticker in enumerate(tickers)} | {CASH: []}
    return {
        name: Benchmark(value, assets, fee=fee, slippage=slippage) for name, assets in sets.items()
    }


class BenchmarkAccounts:
    """The benchmarks of a slot as accounts, which start with the slot's own account.

    Args:
        kept: the slot's account records, by name.
    """

    def __init__(self, kept: Mapping[str, AccountRecord]) -> None:
        self._benchmarks = {
            name: Benchmark.restored(record.state)
            for name, record in kept.items()
            if record.kind == BENCHMARK
        }

    def on_bar(
        self,
        bar: ClosedBar,
        tickers: Sequence[str],
        since: int,
        changes: Changes,
        *,
        fee: float,
        slippage: float,
    ) -> None:
        """Process a closed bar, and put the benchmarks' lines and states into `changes`.

        Args:
            bar: the bar, with the assets in the order of `tickers`.
            tickers: all assets of the slot.
            since: open of the first bar of the slot's own account.
            changes: its first line is that of the slot's own account.
            fee: fraction of an order.
            slippage: fraction of an order.
        """
        ordered = sorted(tickers)  # whatever the order of the present bundle is
        own = bar.in_order(tickers, ordered)
        # They start at the first bar's close with the account's value, like `EqualWeight`.
        if self._benchmarks:
            for benchmark in self._benchmarks.values():
                benchmark.next_bar(own.open, own.hole)
        else:
            value = changes.bars[0].value
            self._benchmarks = benchmarks(ordered, value, fee=fee, slippage=slippage)
        for name, benchmark in self._benchmarks.items():
            value = float(benchmark.value(own.close))
            cash = value if name == CASH else 0.0
            changes.bars.append(AccountBar(name, bar.time, None, value, cash))
        changes.accounts += self.records(since)

    def adjust(self, factors: Mapping[str, float], tickers: Sequence[str]) -> None:
        """Follow a change of units: `factors` of earlier prices, by ticker."""
        by = np.array([factors.get(ticker, 1.0) for ticker in sorted(tickers)])
        for benchmark in self._benchmarks.values():
            benchmark.adjust(by)

    def records(self, since: int) -> list[AccountRecord]:
        """Return the accounts as the database stores them."""
        return [
            AccountRecord(name, BENCHMARK, None, since, None, benchmark.state())
            for name, benchmark in self._benchmarks.items()
        ]
