"""Content and problems of a folder of bars: the report of `sweepd data check`."""

from __future__ import annotations

import hashlib
import time as clock
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sweepd.envs.crypto.data.bar_files import TickerBars, find_files, read_bars, select_files
from sweepd.envs.crypto.data.bars import Bars, align
from sweepd.envs.crypto.data.jumps import find_jumps, jump_problems, unusual_moves
from sweepd.envs.crypto.data.problems import MAX_HOLE_SHARE, file_problems, market_problems
from sweepd.envs.crypto.data.timeframe import bars_between
from sweepd.envs.support.errors import InputError


@dataclass(frozen=True)
class TickerReport:
    """Report on one file. Counts are over its own range; an unreadable file only has problems.

    Attributes:
        ticker: "BTC/USDT".
        bars: number of bars.
        first: opening time of the first bar, seconds UTC.
        last: opening time of the last bar, seconds UTC.
        holes: missing bars between them.
        zero_volume: bars without volume.
        strays: bars with open or close outside low … high. They are unusual but not refused.
        fingerprint: SHA-256 of times and values.
        jumps: accepted jumps.
        moves: (time, factor) of closes that are unusually far from the last one, but taken.
        problems: one sentence each.
    """

    ticker: str
    bars: int = 0
    first: int = 0
    last: int = 0
    holes: int = 0
    zero_volume: int = 0
    strays: int = 0
    fingerprint: str = ""
    jumps: int = 0
    moves: tuple[tuple[int, float], ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def hole_share(self) -> float:
        """Return the fraction of missing bars."""
        return self.holes / max(1, self.bars + self.holes)


@dataclass(frozen=True)
class FolderReport:
    """Report on the files of one timeframe and the market that they form.

    Attributes:
        timeframe: of the files.
        tickers: one report per file.
        bars: the aligned market; None if a problem prevents it.
        outages: (time of the first bar, number of bars) of each run of bars missing in all tickers.
        problems: problems of the files together.
    """

    timeframe: str
    tickers: tuple[TickerReport, ...]
    bars: Bars | None
    outages: tuple[tuple[int, int], ...]
    problems: tuple[str, ...]

    @property
    def all_problems(self) -> tuple[str, ...]:
        """Return the problems of the files, then those of the files together."""
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
    accept_jumps: bool = False,
) -> list[FolderReport]:
    """Check the bars of a folder and report all problems.

    Args:
        data_dir: the folder.
        timeframe: the timeframe to check; None for all in the folder.
        tickers: as in `load_bars`.
        max_hole_share: as in `load_bars`.
        now: as in `load_bars`.
        accept_jumps: as in `load_bars`.

    Returns:
        One report per timeframe, with everything for which `load_bars` would raise.

    Raises:
        InputError: the folder, timeframe or a ticker does not exist.
    """
    now = clock.time() if now is None else now
    found = find_files(data_dir)
    # In an empty folder, `select_files` raises for any timeframe.
    timeframes = list(found) if timeframe is None and found else [timeframe or "1h"]
    return [
        _check_together(
            name, select_files(data_dir, name, tickers), max_hole_share, now, accept_jumps
        )
        for name in timeframes
    ]


def _check_together(
    timeframe: str, files: dict[str, Path], max_hole_share: float, now: float, accept_jumps: bool
) -> FolderReport:
    reports, series = [], []
    for ticker, path in files.items():
        try:
            bars = read_bars(path, timeframe)
        except InputError as error:
            reports.append(TickerReport(ticker, problems=(str(error),)))
            continue
        series.append(bars)
        reports.append(_report(bars, tuple(file_problems(bars, now)), accept_jumps))
    # Files with problems cannot be aligned, and problems of the market would only repeat them.
    if any(report.problems for report in reports):
        return FolderReport(timeframe, tuple(reports), None, (), ())
    together = tuple(market_problems(series, max_hole_share))
    if together:
        return FolderReport(timeframe, tuple(reports), None, (), together)
    aligned = align(series)
    return FolderReport(timeframe, tuple(reports), aligned, _outages(aligned), ())


def _report(bars: TickerBars, found: tuple[str, ...], accept_jumps: bool) -> TickerReport:
    jumps, moves = 0, []
    if not found:  # of valid prices only
        found = () if accept_jumps else tuple(jump_problems(bars))
        jumps = 0 if found else len(find_jumps(bars))
        moves = [(int(bars.time[row]), factor) for row, factor in unusual_moves(bars)]
    open_, high, low, close, volume = bars.values.T
    # A fixed byte order, so that the fingerprint is the same on every machine.
    digest = hashlib.sha256(
        bars.time.astype("<i8").tobytes() + bars.values.astype("<f8").tobytes()
    ).hexdigest()
    first, last = int(bars.time[0]), int(bars.time[-1])
    return TickerReport(
        ticker=bars.ticker,
        bars=len(bars.time),
        first=first,
        last=last,
        # The number of holes is undefined in a file with problems.
        holes=0 if found else bars_between(bars.timeframe, first, last) + 1 - len(bars.time),
        zero_volume=int(np.count_nonzero(volume == 0)),
        strays=int(
            np.count_nonzero((np.maximum(open_, close) > high) | (np.minimum(open_, close) < low))
        ),
        fingerprint=digest,
        jumps=jumps,
        moves=tuple(moves),
        problems=found,
    )


def _outages(bars: Bars) -> tuple[tuple[int, int], ...]:
    """Return the runs of bars that are holes of all tickers: (time of the first, length)."""
    # Starts and ends of runs are the changes of the mask, padded with False on both sides.
    missing = bars.hole.all(axis=1).astype(np.int8)
    change = np.flatnonzero(np.diff(missing, prepend=0, append=0))
    return tuple(
        (int(bars.time[start]), int(stop - start)) for start, stop in change.reshape(-1, 2)
    )
