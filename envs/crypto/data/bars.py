"""OHLCV bars of several assets on a common time grid: loading, alignment, checks, writing."""

from __future__ import annotations

import hashlib
import json
import time as clock
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import numpy as np

from sweepd.envs.crypto.data.bar_files import TickerBars, file_name, select_files, write_file
from sweepd.envs.crypto.data.problems import (
    MAX_HOLE_SHARE,
    common_range,
    market_problems,
    read_valid_bars,
)
from sweepd.envs.crypto.data.timeframe import has_hours, on_grid, opening_times
from sweepd.envs.support.errors import InputError

_ARRAYS = ("open", "high", "low", "close", "volume", "hole")  # (T, N) each


@dataclass(frozen=True, eq=False)
class Bars:
    """T bars of N assets on a grid without gaps. The arrays are read-only.

    Attributes:
        tickers: "BTC/USDT", …, in the order of assets used everywhere.
        timeframe: see `timeframe`.
        time: (T,) int64, opening times in seconds since the epoch (UTC), all of the timeframe's
            grid between the first and the last.
        open: (T, N) float64, in quote units, like high, low and close. In a hole all four prices
            are the last close before it.
        high: (T, N) float64.
        low: (T, N) float64.
        close: (T, N) float64.
        volume: (T, N) float64, in base units; 0 in a hole.
        hole: (T, N) bool, where the market has no bar.
        synthetic: whether the bars are generated.

    Raises:
        ValueError: a shape or the grid is wrong.
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
        object.__setattr__(self, "tickers", tuple(self.tickers))
        object.__setattr__(self, "time", np.ascontiguousarray(self.time, dtype=np.int64))
        shape = (len(self.time), len(self.tickers))
        for name in _ARRAYS:
            array: np.ndarray = np.ascontiguousarray(
                getattr(self, name), dtype=bool if name == "hole" else float
            )
            if array.shape != shape:
                raise ValueError(
                    f"Bars.{name} has shape {array.shape}; expected {shape} (bars, tickers)"
                )
            object.__setattr__(self, name, array)
        if not self.tickers or len(set(self.tickers)) != len(self.tickers):
            raise ValueError(f"Bars.tickers {self.tickers} must be at least one name, each once")
        grid = self.time
        if len(self.time):
            grid = opening_times(self.timeframe, int(self.time[0]), int(self.time[-1]))
        if not (np.array_equal(self.time, grid) and on_grid(self.timeframe, grid).all()):
            raise ValueError(
                f"Bars.time must rise from bar to bar of the {self.timeframe} grid, without gaps"
            )

    def __len__(self) -> int:
        """Return T, the number of bars."""
        return len(self.time)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of tickers in order, timeframe, range, values and holes: the data's id."""
        digest = hashlib.sha256()
        # The times follow from range and timeframe, since the grid has no gaps. Calendars may be
        # corrected, so with them the times count too.
        span = [int(self.time[0]), int(self.time[-1])] if len(self.time) else []
        header = {
            "tickers": self.tickers,
            "timeframe": self.timeframe,
            "range": span,
            "bars": len(self.time),
        }
        digest.update(json.dumps(header, sort_keys=True).encode())
        for values in (self.open, self.high, self.low, self.close, self.volume):
            # A fixed byte order, so that the fingerprint is the same on every machine.
            digest.update(values.astype("<f8", copy=False).tobytes())
        digest.update(self.hole.astype(np.uint8).tobytes())
        if has_hours(self.timeframe):
            digest.update(self.time.astype("<i8", copy=False).tobytes())
        return digest.hexdigest()

    def slice(self, start: int, stop: int) -> Bars:
        """Return bars start … stop - 1 (views of the arrays), as Python's slices do."""
        part = slice(start, stop)
        return replace(self, **{name: getattr(self, name)[part] for name in ("time", *_ARRAYS)})

    def between(self, first: int, last: int) -> Bars:
        """Return the bars that open from `first` to `last`, both included (seconds UTC)."""
        start, stop = np.searchsorted(self.time, [first, last + 1])
        return self.slice(int(start), int(stop))

    def select(self, tickers: Sequence[str]) -> Bars:
        """Return the bars of these tickers, in this order."""
        order = [self.tickers.index(ticker) for ticker in tickers]
        arrays = {name: getattr(self, name)[:, order] for name in _ARRAYS}
        return replace(self, tickers=tuple(tickers), **arrays)

    def time_of(self, bar: int) -> datetime:
        """Return the opening time of a bar, UTC."""
        return datetime.fromtimestamp(int(self.time[bar]), UTC)


def load_bars(
    data_dir: Path,
    timeframe: str,
    tickers: Sequence[str] | None = None,
    *,
    max_hole_share: float = MAX_HOLE_SHARE,
    now: float | None = None,
    accept_jumps: bool = False,
) -> Bars:
    """Read, check and align the bars of a folder.

    Files have freqtrade's names, such as BTC_USDT-1h.feather (or .parquet, .csv), and the columns
    date (UTC), open, high, low, close, volume.

    Args:
        data_dir: the folder.
        timeframe: of the bars.
        tickers: which tickers in which order ("BTC/USDT", "BTC_USDT", or "BTC" if unique); None for
            all, sorted.
        max_hole_share: largest fraction of missing bars per ticker within the common range.
        now: seconds since the epoch, to detect open bars; by default the current time.
        accept_jumps: whether to take bars that look wrong (see `jumps`): the user said so, or they
            are compared with what was recorded of them.

    Raises:
        InputError: anything that `file_problems`, `jump_problems` or `market_problems` find. The
            message names file, row and value.
    """
    now = clock.time() if now is None else now
    files = select_files(data_dir, timeframe, tickers)
    series = [
        read_valid_bars(path, now, timeframe, accept_jumps=accept_jumps) for path in files.values()
    ]
    for sentence in market_problems(series, max_hole_share):
        raise InputError(sentence)
    return align(series)


def align(series: Sequence[TickerBars]) -> Bars:
    """Put checked, overlapping tickers on the grid of their common range.

    Holes get the last close before them. There always is one, since the range starts at the latest
    first bar.
    """
    timeframe = series[0].timeframe
    start, last = common_range(series)
    grid = opening_times(timeframe, start, last)
    values = np.empty((5, len(grid), len(series)))
    hole = np.empty((len(grid), len(series)), dtype=np.bool_)
    for asset, bars in enumerate(series):
        # The ticker's last bar at or before each time of the grid.
        row = np.searchsorted(bars.time, grid, side="right") - 1
        absent = bars.time[row] != grid
        found = bars.values[row]
        found[absent] = found[absent, 3:4]  # all prices are the last close
        found[absent, 4] = 0.0
        values[:, :, asset] = found.T
        hole[:, asset] = absent
    tickers = tuple(bars.ticker for bars in series)
    open_, high, low, close, volume = values
    synthetic = any(bars.synthetic for bars in series)
    return Bars(tickers, timeframe, grid, open_, high, low, close, volume, hole, synthetic)


def write_bars(bars: Bars, data_dir: Path) -> list[Path]:
    """Write one parquet file per ticker ("BTC_USDT-1h.parquet"), each atomically.

    Holes are not written. Reading the files gives the same bars and fingerprint, except for holes
    before a ticker's first and after its last bar. Synthetic bars are marked in the metadata.

    Returns:
        The paths.
    """
    paths = []
    for asset, ticker in enumerate(bars.tickers):
        real = ~bars.hole[:, asset]
        columns = (bars.open, bars.high, bars.low, bars.close, bars.volume)
        values = np.stack([column[real, asset] for column in columns], axis=1)
        path = data_dir / file_name(ticker, bars.timeframe)
        write_file(path, bars.time[real], values, {"synthetic": "true"} if bars.synthetic else None)
        paths.append(path)
    return paths
