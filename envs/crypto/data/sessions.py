"""Sessions of exchanges with hours, from exchange_calendars.

The calendars begin in 1970, or where the library's own begin, so that a session's number is the
same in every process; they end a year from today.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweepd.envs.support.errors import InputError

DAY = 86_400  # seconds
_BEGIN = "1970-01-01"
# The years over which sessions are counted for annual figures: fixed, so that a figure of an old
# study does not change with the date of today.
_COUNTED = ("2000-01-01", "2025-01-01")
_EXAMPLES = "XNYS (New York), XLON (London), XFRA (Frankfurt), XTKS (Tokyo), XHKG (Hong Kong)"

Times = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sessions:
    """The sessions of an exchange.

    Attributes:
        name: of the calendar, such as "XNYS".
        days: (n,) int64, ascending, the days at 00:00 UTC in seconds since the epoch.
        closes: (n,) int64, when the sessions close.
        per_year: mean number of sessions in a year.
    """

    name: str
    days: Times
    closes: Times
    per_year: float

    def number(self, time: int) -> int:
        """Return the number of the first session whose day is at `time` or later."""
        return int(np.searchsorted(self.days, time))

    def time(self, number: int) -> int:
        """Return the day of a session.

        Raises:
            InputError: the calendar has no such session.
        """
        if not 0 <= number < len(self.days):
            raise InputError(
                f"the calendar {self.name} reaches from {_day(self.days[0])} to "
                f"{_day(self.days[-1])}, and the bars reach beyond it"
            )
        return int(self.days[number])

    def close(self, time: int) -> int:
        """Return when the session of a day closes; a day later where there is none."""
        return int(self.closes_of(np.array([time], dtype=np.int64))[0])

    def closes_of(self, times: Times) -> Times:
        """Return `close` of many days, (n,) int64."""
        places = np.minimum(np.searchsorted(self.days, times), len(self.days) - 1)
        ends: Times = np.where(self.days[places] == times, self.closes[places], times + DAY)
        return ends

    def first_open(self, now: float) -> int:
        """Return the day of the first session that has not closed by `now`."""
        return self.time(int(np.searchsorted(self.closes, now, side="right")))


@functools.cache
def load_sessions(name: str) -> Sessions:
    """Return the sessions of a calendar.

    Args:
        name: the exchange's ISO 10383 code (MIC), as exchange_calendars names it.

    Raises:
        InputError: there is no such calendar.
    """
    # Not at the top: it takes a second to load, and markets that never close do not need it.
    import exchange_calendars
    import pandas as pd

    try:
        if not name.isidentifier():  # 24/7 never closes, and names files
            raise exchange_calendars.errors.InvalidCalendarName(calendar_name=name)
        with warnings.catch_warnings():  # of pandas, about the library's own code
            warnings.simplefilter("ignore")
            earliest = exchange_calendars.get_calendar(name).bound_min()
            begin = max(pd.Timestamp(_BEGIN), earliest or pd.Timestamp(_BEGIN))
            calendar = exchange_calendars.get_calendar(name, start=begin)
    except exchange_calendars.errors.InvalidCalendarName:
        raise InputError(
            f"timeframe 1d-{name}: exchange_calendars has no calendar {name!r}; it has, among "
            f"others, {_EXAMPLES}"
        ) from None
    days = calendar.sessions.as_unit("s").asi8.astype(np.int64)
    closes = pd.DatetimeIndex(calendar.closes).as_unit("s").asi8.astype(np.int64)
    first, last = (int(pd.Timestamp(text).timestamp()) for text in _COUNTED)
    first = max(first, int(days[0]))
    counted = np.count_nonzero((days >= first) & (days < last))
    years = (last - first) / (365.25 * DAY)
    return Sessions(name, days, closes, counted / years)


def _day(seconds: np.int64) -> str:
    return str(np.datetime64(int(seconds), "s").astype("datetime64[D]"))
