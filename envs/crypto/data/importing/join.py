"""Rows of several files joined to the bars of one ticker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sweepd.envs.crypto.data.bar_files import TickerBars, stamp
from sweepd.envs.crypto.data.importing.rows import Array, Rows
from sweepd.envs.crypto.data.importing.times import Ints
from sweepd.envs.crypto.data.problems import file_problems, grid_words
from sweepd.envs.crypto.data.timeframe import (
    DAY,
    SECONDS,
    bar_ends,
    bar_length,
    bar_seconds,
    on_grid,
)
from sweepd.envs.support.errors import InputError

_THURSDAY = 3  # 1970-01-01, counted from Monday
_SATURDAY = 5


@dataclass(frozen=True, eq=False)
class Joined:
    """The bars of one ticker and timeframe.

    Attributes:
        bars: sorted, each time once, closed, with valid prices.
        files: number of files that they come from.
        repeated: rows left out because another is equal.
        invalid: rows left out because a price is empty or not above zero, or high below low.
        open: rows left out because the bar has not closed yet.
        sessions: whether times are days of a market that closes at night and at weekends.
        origin: (n, 2) of each bar, the number of its file among those joined and its row there.
        accepted: number of jumps that were accepted.
    """

    bars: TickerBars
    files: int
    repeated: int
    invalid: int
    open: int
    sessions: bool
    origin: Ints
    accepted: int = 0


def timeframe_of(parts: Sequence[Rows]) -> str:
    """Return the timeframe of a ticker's files: what their names say, or the usual distance.

    Raises:
        InputError: the names and the distances of bars contradict each other, there is only one bar
            whose file does not say, or bars are apart by something that is no timeframe.
    """
    source = parts[0].source
    named = parts[0].timeframe
    times = np.unique(np.concatenate([rows.times.seconds for rows in parts]))
    gaps = np.diff(times)
    if not len(gaps):
        if named is None:
            raise InputError(f"{source}: holds one bar only; give its length with --timeframe")
        return named
    lengths, counts = np.unique(gaps, return_counts=True)
    usual = int(lengths[np.argmax(counts)])
    found = {seconds: name for name, seconds in SECONDS.items()}.get(usual)
    if named is not None:
        # Where bars without trades are left out, the usual distance may be a multiple.
        several = usual > bar_seconds(named) and counts.max() > 0.9 * len(gaps)
        if usual % bar_seconds(named) or (several and found is not None):
            raise InputError(
                f"{source}: its bars are {found or f'{usual:,} s'} apart, but its name (or "
                f"--timeframe) says {named}"
            )
        return named
    if found is None:
        days = f"{usual / DAY:g} days" if usual >= DAY else f"{usual:,} s"
        raise InputError(
            f"{source}: its bars are {days} apart; timeframes are {', '.join(SECONDS)}"
        )
    return found


def join(parts: Sequence[Rows], timeframe: str, now: float) -> Joined:
    """Join a ticker's files.

    Raises:
        InputError: two rows of a time differ, times are off the grid of the timeframe, or no valid
            row is left.
    """
    ticker = parts[0].ticker
    times, sessions = _opening_times(parts, timeframe)
    time = np.concatenate(times)
    values = np.concatenate([rows.values for rows in parts])
    # (number of the part, row in it)
    origin = np.concatenate(
        [
            np.stack([np.full(len(rows.values), number), np.arange(len(rows.values))], axis=1)
            for number, rows in enumerate(parts)
        ]
    )
    order = np.argsort(time, kind="stable")
    time, values, origin = time[order], values[order], origin[order]
    good = _valid(values)
    invalid = int(np.count_nonzero(~good))
    time, values, origin = time[good], values[good], origin[good]
    repeated = _repeated(parts, time, values, origin)
    time, values, origin = time[~repeated], values[~repeated], origin[~repeated]
    still_open = bar_ends(timeframe, time) > now
    time, values, origin = time[~still_open], values[~still_open], origin[~still_open]
    if not len(time):
        raise InputError(f"{parts[0].source}: no closed bar with valid prices is left")
    off = np.flatnonzero(~on_grid(timeframe, time))
    if len(off):
        row = int(off[0])
        raise InputError(
            f"{parts[int(origin[row, 0])].source}: the bar of {stamp(time[row])} UTC is off the grid; "
            f"{grid_words(timeframe)}. {_off_grid_advice(timeframe)}"
        )
    path = Path(parts[0].source)
    none = np.empty(0, dtype=np.int64)
    bars = TickerBars(path, ticker, timeframe, time, values, none)
    for sentence in file_problems(bars, now):
        raise InputError(sentence)
    count = int(np.count_nonzero(repeated))
    return Joined(
        bars,
        len({rows.source for rows in parts}),
        count,
        invalid,
        int(np.count_nonzero(still_open)),
        sessions,
        origin,
    )


def _off_grid_advice(timeframe: str) -> str:
    if bar_length(timeframe) == "1d":
        return "If the days are of another time zone, name it: --timezone America/New_York"
    return (
        "If the times are of another time zone, name it (--timezone America/New_York); for a market "
        f"with hours, name its calendar, such as --timeframe {bar_length(timeframe)}-XNYS"
    )


def _opening_times(parts: Sequence[Rows], timeframe: str) -> tuple[list[Ints], bool]:
    """Return the opening times of each file, UTC, and whether they are days of sessions.

    Daily bars of a market that closes at weekends are named by their day in the market's own zone:
    midnight in New York on a Tuesday is Tuesday's bar, not Monday's.
    """
    exact = [rows.times.seconds for rows in parts]
    for rows in parts:
        if rows.times.fraction.any():
            row = int(np.flatnonzero(rows.times.fraction)[0])
            raise InputError(
                f"{rows.source}: row {row} ({stamp(rows.times.seconds[row])} UTC): the time is no "
                "whole second"
            )
    if bar_length(timeframe) != "1d":
        return exact, False
    wall = [rows.times.wall for rows in parts]
    days = np.concatenate(wall) // DAY
    clock = np.concatenate(wall) % DAY
    weekdays_only = bool(np.all((days + _THURSDAY) % 7 < _SATURDAY))
    if weekdays_only and len(days) >= 5 and np.all(clock == clock[0]):
        return [time // DAY * DAY for time in wall], True
    return exact, False


def _valid(values: Array) -> NDArray[np.bool_]:
    prices, volume = values[:, :4], values[:, 4]
    good: NDArray[np.bool_] = (
        np.isfinite(values).all(axis=1) & (prices > 0).all(axis=1) & (volume >= 0)
    )
    return good & (values[:, 1] >= values[:, 2])


def _repeated(parts: Sequence[Rows], time: Ints, values: Array, origin: Ints) -> NDArray[np.bool_]:
    """Return which rows repeat the one before them, (n,) bool."""
    same: NDArray[np.bool_] = np.diff(time, prepend=time[:1] - 1) == 0
    differs = same & (values != np.roll(values, 1, axis=0)).any(axis=1)
    if differs.any():
        row = int(np.flatnonzero(differs)[0])
        one, other = (parts[int(origin[i, 0])].source for i in (row - 1, row))
        where = one if one == other else f"{one} and {other}"
        raise InputError(
            f"{where}: two bars of {stamp(time[row])} UTC with different values "
            f"({np.count_nonzero(differs):,} such bars); remove one of them"
        )
    return same
