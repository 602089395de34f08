"""Bars of exchanges with hours, from exchange_calendars.

A bar of a day ("1d") is a whole session, named by its day at 00:00 UTC. Shorter bars divide the
session: the first opens with the market, the others follow without a gap, and the last one ends
when the market closes, so it may be shorter than the others. A lunch break ends a bar, too, and the
next one opens when trading goes on. Nights, weekends, holidays and breaks have no bar.

Calendars of days begin in 1970 and those of shorter bars in 2000, or where the library's own begin,
so that a bar's number is the same in every process; they end a year from today.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweepd.envs.support.errors import InputError

DAY = 86_400  # seconds
_YEAR = 365.25 * DAY
_BEGIN = {True: "1970-01-01", False: "2000-01-01"}  # by whether bars are whole sessions
# The years over which bars are counted for annual figures: fixed, so that a figure of an old study
# does not change with the date of today.
_COUNTED = ("2000-01-01", "2025-01-01")
_EXAMPLES = "XNYS (New York), XLON (London), XFRA (Frankfurt), XTKS (Tokyo), XHKG (Hong Kong)"

Times = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sessions:
    """The bars of an exchange.

    Attributes:
        name: of the calendar, such as "XNYS".
        length: seconds, of a bar that is not cut short.
        times: (n,) int64, ascending, the bars' names: seconds since the epoch at which they open;
            of whole sessions, their days at 00:00 UTC.
        opens: (n,) int64, when trading begins in them; equal to `times` except for whole sessions.
        ends: (n,) int64, when they are closed.
        offsets: (n,) int64, by which the exchange's clock is ahead of UTC, seconds.
        per_day: usual number of bars in a session.
        sessions_per_year: mean number of sessions in a year.
        per_year: mean number of bars in a year.
    """

    name: str
    length: int
    times: Times
    opens: Times
    ends: Times
    offsets: Times
    per_day: int
    sessions_per_year: float
    per_year: float

    def number(self, time: int) -> int:
        """Return the number of the first bar that is named by `time` or later."""
        return int(np.searchsorted(self.times, time))

    def time(self, number: int) -> int:
        """Return the time that names a bar.

        Raises:
            InputError: the calendar has no such bar.
        """
        if not 0 <= number < len(self.times):
            raise InputError(
                f"the calendar {self.name} reaches from {_day(self.times[0])} to "
                f"{_day(self.times[-1])}, and the bars reach beyond it"
            )
        return int(self.times[number])

    def has(self, times: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which times name a bar, (n,) bool."""
        places = np.minimum(np.searchsorted(self.times, times), len(self.times) - 1)
        found: NDArray[np.bool_] = self.times[places] == times
        return found

    def ends_of(self, times: Times) -> Times:
        """Return when bars are closed, (n,) int64; `length` later where there is no bar."""
        places = np.minimum(np.searchsorted(self.times, times), len(self.times) - 1)
        ends: Times = np.where(self.times[places] == times, self.ends[places], times + self.length)
        return ends

    def bars_at(self, moments: Times) -> Times:
        """Return the times of the bars that are traded in at moments, (n,) int64; -1 if closed."""
        places = np.searchsorted(self.opens, moments, side="right") - 1
        at = np.maximum(places, 0)
        traded = (places >= 0) & (moments < self.ends[at])
        bars: Times = np.where(traded, self.times[at], -1)
        return bars

    def first_open(self, now: float) -> int:
        """Return the time of the first bar that has not closed by `now`."""
        return self.time(int(np.searchsorted(self.ends, now, side="right")))

    def clock(self, times: Times) -> Times:
        """Return the exchange's own time at the ends of bars, seconds since its 1970-01-01."""
        places = np.minimum(np.searchsorted(self.times, times), len(self.times) - 1)
        return self.ends_of(times) + self.offsets[places]


@functools.cache
def load_sessions(name: str, length: int) -> Sessions:
    """Return the bars of a calendar.

    Args:
        name: the exchange's ISO 10383 code (MIC), as exchange_calendars names it.
        length: of a bar, seconds; a day for whole sessions.

    Raises:
        InputError: there is no such calendar, or its sessions are not longer than a bar.
    """
    # Not at the top: it takes a second to load, and markets that never close do not need it.
    import pandas as pd

    calendar = _calendar(name, _BEGIN[length == DAY])
    days, opens, closes = map(_seconds, (calendar.sessions, calendar.opens, calendar.closes))
    # The calendar's zone, by the wall clock at which a session opens.
    wall = pd.DatetimeIndex(calendar.opens).tz_convert(calendar.tz).tz_localize(None)
    offsets = _seconds(wall) - opens
    first, last = (int(pd.Timestamp(text).timestamp()) for text in _COUNTED)
    first = max(first, int(days[0]))
    years = (last - first) / _YEAR
    counted = (days >= first) & (days < last)
    sessions_per_year = float(np.count_nonzero(counted)) / years
    if length == DAY:
        yearly = sessions_per_year
        return Sessions(name, DAY, days, opens, closes, offsets, 1, sessions_per_year, yearly)
    pauses, resumptions = map(_seconds, (calendar.break_starts, calendar.break_ends))
    times, ends, session = _divided(opens, closes, pauses, resumptions, length)
    per_session = np.bincount(session, minlength=len(days))
    per_day = int(np.median(per_session[counted]))
    if per_day < 2:
        raise InputError(
            f"a session of {name} is not longer than a bar of {length // 3600}h: use 1d-{name}, "
            "whose bars are sessions"
        )
    per_year = float(per_session[counted].sum()) / years
    return Sessions(
        name, length, times, times, ends, offsets[session], per_day, sessions_per_year, per_year
    )


def _calendar(name: str, begin: str) -> Any:
    import exchange_calendars
    import pandas as pd

    try:
        if not name.isidentifier():  # 24/7 never closes, and names files
            raise exchange_calendars.errors.InvalidCalendarName(calendar_name=name)
        with warnings.catch_warnings():  # of pandas, about the library's own code
            warnings.simplefilter("ignore")
            earliest = exchange_calendars.get_calendar(name).bound_min()
            start = max(pd.Timestamp(begin), earliest or pd.Timestamp(begin))
            return exchange_calendars.get_calendar(name, start=start)
    except exchange_calendars.errors.InvalidCalendarName:
        raise InputError(
            f"the timeframe's calendar: exchange_calendars has no calendar {name!r}; it has, among "
            f"others, {_EXAMPLES}"
        ) from None


def _divided(
    opens: Times, closes: Times, pauses: Times, resumptions: Times, length: int
) -> tuple[Times, Times, Times]:
    """Divide sessions into bars.

    Args:
        opens: (s,) of sessions.
        closes: (s,).
        pauses: (s,) begin of a break within the session; below 0 if there is none.
        resumptions: (s,) its end.
        length: of a bar, seconds.

    Returns:
        Times and ends of the bars, and the numbers of their sessions, (n,) each.
    """
    broken = pauses > 0
    # Each session is one part, or two around its break.
    starts = np.stack([opens, np.where(broken, resumptions, closes)], axis=1).reshape(-1)
    stops = np.stack([np.where(broken, pauses, closes), closes], axis=1).reshape(-1)
    counts = -(-(stops - starts) // length)
    part = np.repeat(np.arange(len(starts)), counts)
    place = np.arange(len(part)) - np.repeat(np.cumsum(counts) - counts, counts)
    times = starts[part] + length * place
    return times, np.minimum(times + length, stops[part]), part // 2


def _seconds(moments: Any) -> Times:
    """Return pandas' moments as seconds since the epoch; missing ones are far below 0."""
    import pandas as pd

    seconds: Times = pd.DatetimeIndex(moments).as_unit("s").asi8.astype(np.int64)
    return seconds


def _day(seconds: np.int64) -> str:
    return str(np.datetime64(int(seconds), "s").astype("datetime64[D]"))
