"""What a folder of bars holds, and everything that is wrong with it: the report behind `sweepd data check`."""

from __future__ import annotations

import hashlib
import time as clock
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from envs.crypto.bar_files import (
    TickerBars,
    files_of,
    find_files,
    problems,
    read_bars,
    resolve_tickers,
)
from envs.crypto.bars import MAX_HOLE_SHARE, Bars, align, hole_problems, problems_together
from envs.crypto.timeframe import bar_seconds
from envs.support.errors import InputError


@dataclass(frozen=True)
class TickerReport:
    """One file: times in seconds UTC, counts over its own range; a file that cannot be read has only problems."""

    ticker: str
    path: Path
    bars: int = 0
    first: int = 0
    last: int = 0
    holes: int = 0
    zero_volume: int = 0
    strays: int = (
        0  # bars whose open or close lies outside low … high: odd, and reported, but not refused
    )
    fingerprint: str = ""
    problems: tuple[str, ...] = ()

    @property
    def hole_share(self) -> float:
        """Missing bars over all bars there should be."""
        return self.holes / max(1, self.bars + self.holes)


@dataclass(frozen=True)
class FolderReport:
    """The files of one timeframe, and the market they make together (`bars`, None where something forbids it).

    outages: (first bar's time, number of bars) of each run of bars that no ticker has.
    """

    timeframe: str
    tickers: tuple[TickerReport, ...]
    bars: Bars | None
    outages: tuple[tuple[int, int], ...]
    problems: tuple[str, ...]

    @property
    def all_problems(self) -> tuple[str, ...]:
        """The files' problems, then those they have together."""
        return (
            tuple(sentence for report in self.tickers for sentence in report.problems)
            + self.problems
        )


def check_dir(
    data_dir: Path,
    timeframe: str | None = None,
    tickers: Sequence[str] | None = None,
    *,
    max_hole_share: float = MAX_HOLE_SHARE,
    now: float | None = None,
) -> list[FolderReport]:
    """Check the bars of a folder and report all problems, not just the first, one report per timeframe.

    timeframe: None for each one there is; the other arguments as for `load_bars`. What `load_bars` would raise is in
    the reports, except a missing or empty folder, timeframe or ticker, which raise InputError here too.
    """
    data_dir = Path(data_dir)
    now = clock.time() if now is None else now
    found = find_files(data_dir)
    timeframes = list(found) if timeframe is None and found else [timeframe or "1h"]
    reports = []
    for name in timeframes:
        files = files_of(data_dir, name)
        chosen = (
            tuple(files)
            if tickers is None
            else resolve_tickers(tickers, tuple(files), str(data_dir))
        )
        reports.append(
            _check_together(name, {ticker: files[ticker] for ticker in chosen}, max_hole_share, now)
        )
    return reports


def _check_together(
    timeframe: str, files: dict[str, Path], max_hole_share: float, now: float
) -> FolderReport:
    reports, series = [], []
    for ticker, path in files.items():
        try:
            bars = read_bars(path)
        except InputError as error:
            reports.append(TickerReport(ticker, path, problems=(str(error),)))
            continue
        series.append(bars)
        reports.append(_report(bars, tuple(problems(bars, now))))
    if any(report.problems for report in reports):
        return FolderReport(timeframe, tuple(reports), None, (), ())
    together = tuple(problems_together(series)) or tuple(hole_problems(series, max_hole_share))
    if together:
        return FolderReport(timeframe, tuple(reports), None, (), together)
    aligned = align(series)
    return FolderReport(timeframe, tuple(reports), aligned, _outages(aligned), ())


def _report(bars: TickerBars, found: tuple[str, ...]) -> TickerReport:
    step = bar_seconds(bars.timeframe)
    open_, high, low, close, volume = bars.values.T
    digest = hashlib.sha256(
        bars.time.astype("<i8").tobytes() + bars.values.astype("<f8").tobytes()
    ).hexdigest()
    first, last = int(bars.time[0]), int(bars.time[-1])
    return TickerReport(
        ticker=bars.ticker,
        path=bars.path,
        bars=len(bars.time),
        first=first,
        last=last,
        # Broken files have no meaningful number of holes; their problems are what matters.
        holes=0 if found else (last - first) // step + 1 - len(bars.time),
        zero_volume=int(np.count_nonzero(volume == 0)),
        strays=int(
            np.count_nonzero((np.maximum(open_, close) > high) | (np.minimum(open_, close) < low))
        ),
        fingerprint=digest,
        problems=found,
    )


def _outages(bars: Bars) -> tuple[tuple[int, int], ...]:
    """Runs of bars that are holes of every ticker: (time of the first, length)."""
    edge = np.diff(np.concatenate([[0], bars.hole.all(axis=1).astype(np.int8), [0]]))
    starts, stops = np.flatnonzero(edge == 1), np.flatnonzero(edge == -1)
    return tuple((int(bars.time[a]), int(b - a)) for a, b in zip(starts, stops, strict=True))
