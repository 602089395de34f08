"""Download of bars into a folder: resumable, closed bars only, atomic files."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sweepd.envs.crypto.data.bar_files import (
    TickerBars,
    file_name,
    find_files,
    read_bars,
    stamp,
    write_file,
)
from sweepd.envs.crypto.data.jumps import jump_problems, with_accepted
from sweepd.envs.crypto.data.problems import read_valid_bars
from sweepd.envs.crypto.data.sources import Source
from sweepd.envs.crypto.data.timeframe import (
    bar_length,
    bar_number,
    bar_time,
    first_open_bar,
    later,
    on_grid,
)
from sweepd.envs.support.errors import InputError, RunError

# Seconds after its end from which a bar counts as closed, for late trades and clock differences.
SETTLE_SECONDS = 30
# Share by which the last close differs after a split, and does not after a correction.
OTHER_UNITS = 0.05
SAVE_EVERY = 100_000  # bars kept in memory before the file is written


@dataclass(frozen=True)
class Downloaded:
    """Result for one ticker.

    Attributes:
        ticker: "BTC/USDT".
        path: the file.
        new: bars written by this download.
        total: bars in the file.
        first: opening time of the first bar, seconds UTC.
        last: opening time of the last bar, seconds UTC.
        left_out: bars with invalid values, which become holes.
        problems: one sentence for each kind of jump that was not accepted; the bars are in the file.
    """

    ticker: str
    path: Path
    new: int
    total: int
    first: int
    last: int
    left_out: int
    problems: tuple[str, ...] = ()


def full_tickers(tickers: Sequence[str], source: Source) -> tuple[str, ...]:
    """Return names as "BASE/QUOTE"; "BTC" gets the source's default quote currency.

    Raises:
        InputError: a name is not a ticker or is repeated, or there is none.
    """
    names: list[str] = []
    for text in tickers:
        parts = text.strip().upper().replace("_", "/").replace("-", "/").split("/")
        if len(parts) == 1:
            parts.append(source.quote)
        if len(parts) != 2 or not all(part.isascii() and part.isalnum() for part in parts):
            raise InputError(f"--tickers {text!r}: not a ticker; write it like BTC/{source.quote}")
        name = "/".join(parts)
        if name in names:
            raise InputError(f"--tickers {text!r}: {name} is named twice; name each ticker once")
        names.append(name)
    if not names:
        raise InputError(f"--tickers is empty; name at least one, like BTC/{source.quote}")
    return tuple(names)


def download(
    source: Source,
    data_dir: Path,
    timeframe: str,
    tickers: Sequence[str],
    start: int,
    end: int | None = None,
    *,
    accept_jumps: bool = False,
    now: Callable[[], float] = clock.time,
    on_progress: Callable[[str, float], None] = lambda _ticker, _fraction: None,
) -> list[Downloaded]:
    """Update the files of `tickers`, or create them.

    Continues after the last stored bar, and before the first one if `start` is earlier than in any
    download before. Only bars that have been closed for `SETTLE_SECONDS` are kept. If the download
    fails, the bars fetched so far are stored, and each file is complete.

    Args:
        source: where to fetch bars.
        data_dir: folder of the files.
        timeframe: of the bars.
        tickers: as in `full_tickers`.
        start: seconds UTC; bars with start ≤ time < end are fetched.
        end: seconds UTC; None for now.
        accept_jumps: record that bars that look wrong are taken, see `jumps`.
        now: clock, for tests.
        on_progress: called with a ticker and the fraction of its time range done, 0 … 1.

    Raises:
        InputError: a name or time is wrong, or a file comes from another source.
        RunError: the source or the disk fails.
    """
    names = full_tickers(tickers, source)
    # Start of the bar that is still open, and the first bar that opens at `start` or later.
    stop = first_open_bar(timeframe, now() - SETTLE_SECONDS)
    if end is not None:
        stop = min(stop, first_open_bar(timeframe, end))
    start = bar_time(timeframe, bar_number(timeframe, int(start)))
    if start >= stop:
        raise InputError(
            f"--start {stamp(start)}: no {timeframe} bar closes between it and {stamp(stop)} UTC; "
            "give an earlier start"
        )
    # All files are read before the first request, so that a bad one costs no download.
    stored = {name: _stored(source, data_dir, name, timeframe, now()) for name in names}
    source.check(names, timeframe)
    try:
        return [
            _checked(
                _Ticker(source, data_dir, name, timeframe, stored[name]).fetch(
                    start, stop, on_progress
                ),
                timeframe,
                accept_jumps,
            )
            for name in names
        ]
    except OSError as error:
        raise RunError(f"{data_dir}: cannot be written ({error.strerror or error})") from None


def _checked(result: Downloaded, timeframe: str, accept_jumps: bool) -> Downloaded:
    """Check a file for jumps, or record them as accepted.

    The source may correct its bars, so they are kept, and whatever uses them refuses them.
    """
    bars = read_bars(result.path, timeframe)
    if not accept_jumps:
        return replace(result, problems=tuple(jump_problems(bars)))
    accepted = with_accepted(bars)
    if accepted.metadata != bars.metadata:
        write_file(result.path, bars.time, bars.values, accepted.metadata)
    return result


def _stored(
    source: Source, data_dir: Path, ticker: str, timeframe: str, now: float
) -> TickerBars | None:
    path = data_dir / file_name(ticker, timeframe)
    files = find_files(data_dir) if data_dir.exists() else {}
    there = files.get(bar_length(timeframe), {}).get(ticker)
    if there is None:
        return None
    if there != path:
        raise InputError(
            f"{there}: {ticker} is already there in another format; give another --data-dir"
        )
    bars = read_valid_bars(path, now, timeframe, accept_jumps=True)
    origin = bars.metadata.get("source", "")
    if origin != source.name:
        raise InputError(
            f"{path}: comes from {origin or 'another program'}, not from {source.name}; bars of "
            "two sources are not joined: give another --data-dir"
        )
    return bars


class _Ticker:
    """The file of one ticker during its download."""

    def __init__(
        self, source: Source, data_dir: Path, ticker: str, timeframe: str, stored: TickerBars | None
    ) -> None:
        self.source, self.ticker, self.timeframe = source, ticker, timeframe
        self.path = data_dir / file_name(ticker, timeframe)
        self.rows = np.empty((0, 6))
        self.asked_from: int | None = None
        if stored is not None:
            self.rows = np.concatenate(
                [stored.time[:, None].astype(np.float64), stored.values], axis=1
            )
            # The range asked for, not the first bar: bars before a listing do not exist and must
            # not be asked for again by every download.
            self.asked_from = int(stored.metadata.get("asked_from", stored.time[0]))
        self.metadata = {} if stored is None else dict(stored.metadata)
        self.saved = (len(self.rows), self.asked_from)
        self.left_out = 0

    def fetch(self, start: int, stop: int, on_progress: Callable[[str, float], None]) -> Downloaded:
        before = len(self.rows)
        if before and self.source.adjusts:
            self._check_units()
        if self.asked_from is not None and start < self.asked_from:
            first = int(self.rows[0, 0])
            # All or nothing: a partial result would leave a gap that no later run fills.
            head = [
                self._clean(page, start, first) for page in self._pages(start, first, on_progress)
            ]
            self.rows = np.concatenate([*head, self.rows])
        self.asked_from = start if self.asked_from is None else min(start, self.asked_from)
        begin = self._after(self.rows) if len(self.rows) else start
        pending: list[np.ndarray] = []
        try:
            for page in self._pages(begin, stop, on_progress):
                page = self._clean(page, begin, stop)
                if len(page):
                    pending.append(page)
                    begin = self._after(page)
                if sum(map(len, pending)) >= SAVE_EVERY:
                    self._save(pending)
                    pending = []
        finally:  # also after an error or Ctrl-C: what was fetched is kept
            self._save(pending)
        on_progress(self.ticker, 1.0)
        if not len(self.rows):
            raise InputError(
                f"--tickers {self.ticker}: {self.source.name} has no {self.timeframe} bars of it "
                f"between {stamp(start)} and {stamp(stop)} UTC; check the name or give other times"
            )
        first, last = int(self.rows[0, 0]), int(self.rows[-1, 0])
        return Downloaded(
            self.ticker,
            self.path,
            len(self.rows) - before,
            len(self.rows),
            first,
            last,
            self.left_out,
        )

    def _pages(
        self, start: int, stop: int, on_progress: Callable[[str, float], None]
    ) -> Iterator[np.ndarray]:
        if start >= stop:
            return
        on_progress(self.ticker, 0.0)
        for page in self.source.pages(self.ticker, self.timeframe, start, stop):
            yield page
            if len(page):
                done = (self._after(page) - start) / (stop - start)
                on_progress(self.ticker, min(1.0, max(0.0, done)))

    def _check_units(self) -> None:
        """Refuse to continue a file whose last bar the source now has in other units."""
        last, close = int(self.rows[-1, 0]), float(self.rows[-1, 4])
        pages = self.source.pages(self.ticker, self.timeframe, last, later(self.timeframe, last))
        for row in np.concatenate([np.empty((0, 6)), *pages]):
            if row[0] == last and abs(row[4] / close - 1.0) > OTHER_UNITS:
                raise InputError(
                    f"{self.path}: the close of {stamp(last)} UTC is {close:g}, and {row[4]:g} at "
                    f"{self.source.name} by now, as after a split: download into another folder"
                )

    def _after(self, rows: np.ndarray) -> int:
        """Return the time of the bar after the last of some rows."""
        return later(self.timeframe, int(rows[-1, 0]))

    def _clean(self, page: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Return rows of this range, sorted and without duplicates; leave out invalid ones."""
        page = page[(page[:, 0] >= start) & (page[:, 0] < stop)]
        page = page[np.unique(page[:, 0], return_index=True)[1]]
        good = np.isfinite(page).all(axis=1) & (page[:, 1:5] > 0).all(axis=1) & (page[:, 5] >= 0)
        good &= (page[:, 2] >= page[:, 3]) & on_grid(self.timeframe, page[:, 0])
        self.left_out += int(np.count_nonzero(~good))
        kept: np.ndarray = page[good]
        return kept

    def _save(self, pending: Sequence[np.ndarray]) -> None:
        self.rows = np.concatenate([self.rows, *pending])
        if not len(self.rows) or self.saved == (len(self.rows), self.asked_from):
            return
        metadata = self.metadata | {"source": self.source.name, "asked_from": str(self.asked_from)}
        write_file(self.path, self.rows[:, 0].astype(np.int64), self.rows[:, 1:], metadata)
        self.saved = (len(self.rows), self.asked_from)
