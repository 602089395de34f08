"""Equity of a slot's accounts: cached (lines are only appended), compared, thinned for figures."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweepd.deploy.trading.flows import growth
from sweepd.deploy.trading.live.records import AccountHistory, AccountRecord
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.envs.crypto.data.timeframe import bars_per_year
from sweepd.envs.crypto.scoring import metrics

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
        """Return the annualised Sharpe ratio, None for too few bars."""
        returns = self.returns
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
