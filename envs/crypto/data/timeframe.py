"""Timeframes: names of bar lengths, their grids of opening times, and conversions.

A timeframe is the length of a bar, such as "1h", for markets that never close. For markets with
hours it is the length and the name of an exchange's calendar. "1d-XNYS" has one bar per session,
named by the session's day at 00:00 UTC. "1h-XNYS" divides sessions into bars from the opening on
(9:30, 10:30, … in New York); the last one ends when the market closes. Nights, weekends and holidays
have no bar and are no holes.
"""

from __future__ import annotations

import datetime as dt

import numpy as np
from numpy.typing import NDArray

from sweepd.envs.crypto.data.sessions import Sessions, load_sessions
from sweepd.envs.support.errors import InputError

SECONDS: dict[str, int] = {
    "1m": 60,
    "3m": 180,
    "5m": 300,
    "15m": 900,
    "30m": 1800,
    "1h": 3600,
    "2h": 7200,
    "4h": 14400,
    "6h": 21600,
    "8h": 28800,
    "12h": 43200,
    "1d": 86400,
}
DAY = 86_400  # seconds
SECONDS_PER_YEAR = 365.25 * DAY
WEEKS_PER_YEAR = 365.25 / 7

Times = NDArray[np.int64]


def bar_length(timeframe: str) -> str:
    """Return the length of a timeframe without its calendar: "1d-XNYS" gives "1d".

    Raises:
        InputError: the length is not in `SECONDS`.
    """
    length = timeframe.partition("-")[0]
    if length not in SECONDS:
        raise InputError(
            f"timeframe {timeframe!r} is not known; choose one of {', '.join(SECONDS)}, or, for a "
            "market with hours, one of them and its calendar, such as 1d-XNYS or 1h-XNYS"
        )
    return length


def bar_seconds(timeframe: str) -> int:
    """Return the length of a bar in seconds; of a session's bar, a day.

    With a calendar, the last bar of a session may be shorter.

    Raises:
        InputError: as `bar_length`.
    """
    return SECONDS[bar_length(timeframe)]


def has_hours(timeframe: str) -> bool:
    """Return whether the market has a calendar."""
    return "-" in timeframe


def calendar_of(timeframe: str) -> str:
    """Return the name of the calendar of a market with hours; "" for one that never closes."""
    return timeframe.partition("-")[2]


def _sessions(timeframe: str) -> Sessions | None:
    """Return the calendar's bars; None for a market that never closes.

    Raises:
        InputError: as `bar_length`, there is no such calendar, or its sessions are too short.
    """
    length = bar_seconds(timeframe)
    return load_sessions(calendar_of(timeframe), length) if has_hours(timeframe) else None


# ---- numbers of bars ----


def bars_per_year(timeframe: str) -> float:
    """Return the bars in a year, which annualise Sharpe ratios.

    A year has 365.25 days; of a calendar, the mean number of the years 2000 to 2024 (252 sessions in
    New York).
    """
    sessions = _sessions(timeframe)
    return SECONDS_PER_YEAR / bar_seconds(timeframe) if sessions is None else sessions.per_year


def bars_per_day(timeframe: str) -> int:
    """Return the whole bars in a day, at least one; of a calendar, those of a usual session."""
    sessions = _sessions(timeframe)
    return max(1, DAY // bar_seconds(timeframe)) if sessions is None else sessions.per_day


def bars_per_week(timeframe: str) -> int:
    """Return the whole bars in a week, at least one; of a calendar, those of its usual sessions."""
    sessions = _sessions(timeframe)
    if sessions is not None:
        return max(1, round(sessions.sessions_per_year / WEEKS_PER_YEAR)) * sessions.per_day
    return max(1, 7 * DAY // bar_seconds(timeframe))


# ---- the grid of opening times, seconds since the epoch, UTC ----


def bar_number(timeframe: str, time: int) -> int:
    """Return the number of the first bar that opens at `time` or later, on an absolute count.

    The count is the same for every range of bars.
    """
    sessions = _sessions(timeframe)
    return -(-time // bar_seconds(timeframe)) if sessions is None else sessions.number(time)


def bar_time(timeframe: str, number: int) -> int:
    """Return the opening time of a bar by its number.

    Raises:
        InputError: the calendar does not reach as far.
    """
    sessions = _sessions(timeframe)
    return number * bar_seconds(timeframe) if sessions is None else sessions.time(number)


def on_grid(timeframe: str, times: Times | NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which times open a bar, (n,) bool."""
    sessions = _sessions(timeframe)
    if sessions is None:
        on: NDArray[np.bool_] = times % bar_seconds(timeframe) == 0
        return on
    return sessions.has(times)


def bars_between(timeframe: str, first: int, last: int) -> int:
    """Return the number of bars from one opening time to another: 1 for neighbours."""
    if not has_hours(timeframe):
        return (last - first) // bar_seconds(timeframe)
    return bar_number(timeframe, last) - bar_number(timeframe, first)


def closed_since(timeframe: str, last: int, now: float) -> int:
    """Return the number of bars that have closed by `now`, after the one that opened at `last`."""
    if not has_hours(timeframe):
        return max(0, int((now - last) // bar_seconds(timeframe)) - 1)
    return max(0, bars_between(timeframe, last, first_open_bar(timeframe, now)) - 1)


def later(timeframe: str, time: int, bars: int = 1) -> int:
    """Return the opening time that many bars after another, or before it if `bars` < 0."""
    if not has_hours(timeframe):
        return time + bars * bar_seconds(timeframe)
    return bar_time(timeframe, bar_number(timeframe, time) + bars)


def opening_times(timeframe: str, first: int, last: int) -> Times:
    """Return the opening times from `first` to `last`, both included: (n,) int64."""
    sessions = _sessions(timeframe)
    if sessions is None:
        step = bar_seconds(timeframe)
        return np.arange(first, last + step, step, dtype=np.int64)
    return sessions.times[sessions.number(first) : sessions.number(last + 1)]


def grid_from(timeframe: str, first: int, count: int) -> Times:
    """Return `count` opening times from `first` on, (count,) int64.

    Raises:
        InputError: the calendar does not reach as far.
    """
    sessions = _sessions(timeframe)
    if sessions is None:
        return first + bar_seconds(timeframe) * np.arange(count, dtype=np.int64)
    start = sessions.number(first)
    sessions.time(start + count - 1)
    return sessions.times[start : start + count]


def bar_end(timeframe: str, time: int) -> int:
    """Return when the bar that opens at `time` is closed; of a session, when the market closes."""
    if not has_hours(timeframe):
        return time + bar_seconds(timeframe)
    return int(bar_ends(timeframe, np.array([time], dtype=np.int64))[0])


def bar_ends(timeframe: str, times: Times) -> Times:
    """Return `bar_end` of many bars, (n,) int64. Times off the grid end a bar's length later."""
    sessions = _sessions(timeframe)
    return times + bar_seconds(timeframe) if sessions is None else sessions.ends_of(times)


def bars_at(timeframe: str, moments: Times) -> Times:
    """Return the opening times of the bars in which moments are, (n,) int64.

    -1 where the market is closed.
    """
    sessions = _sessions(timeframe)
    if sessions is None:
        return moments // bar_seconds(timeframe) * bar_seconds(timeframe)
    return sessions.bars_at(moments)


def closing_clock(timeframe: str, times: Times) -> Times:
    """Return the market's own time when bars close, (n,) int64, seconds since its 1970-01-01.

    UTC where the market never closes; with a calendar, the time of the exchange's zone, in which
    its hours stay the same in summer and winter. Bars of a day, of either kind, count until the
    day's end.
    """
    sessions = _sessions(timeframe)
    if sessions is None or bar_length(timeframe) == "1d":
        return times + bar_seconds(timeframe)
    return sessions.clock(times)


def first_open_bar(timeframe: str, now: float) -> int:
    """Return the opening time of the first bar that has not closed by `now`."""
    sessions = _sessions(timeframe)
    if sessions is None:
        step = bar_seconds(timeframe)
        return int(now // step) * step
    return sessions.first_open(now)


def format_time(seconds: int) -> str:
    """Seconds since the epoch as UTC text, `2024-08-01T13:00:00Z`."""
    return dt.datetime.fromtimestamp(int(seconds), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> int:
    """The inverse of `format_time`; ValueError for any other text."""
    return int(dt.datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=dt.UTC).timestamp())


def parse_moment(text: str, flag: str) -> int:
    """Parse an ISO 8601 time, UTC by default, into seconds since the epoch.

    Args:
        text: the time.
        flag: the command-line flag, for the message.

    Raises:
        InputError: the text is not such a time.
    """
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(
            f"{flag} {text!r} is not a time like 2024-08-01 or 2024-08-01T13:00"
        ) from error
    moment = moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment
    return int(moment.timestamp())
