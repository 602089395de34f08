"""Equity of a slot's accounts: cached, thinned for figures, day by day, and compared."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sweepd.deploy.dashboard.formatting import ratio, share
from sweepd.deploy.trading.flows import growth
from sweepd.deploy.trading.live.records import AccountHistory, AccountRecord
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.envs.crypto.data.timeframe import DAY, bar_seconds, bars_per_year
from sweepd.envs.crypto.scoring import metrics
from sweepd.envs.support.formatting import MISSING, percent

Array = NDArray[np.float64]
Index = NDArray[np.int64]
FEWEST_RETURNS = 30  # for a Sharpe ratio


@dataclass(frozen=True, eq=False)
class Series:
    """An account with its lines, (n,) each.

    growth: time-weighted, 1 at the first line; transfers are neither gains nor losses.
    drawdown: fraction of the growth below its peak, 0 to 1.
    """

    account: AccountRecord
    lines: AccountHistory

    @property
    def growth(self) -> Array:
        return growth(self.lines.value, self.lines.flow)

    @property
    def drawdown(self) -> Array:
        growth = self.growth
        peak = np.maximum.accumulate(growth)
        return np.divide(peak - growth, peak, out=np.zeros_like(growth), where=peak > 0.0)

    @property
    def returns(self) -> Array:
        """Simple returns per line, (n - 1,); 0 after a total loss."""
        grown = self.growth
        before, after = grown[:-1], grown[1:]
        return np.divide(after - before, before, out=np.zeros_like(before), where=before > 0.0)

    def sharpe(self, timeframe: str) -> float | None:
        """Return the annualised Sharpe ratio; None for too few bars, or lines thinned to days."""
        returns = self.returns
        distances = np.diff(self.lines.time)
        if distances.size and np.median(distances) > bar_seconds(timeframe):
            return None
        return (
            metrics.sharpe(returns, bars_per_year(timeframe))
            if returns.size >= FEWEST_RETURNS
            else None
        )

    def since(self, moment: int) -> float | None:
        """Return the total return since the last bar that opened at `moment` or before, or None."""
        place = int(np.searchsorted(self.lines.time, moment, side="right")) - 1
        if place < 0:
            return None
        grown = self.growth
        return float(grown[-1] / grown[place] - 1.0) if grown[place] > 0.0 else None

    def cut(self, first: int, last: int) -> Series | None:
        """Return the part from bar `first` to bar `last` (opens); None unless it has both."""
        start, end = np.searchsorted(self.lines.time, (first, last)).tolist()
        if end >= len(self.lines.time) or (self.lines.time[start], self.lines.time[end]) != (
            first,
            last,
        ):
            return None
        return Series(
            self.account,
            AccountHistory(*(column[start : end + 1] for column in _columns(self.lines))),
        )

    def changes(self) -> list[tuple[int, str]]:
        """Return the bars (opens) at which the traded bundle changed, with the new hash."""
        bundle = self.lines.bundle
        places = np.flatnonzero(bundle[1:] != bundle[:-1]) + 1
        return [(int(self.lines.time[place]), str(bundle[place])) for place in places]

    def sketch(self, points: int = 16) -> list[float]:
        """Return growth at equal distances, including the last, for a sparkline."""
        places = np.linspace(0, len(self.lines.time) - 1, min(points, len(self.lines.time))).astype(
            np.int64
        )
        return [round(float(value), 6) for value in self.growth[places]]


class SeriesCache:
    """Cached lines of accounts: only new ones are read. Thread-safe."""

    def __init__(self, store: TraderStore) -> None:
        self.store = store
        self._kept: dict[tuple[str, str, int], AccountHistory] = {}
        self._lock = threading.Lock()

    def read(self, slot: str, account: AccountRecord) -> Series:
        """Return the account's series since it began."""
        key = (slot, account.name, account.since)
        with self._lock:
            kept = self._kept.get(key)
            # Lines are only appended, so the newest kept one tells where to continue.
            since = account.since if kept is None or not kept.time.size else int(kept.time[-1]) + 1
            new = self.store.account_history(slot, account.name, since=since)
            if kept is None or not kept.time.size:
                kept = new
            elif new.time.size:
                pairs = zip(_columns(kept), _columns(new), strict=True)
                kept = AccountHistory(*(np.concatenate(pair) for pair in pairs))
            self._kept[key] = kept
        return Series(account, kept)


@dataclass(frozen=True)
class EquityCurve:
    """An account's line in a figure.

    time: opens of bars, seconds.
    value: 1 at the figure's left edge; an account that began later starts on the first curve.
    drawdown: fraction below its own peak so far.
    """

    account: str
    kind: str
    time: list[int]
    value: list[float]
    drawdown: list[float]


def curves(every: Sequence[Series], *, since: int | None, most: int) -> list[EquityCurve]:
    """Return the accounts' curves.

    Args:
        every: the accounts; later ones start on the curve of the first one.
        since: open of the first bar; None: all bars.
        most: approximate maximum of points per curve.
    """
    found: list[EquityCurve] = []
    reference: tuple[Index, Array] | None = None
    for series in every:
        start = 0 if since is None else int(np.searchsorted(series.lines.time, since))
        time, growth, drawdown = (
            series.lines.time[start:],
            series.growth[start:],
            series.drawdown[start:],
        )
        if not time.size or growth[0] <= 0.0:
            continue
        value = growth / growth[0]
        if reference is None:
            reference = (time, value)
        else:
            place = int(np.searchsorted(reference[0], time[0], side="right")) - 1
            # A later account starts on the first curve, so that their slopes can be compared.
            value = value * (reference[1][place] if place >= 0 else 1.0)
        # Both curves share their times; each keeps its own extremes.
        kept = np.union1d(thin(value, most // 2), thin(drawdown, most // 2))
        found.append(
            EquityCurve(
                series.account.name,
                series.account.kind,
                time[kept].tolist(),
                np.round(value[kept], 6).tolist(),
                np.round(drawdown[kept], 6).tolist(),
            )
        )
    return found


def thin(values: Array, most: int) -> Index:
    """Return which points of a curve (n,) to draw: at most `most`, but at least four.

    First, last, lowest and highest of equal stretches keep the shape and the extremes (Jugel et al.
    2014, "M4").
    """
    if len(values) <= most:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), max(1, most // 4) + 1).astype(np.int64)
    kept = [
        (start, start + int(np.argmin(part)), start + int(np.argmax(part)), stop - 1)
        for start, stop in itertools.pairwise(edges.tolist())
        for part in (values[start:stop],)
    ]
    return np.unique(np.array(kept, dtype=np.int64))


def _columns(lines: AccountHistory) -> list[NDArray[Any]]:
    return [getattr(lines, field.name) for field in dataclasses.fields(lines)]


@dataclass(frozen=True)
class ChallengerView:
    """A challenger compared with the champion over the challenger's bars.

    bundle: its hash.
    state: in words; the numbers are None for a challenger that does not trade.
    """

    bundle: str
    state: str
    days: float | None = None
    total_return: float | None = None
    champion_return: float | None = None
    sharpe: float | None = None
    champion_sharpe: float | None = None
    max_drawdown: float | None = None
    trades: int | None = None

    @property
    def ahead(self) -> float | None:
        """Return minus the champion's."""
        if self.total_return is None or self.champion_return is None:
            return None
        return self.total_return - self.champion_return

    COLUMNS: ClassVar = (
        *("return", "champion", "ahead", "Sharpe", "champion"),
        *("worst", "trades", "days"),
    )

    @property
    def cells(self) -> tuple[str, ...]:
        """Its columns as text."""
        return (
            percent(self.total_return),
            percent(self.champion_return),
            percent(self.ahead),
            ratio(self.sharpe),
            ratio(self.champion_sharpe),
            share(self.max_drawdown),
            MISSING if self.trades is None else str(self.trades),
            MISSING if self.days is None else f"{self.days:.1f}",
        )


def challenger_views(
    every: Sequence[Series], waiting: Sequence[str], timeframe: str
) -> list[ChallengerView]:
    """Return the challengers: trading ones by advantage, then retired and waiting ones.

    Args:
        every: series of all accounts.
        waiting: hashes of the slot's challengers.
        timeframe: of the bars.
    """
    # As in the arena: the shadow trades with the challengers' broker, the account may not.
    champion = next(
        (one for kind in ("shadow", "account") for one in every if one.account.kind == kind), None
    )
    views = [
        _challenger(one, champion, timeframe) for one in every if one.account.kind == "challenger"
    ]
    trading = {one.account.bundle for one in every if one.account.kind == "challenger"}
    views += [
        ChallengerView(bundle, "waits for a place in the arena")
        for bundle in waiting
        if bundle not in trading
    ]
    return sorted(
        views, key=lambda one: (one.state != "trading", one.days is None, -(one.ahead or 0.0))
    )


def _challenger(series: Series, champion: Series | None, timeframe: str) -> ChallengerView:
    lines, account = series.lines, series.account
    first, last = int(lines.time[0]), int(lines.time[-1])
    # Only over bars that both have: different periods are not comparable.
    own_bars = None if champion is None else champion.cut(first, last)
    return ChallengerView(
        bundle=account.bundle or account.name,
        state="trading" if account.retired is None else f"retired: {account.retired}",
        days=(last - first) / DAY,
        total_return=float(series.growth[-1] - 1.0),
        champion_return=None if own_bars is None else float(own_bars.growth[-1] - 1.0),
        sharpe=series.sharpe(timeframe),
        champion_sharpe=None if own_bars is None else own_bars.sharpe(timeframe),
        max_drawdown=float(series.drawdown.max()),
        trades=int(lines.trades.sum()),
    )


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
