"""OHLCV bars of several assets on a common time grid: loading, alignment, checks, writing."""

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

from envs.crypto.data.bar_files import (
    TickerBars,
    file_name,
    files_of,
    problems,
    read_bars,
    resolve_tickers,
    stamp,
    write_file,
)
from envs.crypto.data.timeframe import bar_seconds
from envs.support.errors import InputError

MAX_HOLE_SHARE = 0.02  # fraction of missing bars


@dataclass(frozen=True, eq=False)
class Bars:
    """T bars of N assets on a grid without gaps. The arrays are read-only.

    Attributes:
        tickers: "BTC/USDT", …, in the order of assets used everywhere.
        timeframe: a key of `timeframe.SECONDS`.
        time: (T,) int64, opening times in seconds since the epoch (UTC), `bar_seconds` apart.
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
                    f"Bars.{name} has shape {array.shape}; expected {shape} (bars, tickers)"
                )
            object.__setattr__(self, name, array)
        if not self.tickers or len(set(self.tickers)) != len(self.tickers):
            raise ValueError(f"Bars.tickers {self.tickers} must be at least one name, each once")
        if np.any(self.time % step) or np.any(np.diff(self.time) != step):
            raise ValueError(
                f"Bars.time must rise by {step} s from bar to bar, on the {self.timeframe} grid"
            )

    def __len__(self) -> int:
        """Return T, the number of bars."""
        return len(self.time)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of tickers in order, timeframe, range, values and holes: the data's id."""
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
        """Return bars start … stop - 1 (views of the arrays), as Python's slices do."""
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
        """Return the opening time of a bar, UTC."""
        return pd.Timestamp(int(self.time[bar]), unit="s", tz="UTC")

    def bar_at(self, when: str | pd.Timestamp) -> int:
        """Return the bar that opens at `when` (UTC if naive).

        Raises:
            InputError: no bar opens at that time.
        """
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

    Files have freqtrade's names, such as BTC_USDT-1h.feather (or .parquet, .csv), and the columns
    date (UTC), open, high, low, close, volume.

    Args:
        data_dir: the folder.
        timeframe: of the bars.
        tickers: which tickers in which order ("BTC/USDT", "BTC_USDT", or "BTC" if unique); None for
            all, sorted.
        max_hole_share: largest fraction of missing bars per ticker within the common range.
        now: seconds since the epoch, to detect open bars; by default the current time.

    Raises:
        InputError: anything that `bar_files.problems` finds; tickers without a common range or with
            different quote currencies; real and synthetic bars together; too many holes. The
            message names file, row and value.
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
    """Yield one sentence for each reason why valid files do not form one market."""
    quotes = {bars.ticker.split("/")[1]: bars for bars in series}
    if len(quotes) > 1:
        one, other = list(quotes.values())[:2]
        yield (
            f"{one.path} and {other.path}: {one.ticker} and {other.ticker} are priced in different "
            "currencies; choose --tickers of one"
        )
    made = [bars for bars in series if bars.synthetic]
    real = [bars for bars in series if not bars.synthetic]
    if made and real:
        yield (
            f"{made[0].path} is synthetic and {real[0].path} is not; keep them in different folders"
        )
    last_start = max(series, key=lambda bars: int(bars.time[0]))
    first_end = min(series, key=lambda bars: int(bars.time[-1]))
    if last_start.time[0] > first_end.time[-1]:
        yield (
            f"{last_start.path}: row 0 is {stamp(last_start.time[0])} UTC, after "
            f"{first_end.ticker} ends ({stamp(first_end.time[-1])} in {first_end.path.name}): no "
            "overlap; leave one of them out of --tickers"
        )


def _common_range(series: Sequence[TickerBars]) -> tuple[int, int]:
    """Return the latest first time and the earliest last time."""
    return max(int(bars.time[0]) for bars in series), min(int(bars.time[-1]) for bars in series)


def align(series: Sequence[TickerBars]) -> Bars:
    """Put checked, overlapping tickers on the grid of their common range.

    Holes get the last close before them. There always is one, since the range starts at the latest
    first bar.
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
    """Yield one sentence for each ticker with too many holes in the common range.

    Holes are counted before alignment, so that a single wrong date far away does not require a grid
    of centuries.
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
                f"{bars.path}: {missing:,} of {expected:,} bars are missing "
                f"({missing / expected:.2%}; the first is {stamp(first)} UTC), above the limit of "
                f"{max_hole_share:.2%}; download it again or leave {bars.ticker} out"
            )


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
        path = Path(data_dir) / file_name(ticker, bars.timeframe)
        write_file(path, bars.time[real], values, {"synthetic": "true"} if bars.synthetic else None)
        paths.append(path)
    return paths
