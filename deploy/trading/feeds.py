"""Closed bars for a trader: from an exchange, from a growing folder, or recorded.

A feed starts with the history that a trader needs and is then polled for newly closed bars. It
delivers every bar once, in order, for all tickers together, and only closed bars. A ticker whose
bar has not arrived GRACE_SECONDS after its end, while another ticker's or a later one has, has a
hole there, as in a data set: the last close and no volume. After ten holes in a row a ticker is no
longer waited for. Daily bars of markets with hours are published hours after the close, and their
files are written one after another: their ticker has SESSION_GRACE_SECONDS after the first ticker's
bar was seen. If no bar arrives at all, nothing is delivered: the source is late or out of
reach, which `age` shows.

A feed also gives the newest delivered bars again, as its source has them now: sources revise bars,
and adjust them for splits and dividends. The trader compares them with what it saw.
"""

from __future__ import annotations

import math
import time as clock
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sweepd.deploy.trading.closed_bar import COLUMNS, ClosedBar
from sweepd.envs.crypto.data.bar_files import TickerBars, files_of, read_bars, stamp
from sweepd.envs.crypto.data.bars import Bars, align
from sweepd.envs.crypto.data.problems import MAX_HOLE_SHARE, hole_problems
from sweepd.envs.crypto.data.sources import Source
from sweepd.envs.crypto.data.timeframe import (
    bar_end,
    bar_ends,
    bar_length,
    bars_between,
    first_open_bar,
    has_hours,
    later,
    on_grid,
    opening_times,
)
from sweepd.envs.support.errors import InputError, RunError, TryAgainLater

Array = NDArray[np.float64]
# (ticker, start, end) to rows (n, 6): time, open, high, low, close, volume; start <= time < end.
Fetch = Callable[[str, int, int], Array]
SETTLE_SECONDS = 2.0  # from a bar's end to its request: servers need time, and clocks differ
GRACE_SECONDS = 30.0  # from a bar's end until a ticker without it has a hole
SESSION_GRACE_SECONDS = 600.0  # the same for a session's bar, from the first ticker's bar on
GONE_BARS = 10  # holes in a row after which a ticker's next bar is no longer waited for
EMPTY_PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0)  # seconds before an empty history is requested again
AGAIN_BARS = 64  # delivered bars that are requested again with every new one
SPARE_BARS = 64  # spare history: tickers rarely begin and end together


@runtime_checkable
class Feed(Protocol):
    """Source of a trader's bars.

    tickers, timeframe: of every bar.
    again: by ticker, the source's present rows (n, 6) of the newest bars before those that the
        last `start` or `poll` delivered, at most AGAIN_BARS; empty if the source was not asked.
    """

    tickers: tuple[str, ...]
    timeframe: str
    again: Mapping[str, Array]

    def start(
        self,
        count: int,
        now: float,
        last: int | None = None,
        prices: Mapping[str, float] | None = None,
    ) -> Bars:
        """Return the history; `poll` continues after it.

        Args:
            count: number of closed bars that are needed.
            now: seconds since the epoch.
            last: open of the last processed bar, at which the history ends; by default it ends at
                the newest bar that all tickers have. With `last`, fewer bars, holes and tickers
                that are no longer traded are accepted, because the trader has a record, and all
                other positions would be unmanaged. A ticker
                counts as no longer traded if the source refuses it, or has answered several times
                without a bar.
            prices: last prices by ticker, for tickers that are no longer traded.

        Raises:
            InputError: there are too few bars, or too many holes.
            RunError: the source is out of reach.
            TryAgainLater: no ticker has a bar, or such a price is unknown.
        """

    def poll(self, now: float) -> list[ClosedBar]:
        """Return the bars that have closed since the last one delivered, oldest first.

        Raises:
            RunError: the source is out of reach.
        """

    def age(self, now: float) -> float:
        """Return the seconds since the last delivered bar closed."""

    def skew(self, now: float) -> float | None:
        """Return the seconds by which the source's clock is ahead of this machine's.

        None if nothing is known of it.
        """


class LiveFeed:
    """Polls a source for the bars that should have closed.

    Args:
        fetch: reads rows of a ticker.
        tickers: all assets.
        timeframe: of the bars.
        name: of the source, for messages.
        skew: see `Feed.skew`.
        say: receives messages about impossible rows, which become holes, and missing tickers.
        sleep: waits that many seconds.
    """

    def __init__(
        self,
        fetch: Fetch,
        tickers: Sequence[str],
        timeframe: str,
        *,
        name: str,
        skew: Callable[[float], float | None] = lambda _: None,
        say: Callable[[str], None] = lambda _: None,
        sleep: Callable[[float], None] = clock.sleep,
    ) -> None:
        self.tickers, self.timeframe, self.name = tuple(tickers), timeframe, name
        self._fetch, self._skew, self._say, self._sleep = fetch, skew, say, sleep
        self._last: int | None = None  # open of the last delivered bar
        self._closes = np.zeros(len(self.tickers))
        self._strict = True  # until trading has begun
        self._refused: set[str] = set()
        self._impossible: set[tuple[str, int]] = set()  # rows that were reported
        # A bar that some tickers have, and when it was seen first.
        self._seen: tuple[int, float] | None = None
        # Consecutive holes of each ticker up to the last delivered bar.
        self._missed = np.zeros(len(self.tickers), dtype=np.int64)
        self.again: Mapping[str, Array] = {}

    @classmethod
    def of_source(
        cls,
        source: Source,
        tickers: Sequence[str],
        timeframe: str,
        *,
        symbols: Mapping[str, str] | None = None,
        say: Callable[[str], None] = lambda _: None,
        sleep: Callable[[float], None] = clock.sleep,
        begun: bool = False,
    ) -> LiveFeed:
        """Return a feed of an exchange (ccxt) or Alpaca.

        Args:
            source: the exchange.
            tickers: all assets.
            timeframe: of the bars.
            symbols: the source's names of tickers, where they differ.
            say: as in `LiveFeed`.
            sleep: as in `LiveFeed`.
            begun: trading began earlier, so a ticker that the exchange no longer has is accepted.
        """
        names = {ticker: (symbols or {}).get(ticker, ticker) for ticker in tickers}
        try:
            source.check(list(names.values()), timeframe)
        except InputError as error:
            if not begun:
                raise
            say(f"{error}; the others are traded")

        def fetch(ticker: str, start: int, end: int) -> Array:
            pages = list(source.pages(names[ticker], timeframe, start, end))
            return np.concatenate(pages) if pages else np.empty((0, 6))

        def skew(_now: float) -> float | None:
            return source.clock_skew()

        return cls(fetch, tickers, timeframe, name=source.name, skew=skew, say=say, sleep=sleep)

    @classmethod
    def of_folder(
        cls,
        data_dir: Path,
        tickers: Sequence[str],
        timeframe: str,
        *,
        say: Callable[[str], None] = lambda _: None,
        sleep: Callable[[float], None] = clock.sleep,
    ) -> LiveFeed:
        """Return a feed of the files in a folder, which are read again at every poll.

        Raises:
            InputError: a ticker has no file.
        """
        files = files_of(data_dir, timeframe)
        missing = [ticker for ticker in tickers if ticker not in files]
        if missing:
            raise InputError(f"--data-dir {data_dir}: no {timeframe} file for {', '.join(missing)}")

        newest = -math.inf  # opening time of the last bar

        def fetch(ticker: str, start: int, end: int) -> Array:
            nonlocal newest
            try:
                bars = read_bars(files[ticker], timeframe)
            except InputError as error:  # another program is writing it
                say(f"{error}; it will be read again")
                return np.empty((0, 6))
            if len(bars.time):
                newest = max(newest, float(bars.time[-1]))
            wanted = (bars.time >= start) & (bars.time < end)
            return np.column_stack([bars.time[wanted].astype(float), bars.values[wanted]])

        def skew(now: float) -> float | None:
            # The last bar may still be open, but it cannot open in the future.
            return max(0.0, newest - now)

        return cls(fetch, tickers, timeframe, name=str(data_dir), skew=skew, say=say, sleep=sleep)

    def start(
        self,
        count: int,
        now: float,
        last: int | None = None,
        prices: Mapping[str, float] | None = None,
    ) -> Bars:
        """See `Feed.start`."""
        self._strict = last is None
        # A restart continues at the last processed bar, even if newer ones have closed since.
        end = self._closed_until(now) if last is None else later(self.timeframe, last)
        start = later(self.timeframe, end, -(count + SPARE_BARS))
        found = self._history(start, end)
        self.again = {ticker: rows[-AGAIN_BARS:] for ticker, rows in found.items()}
        series = []
        for asset, (ticker, rows) in enumerate(found.items()):
            if not len(rows):
                rows = self._standing_still(ticker, start, (prices or {}).get(ticker))
            self._missed[asset] = 0
            if last is not None and rows[-1, 0] < last:  # a hole: the previous row continues
                self._missed[asset] = bars_between(self.timeframe, int(rows[-1, 0]), last)
                rows = np.vstack([rows, [last, *[rows[-1, 4]] * 4, 0.0]])
            times, none = rows[:, 0].astype(np.int64), np.zeros(0, dtype=np.int64)
            path = Path(f"{self.name} {ticker}")  # of no file: the name that messages show
            series.append(TickerBars(path, ticker, self.timeframe, times, rows[:, 1:], none))
        for problem in hole_problems(series, MAX_HOLE_SHARE):
            if last is None:
                raise InputError(problem)
            self._say(problem)
        bars = align(series)
        if len(bars) < count and last is None:
            raise InputError(
                f"{self.name} has {len(bars)} bars that all tickers have; {count} are needed to "
                "start"
            )
        self._last, self._closes, self._strict = int(bars.time[-1]), bars.close[-1].copy(), False
        return bars

    def _history(self, start: int, end: int) -> dict[str, Array]:
        """Return what the source has of every ticker.

        Once trading has begun, empty answers are requested again: the source may have failed, and a
        ticker without history counts as no longer traded.
        """
        found = {ticker: self._rows(ticker, start, end) for ticker in self.tickers}
        for pause in () if self._strict else EMPTY_PAUSES:
            empty = [
                ticker
                for ticker, rows in found.items()
                if not len(rows) and ticker not in self._refused
            ]
            if not empty:
                break
            self._sleep(pause)
            found |= {ticker: self._rows(ticker, start, end) for ticker in empty}
        silent = not any(map(len, found.values()))
        if silent and not self._strict and len(self._refused) < len(found):
            raise TryAgainLater(f"{self.name} has no bars of any ticker since {stamp(start)} UTC")
        return found

    def _standing_still(self, ticker: str, start: int, price: float | None) -> Array:
        """Return one row at the last price for a ticker without bars.

        Raises:
            InputError: trading has not begun, or the price of a refused ticker is unknown.
            TryAgainLater: the price is unknown.
        """
        problem = f"{self.name} has no bars of {ticker} since {stamp(start)} UTC"
        if self._strict or (price is None and ticker in self._refused):
            raise InputError(problem)
        if price is None:
            raise TryAgainLater(problem)
        self._say(f"{problem}; its price stays {price:,.8g}")
        return np.array([[start, *[price] * 4, 0.0]])

    def poll(self, now: float) -> list[ClosedBar]:
        """See `Feed.poll`."""
        if self._last is None:
            raise RunError("the feed was not started")
        first, end = later(self.timeframe, self._last), self._closed_until(now)
        self.again = {}
        if end <= first:
            return []
        start = later(self.timeframe, first, -AGAIN_BARS)
        answers = {ticker: self._rows(ticker, start, end) for ticker in self.tickers}
        self.again = {ticker: rows[rows[:, 0] < first] for ticker, rows in answers.items()}
        found = [
            {int(row[0]): row[1:] for row in rows if row[0] >= first} for rows in answers.values()
        ]
        given = []
        # No bar of any ticker: the source is late, which is no hole.
        newest = max((max(rows) for rows in found if rows), default=0)
        times = opening_times(self.timeframe, first, later(self.timeframe, end, -1))
        for time in times[times <= newest].tolist():
            late = [
                time not in rows and missed < GONE_BARS
                for rows, missed in zip(found, self._missed, strict=True)
            ]
            if any(late) and now < self._awaited_until(time, now):
                break  # it may still arrive
            given.append(self._bar(time, [rows.get(time) for rows in found]))
        return given

    def _awaited_until(self, time: int, now: float) -> float:
        """Return when a ticker without the bar that others have has a hole."""
        sessions = has_hours(self.timeframe) and bar_length(self.timeframe) == "1d"
        if not sessions:
            return bar_end(self.timeframe, time) + GRACE_SECONDS
        if self._seen is None or self._seen[0] != time:
            self._seen = time, now
        return self._seen[1] + SESSION_GRACE_SECONDS

    def age(self, now: float) -> float:
        """See `Feed.age`."""
        return math.inf if self._last is None else now - bar_end(self.timeframe, self._last)

    def skew(self, now: float) -> float | None:
        """See `Feed.skew`."""
        return self._skew(now)

    def _bar(self, time: int, rows: Sequence[Array | None]) -> ClosedBar:
        hole = np.array([row is None for row in rows])
        fill = np.column_stack([np.repeat(self._closes[:, None], 4, axis=1), np.zeros(len(rows))])
        values = np.array([fill[asset] if row is None else row for asset, row in enumerate(rows)])
        open_, high, low, close, volume = values.T.copy()
        # The last close continues through holes, as in data sets.
        self._last, self._closes, self._missed = time, close, np.where(hole, self._missed + 1, 0)
        return ClosedBar(time, open_, high, low, close, volume, hole)

    def _closed_until(self, now: float) -> int:
        """Return the opening time of the first bar that may not have closed yet."""
        return first_open_bar(self.timeframe, now - SETTLE_SECONDS)

    def _rows(self, ticker: str, start: int, end: int) -> Array:
        """Return a ticker's rows; a ticker that is refused once trading has begun has none."""
        try:
            rows = self._fetch(ticker, start, end)
        except InputError as error:
            if self._strict:
                raise
            if ticker not in self._refused:
                self._refused.add(ticker)
                self._say(f"{error}; its bars are holes from now on")
            rows = np.empty((0, 6))
        return self._sound(ticker, rows)

    def _sound(self, ticker: str, rows: Array) -> Array:
        """Return the possible rows in order; of several rows of one time, the last one."""
        time, prices, volume = rows[:, 0], rows[:, 1:5], rows[:, 5]
        with np.errstate(invalid="ignore"):
            good = (np.isfinite(prices) & (prices > 0)).all(axis=1)
            good &= on_grid(self.timeframe, time)
            good &= (rows[:, 2] >= rows[:, 3]) & np.isfinite(volume) & (volume >= 0)
        if not good.all():
            first = int(rows[~good][0, 0])
            if (ticker, first) not in self._impossible:  # it is requested several times
                self._impossible.add((ticker, first))
                self._say(
                    f"{self.name}: {ticker} has an impossible bar at {stamp(first)} UTC, which is "
                    "left out"
                )
        rows = rows[good]
        # `unique` keeps the first occurrence: reversed, that is the last row of a time.
        _, index = np.unique(rows[::-1, 0], return_index=True)
        return rows[::-1][index]


class RecordedFeed:
    """Recorded bars, which close as the clock advances."""

    def __init__(self, bars: Bars) -> None:
        self.tickers, self.timeframe = bars.tickers, bars.timeframe
        self._bars, self._next = bars, 0
        self._ends = bar_ends(bars.timeframe, bars.time)
        self.again: Mapping[str, Array] = {}

    def start(
        self,
        count: int,
        now: float,
        last: int | None = None,
        prices: Mapping[str, float] | None = None,
    ) -> Bars:
        """See `Feed.start`."""
        del prices
        end = (
            self._closed(now)
            if last is None
            else int(np.searchsorted(self._bars.time, last, side="right"))
        )
        if end < count and last is None:
            raise InputError(f"{end} bars lie before the replay; {count} are needed to start")
        self._next = end
        self.again = {
            ticker: self._rows(asset, max(0, end - AGAIN_BARS), end)
            for asset, ticker in enumerate(self.tickers)
        }
        return self._bars.slice(max(0, end - count - SPARE_BARS), end)

    def poll(self, now: float) -> list[ClosedBar]:
        """See `Feed.poll`."""
        self.again = {}  # nothing changes while it runs
        first, self._next = self._next, max(self._next, self._closed(now))
        return [ClosedBar.of(self._bars, bar) for bar in range(first, self._next)]

    def age(self, now: float) -> float:
        """See `Feed.age`; zero after the last bar."""
        return 0.0 if self.over else now - float(self._ends[self._next - 1])

    def skew(self, now: float) -> float | None:
        """See `Feed.skew`."""
        del now
        return None

    @property
    def over(self) -> bool:
        """Whether all bars have been delivered."""
        return self._next >= len(self._bars)

    def _rows(self, asset: int, first: int, end: int) -> Array:
        """Return a ticker's rows (n, 6) of bars first to end - 1, without holes."""
        bars = self._bars.slice(first, end)
        columns = (getattr(bars, name)[:, asset] for name in COLUMNS[:5])
        rows = np.column_stack([bars.time.astype(np.float64), *columns])
        return np.asarray(rows[~bars.hole[:, asset]])

    def _closed(self, now: float) -> int:
        return int(np.searchsorted(self._ends, now, side="right"))
