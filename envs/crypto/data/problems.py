"""What is wrong with bars: sentences about files, and about files that should form one market."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from sweepd.envs.crypto.data.bar_files import PRICES, TickerBars, read_bars, stamp
from sweepd.envs.crypto.data.jumps import jump_problems
from sweepd.envs.crypto.data.timeframe import (
    DAY,
    SECONDS,
    Times,
    bar_end,
    bar_ends,
    bar_length,
    bar_seconds,
    bars_between,
    calendar_of,
    has_hours,
    on_grid,
    opening_times,
)
from sweepd.envs.support.errors import InputError

MAX_HOLE_SHARE = 0.02  # fraction of missing bars

# Which rows are wrong, (n,) bool, and what is wrong with the first one.
RowCheck = tuple[np.ndarray, Callable[[int], str]]


def read_valid_bars(
    path: Path, now: float, timeframe: str | None = None, *, accept_jumps: bool = False
) -> TickerBars:
    """Read one file.

    Args:
        path: the file.
        now: seconds since the epoch.
        timeframe: as for `read_bars`.
        accept_jumps: whether to leave out the check for jumps.

    Raises:
        InputError: as `read_bars`, or `file_problems` or `jump_problems` finds a problem.
    """
    bars = read_bars(path, timeframe)
    for sentence in file_problems(bars, now):
        raise InputError(sentence)
    if not accept_jumps:
        for sentence in jump_problems(bars):
            raise InputError(sentence)
    return bars


def file_problems(bars: TickerBars, now: float) -> Iterator[str]:
    """Yield one sentence for each problem of a file's bars, the most severe first.

    Args:
        bars: the file's content.
        now: seconds since the epoch.
    """
    spacing = _spacing_problem(bars)
    # With another spacing, every row would be off the grid or followed by a hole.
    checks = _order_check(bars) if spacing else [*_order_check(bars), *_row_checks(bars, now)]
    for wrong, describe in checks:
        rows = np.flatnonzero(wrong)
        if len(rows):
            row = int(rows[0])
            more = f" ({len(rows)} such rows)" if len(rows) > 1 else ""
            when = stamp(bars.time[row])
            yield f"{bars.path}: row {row} ({when} UTC): {describe(row)}{more}"
    if spacing:
        yield spacing


def _order_check(bars: TickerBars) -> list[RowCheck]:
    gaps = np.diff(bars.time, prepend=bars.time[0] - 1)

    def describe(row: int) -> str:
        verb = "repeats the time of row" if gaps[row] == 0 else "is earlier than row"
        return f"the bar {verb} {row - 1}; times must rise from row to row"

    return [(gaps <= 0, describe)]


def _spacing_problem(bars: TickerBars) -> str | None:
    """Return a sentence if the bars have another timeframe than the file's name says."""
    step = bar_seconds(bars.timeframe)
    gaps = np.diff(bars.time)
    forward = gaps[gaps > 0]
    # A single bar off the grid or missing bars (holes) leave a gap of one step somewhere and the
    # median at a step or more. If not, the timeframe is another one.
    if not len(forward) or (np.median(forward) >= step and np.min(forward) <= step):
        return None
    usual = int(np.median(forward))
    spacing = {seconds: name for name, seconds in SECONDS.items()}.get(usual, f"{usual} s")
    return (
        f"{bars.path}: its bars are {spacing} apart, but its name says {bars.timeframe}; "
        "timeframes cannot be mixed: rename or replace it"
    )


def _row_checks(bars: TickerBars, now: float) -> list[RowCheck]:
    """Return the checks of single rows, the most severe first."""
    off_grid = ~on_grid(bars.timeframe, bars.time)
    off_grid[bars.subsecond] = True
    high, low, volume = bars.values[:, 1], bars.values[:, 2], bars.values[:, 4]
    # An open bar is refused instead of dropped: otherwise the same folder would give different data
    # a minute later. Synthetic markets may lie in the future.
    still_open = (bar_ends(bars.timeframe, bars.time) > now) & (not bars.synthetic)
    return [
        (off_grid, lambda _: f"the bar is off the grid; {grid_words(bars.timeframe)}"),
        *(_price_check(name, bars.values[:, column]) for column, name in enumerate(PRICES)),
        (high < low, lambda row: f"high {float(high[row])!r} is below low {float(low[row])!r}"),
        (
            ~(np.isfinite(volume) & (volume >= 0)),
            lambda row: f"volume is {volume[row]:g}; volumes must be finite and not below zero",
        ),
        (
            still_open,
            lambda row: (
                f"the bar is still open until "
                f"{stamp(bar_end(bars.timeframe, int(bars.time[row])))} UTC (now "
                f"{stamp(int(now))}); remove it, since only closed bars are traded"
            ),
        ),
    ]


def grid_words(timeframe: str) -> str:
    """Say on which times bars of a timeframe open."""
    length, calendar = bar_length(timeframe), calendar_of(timeframe)
    if not calendar:
        return f"{length} bars must open at whole multiples of {length} UTC"
    if length == "1d":
        return f"bars of {timeframe} are named by days (00:00 UTC) with a session of {calendar}"
    return f"bars of {timeframe} open with a session of {calendar} and every {length} after it"


def _price_check(name: str, price: np.ndarray) -> RowCheck:
    # Not `price <= 0`: NaN must be found as well.
    wrong = ~(np.isfinite(price) & (price > 0))
    return wrong, lambda row: f"{name} is {price[row]:g}; prices must be finite and above zero"


def market_problems(series: Sequence[TickerBars], max_hole_share: float) -> Iterator[str]:
    """Yield one sentence for each reason why valid files do not form one market."""
    mixed = list(_mixing_problems(series))
    yield from mixed
    if not mixed:  # without a common range, holes are undefined
        yield from hole_problems(series, max_hole_share)


def _mixing_problems(series: Sequence[TickerBars]) -> Iterator[str]:
    """Yield different currencies, real with synthetic bars, and ranges without an overlap."""
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


def common_range(series: Sequence[TickerBars]) -> tuple[int, int]:
    """Return the latest first time and the earliest last time."""
    return max(int(bars.time[0]) for bars in series), min(int(bars.time[-1]) for bars in series)


def hole_problems(series: Sequence[TickerBars], max_hole_share: float) -> Iterator[str]:
    """Yield one sentence for each ticker with too many holes in the common range.

    Holes are counted before alignment, so that a single wrong date far away does not require a grid
    of centuries.
    """
    timeframe = series[0].timeframe
    start, last = common_range(series)
    expected = bars_between(timeframe, start, last) + 1
    for bars in series:
        inside = bars.time[
            np.searchsorted(bars.time, start) : np.searchsorted(bars.time, last, side="right")
        ]
        missing = expected - len(inside)
        if missing > max_hole_share * expected:
            first = _first_hole(timeframe, start, last, inside)
            yield (
                f"{bars.path}: {missing:,} of {expected:,} bars are missing "
                f"({missing / expected:.2%}; the first is {stamp(first)} UTC), above the limit of "
                f"{max_hole_share:.2%}; {_advice(bars)}"
            )


def _first_hole(timeframe: str, start: int, last: int, inside: Times) -> int:
    if has_hours(timeframe):
        return int(np.setdiff1d(opening_times(timeframe, start, last), inside)[0])
    step = bar_seconds(timeframe)
    edges = np.concatenate([[start - step], inside, [last + step]])
    return int(edges[np.argmax(np.diff(edges) > step)]) + step


def _advice(bars: TickerBars) -> str:
    # 1970-01-01 was a Thursday: day 2 was a Saturday.
    if not has_hours(bars.timeframe) and not np.any((bars.time // DAY - 2) % 7 < 2):
        return (
            "none is of a Saturday or Sunday: for a market with hours, name its calendar, such as "
            f"--timeframe {bars.timeframe}-XNYS"
        )
    return f"download it again or leave {bars.ticker} out"
