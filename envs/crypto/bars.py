"""OHLCV bars of several assets on one grid of time: loading, aligning, checking, writing, naming by fingerprint."""

from __future__ import annotations

import hashlib
import json
import time as clock
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from envs.crypto.bar_files import (
    TickerBars,
    file_name,
    files_of,
    problems,
    read_bars,
    resolve_tickers,
    stamp,
    write_file,
)
from envs.crypto.timeframe import bar_seconds
from envs.support.errors import InputError

MAX_HOLE_SHARE = 0.02


@dataclass(frozen=True, eq=False)
class Bars:
    """N assets on one unbroken grid of T bars. Treat the arrays as read-only: the fingerprint is computed once.

    tickers: "BTC/USDT", …; their order is the order of the assets everywhere. timeframe: a name of `timeframe.SECONDS`.
    time: (T,) int64, bar open in seconds since the epoch UTC, each `bar_seconds` after the one before.
    open, high, low, close, volume: (T, N) float64, in quote units and base units; a hole has the last close before it
    in all four prices, and volume 0. hole: (T, N) bool, where the market had no bar. synthetic: not a real market.
    Raises ValueError where shapes or the grid are otherwise.
    """

    tickers: tuple[str, ...]
    timeframe: str
    time: np.ndarray
    open: np.ndarray
    high: np.ndarray
    low: np.ndarray
    close: np.ndarray
    volume: np.ndarray
    hole: np.ndarray
    synthetic: bool = False

    def __post_init__(self) -> None:
        step = bar_seconds(self.timeframe)
        object.__setattr__(self, "tickers", tuple(self.tickers))
        object.__setattr__(self, "time", np.ascontiguousarray(self.time, dtype=np.int64))
        shape = (len(self.time), len(self.tickers))
        for name in ("open", "high", "low", "close", "volume", "hole"):
            array: np.ndarray = np.ascontiguousarray(
                getattr(self, name), dtype=bool if name == "hole" else float
            )
            if array.shape != shape:
                raise ValueError(
                    f"Bars.{name} has shape {array.shape}; {shape} (bars, tickers) is right"
                )
            object.__setattr__(self, name, array)
        if not self.tickers or len(set(self.tickers)) != len(self.tickers):
            raise ValueError(f"Bars.tickers {self.tickers} must be at least one name, each once")
        if np.any(self.time % step) or np.any(np.diff(self.time) != step):
            raise ValueError(
                f"Bars.time must rise by {step} s from bar to bar, on the {self.timeframe} grid"
            )

    def __len__(self) -> int:
        """T, the number of bars."""
        return len(self.time)

    @cached_property
    def fingerprint(self) -> str:
        """Sha256 (hex) over tickers in order, timeframe, range, values and holes: the name of this set of data."""
        digest = hashlib.sha256()
        span = [int(self.time[0]), int(self.time[-1])] if len(self.time) else []
        header = {
            "tickers": self.tickers,
            "timeframe": self.timeframe,
            "range": span,
            "bars": len(self.time),
        }
        digest.update(json.dumps(header, sort_keys=True).encode())
        for values in (self.open, self.high, self.low, self.close, self.volume):
            digest.update(values.astype("<f8", copy=False).tobytes())
        digest.update(self.hole.astype(np.uint8).tobytes())
        return digest.hexdigest()

    def slice(self, start: int, stop: int) -> Bars:
        """Bars start … stop−1 (views of the same arrays), with Python's rules for slices."""
        part = slice(start, stop)
        return Bars(
            self.tickers,
            self.timeframe,
            self.time[part],
            self.open[part],
            self.high[part],
            self.low[part],
            self.close[part],
            self.volume[part],
            self.hole[part],
            self.synthetic,
        )

    def time_of(self, bar: int) -> pd.Timestamp:
        """When bar `bar` opened, UTC."""
        return pd.Timestamp(int(self.time[bar]), unit="s", tz="UTC")

    def bar_at(self, when: str | pd.Timestamp) -> int:
        """The bar that opens at `when` (naive = UTC). Raises InputError outside the range or off the grid."""
        moment = pd.Timestamp(when)
        moment = moment.tz_localize("UTC") if moment.tzinfo is None else moment.tz_convert("UTC")
        bar = int(np.searchsorted(self.time, int(moment.timestamp())))
        if bar == len(self.time) or self.time_of(bar) != moment:
            raise InputError(
                f"no {self.timeframe} bar opens at {moment:%Y-%m-%d %H:%M} UTC; "
                f"the bars run from {stamp(self.time[0])} to {stamp(self.time[-1])}"
            )
        return bar


def load_bars(
    data_dir: Path,
    timeframe: str,
    tickers: Sequence[str] | None = None,
    *,
    max_hole_share: float = MAX_HOLE_SHARE,
    now: float | None = None,
) -> Bars:
    """Read, check and align the bars of a folder.

    Files are named as freqtrade names them: BTC_USDT-1h.feather (or .parquet, .csv), columns date (UTC) open high low
    close volume. tickers: which and in what order ("BTC/USDT", "BTC_USDT", or "BTC" where unique); None: all of this
    timeframe, sorted. max_hole_share: the largest share of missing bars allowed for a ticker in the common range. now:
    seconds since the epoch, for telling open bars (default: the clock).

    Raises InputError, naming file, row and value, for everything of `bar_files.problems`, tickers that share no range
    or have different quote currencies, real and synthetic bars together, and too many holes.
    """
    data_dir = Path(data_dir)
    files = files_of(data_dir, timeframe)
    names = (
        tuple(files) if tickers is None else resolve_tickers(tickers, tuple(files), str(data_dir))
    )
    now = clock.time() if now is None else now
    series = []
    for name in names:
        bars = read_bars(files[name])
        for sentence in problems(bars, now):
            raise InputError(sentence)
        series.append(bars)
    for sentence in problems_together(series):
        raise InputError(sentence)
    for sentence in hole_problems(series, max_hole_share):
        raise InputError(sentence)
    return align(series)


def problems_together(series: Sequence[TickerBars]) -> Iterable[str]:
    """What keeps tickers, each right by itself, from being one market; one sentence each."""
    quotes = {bars.ticker.split("/")[1]: bars for bars in series}
    if len(quotes) > 1:
        one, other = list(quotes.values())[:2]
        yield (
            f"{one.path} and {other.path}: {one.ticker} and {other.ticker} are priced in different currencies; "
            "choose --tickers of one"
        )
    made = [bars for bars in series if bars.synthetic]
    real = [bars for bars in series if not bars.synthetic]
    if made and real:
        yield f"{made[0].path} is synthetic and {real[0].path} is not; keep them in different folders"
    last_start = max(series, key=lambda bars: int(bars.time[0]))
    first_end = min(series, key=lambda bars: int(bars.time[-1]))
    if last_start.time[0] > first_end.time[-1]:
        yield (
            f"{last_start.path}: row 0 is {stamp(last_start.time[0])} UTC, after {first_end.ticker} ends "
            f"({stamp(first_end.time[-1])} in {first_end.path.name}): no overlap; leave one of them out of --tickers"
        )


def _common_range(series: Sequence[TickerBars]) -> tuple[int, int]:
    """Times of the latest first bar and the earliest last one."""
    return max(int(bars.time[0]) for bars in series), min(int(bars.time[-1]) for bars in series)


def align(series: Sequence[TickerBars]) -> Bars:
    """Put checked, overlapping tickers on the grid of their common range; holes are filled with the last close.

    The range begins at the latest first bar and ends at the earliest last one, so every hole has a close before it.
    """
    timeframe = series[0].timeframe
    step = bar_seconds(timeframe)
    start, last = _common_range(series)
    grid = np.arange(start, last + step, step, dtype=np.int64)
    values = np.empty((5, len(grid), len(series)))
    hole = np.empty((len(grid), len(series)), dtype=np.bool_)
    for asset, bars in enumerate(series):
        row = np.searchsorted(bars.time, grid, side="right") - 1
        absent = bars.time[row] != grid
        found = bars.values[row]
        found[absent] = found[absent, 3:4]
        found[absent, 4] = 0.0
        values[:, :, asset] = found.T
        hole[:, asset] = absent
    tickers = tuple(bars.ticker for bars in series)
    open_, high, low, close, volume = values
    synthetic = any(bars.synthetic for bars in series)
    return Bars(tickers, timeframe, grid, open_, high, low, close, volume, hole, synthetic)


def hole_problems(series: Sequence[TickerBars], max_hole_share: float) -> Iterable[str]:
    """One sentence for each ticker whose share of holes in the common range is above the limit.

    Counted before anything is aligned, so that one stray date far away cannot ask for a grid of centuries.
    """
    step = bar_seconds(series[0].timeframe)
    start, last = _common_range(series)
    expected = (last - start) // step + 1
    for bars in series:
        inside = bars.time[
            np.searchsorted(bars.time, start) : np.searchsorted(bars.time, last, side="right")
        ]
        missing = expected - len(inside)
        if missing > max_hole_share * expected:
            edges = np.concatenate([[start - step], inside, [last + step]])
            first = int(edges[np.argmax(np.diff(edges) > step)]) + step
            yield (
                f"{bars.path}: {missing:,} of {expected:,} bars are missing ({missing / expected:.2%}; the first is "
                f"{stamp(first)} UTC), above the limit of {max_hole_share:.2%}; download it again or leave "
                f"{bars.ticker} out"
            )


def write_bars(bars: Bars, data_dir: Path) -> list[Path]:
    """Write one parquet file per ticker ("BTC_USDT-1h.parquet"), each whole or not at all; returns their paths.

    Holes are not written, so reading gives the same bars and fingerprint, less those before the first and after the
    last bar that each ticker really has. Synthetic bars say so in their file's metadata.
    """
    paths = []
    for asset, ticker in enumerate(bars.tickers):
        real = ~bars.hole[:, asset]
        columns = (bars.open, bars.high, bars.low, bars.close, bars.volume)
        values = np.stack([column[real, asset] for column in columns], axis=1)
        path = Path(data_dir) / file_name(ticker, bars.timeframe)
        write_file(path, bars.time[real], values, {"synthetic": "true"} if bars.synthetic else None)
        paths.append(path)
    return paths
