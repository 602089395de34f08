"""Events when a feed has no new bars or clocks differ, once each, and once when that ends.

The functions take the slot's state, a JSON object, and return a new one:

    stale    whether the feed has had no new bar for too long
    skew     seconds by which the clocks of feed and broker are ahead, None if that is little
"""

from __future__ import annotations

from typing import Any

from sweepd.deploy.trading.live.events import Checked
from sweepd.deploy.trading.live.records import Event
from sweepd.envs.crypto.data.timeframe import bar_end, bar_seconds, format_time, later

STALE_BARS = 3  # data older than that many bars is an alert
MOST_SKEW = 0.01  # of a bar, by which clocks may differ
SMALL_SKEW = 5.0  # seconds that are never reported
State = dict[str, Any]


def is_stale(age: float, timeframe: str, last: int) -> bool:
    """Return whether bars are missing.

    Args:
        age: seconds since the feed's newest bar was due.
        timeframe: of the bars.
        last: open of the last processed bar.
    """
    # Of a market with hours, nights and weekends do not count.
    limit = bar_end(timeframe, later(timeframe, last, STALE_BARS)) - bar_end(timeframe, last)
    return age > limit


def note_age(
    event: Checked, state: State, feed: str, timeframe: str, last: int
) -> tuple[State, list[Event]]:
    """Return the new state, and an event if the feed's bars became stale or fresh.

    Args:
        event: the feed's clock.
        state: the slot's.
        feed: its name.
        timeframe: of its bars.
        last: open of the last processed bar.
    """
    stale = is_stale(event.age, timeframe, last)
    if stale == state.get("stale", False):
        return state, []
    kind, text = ("stale", "has had no new bar for too long")
    if not stale:
        kind, text = ("fresh", "is up to date again")
    told = (kind, f"{feed} {text}; the last bar opened at {format_time(last)}", last)
    return state | {"stale": stale}, [told]


def note_skew(
    event: Checked, state: State, feed: str, timeframe: str, last: int
) -> tuple[State, list[Event]]:
    """Return the new state, and an event if the clocks began or ceased to differ; see `note_age`."""
    skew = event.skew
    if skew is None:
        return state, []
    limit = max(SMALL_SKEW, MOST_SKEW * bar_seconds(timeframe))
    before, wrong = state.get("skew"), abs(skew) > limit
    events: list[Event] = []
    if wrong and before is None:
        side = "behind" if skew > 0.0 else "ahead of"
        text = (
            f"this machine's clock is {abs(skew):,.0f} s {side} that of {feed} (limit "
            f"{limit:,.0f} s): bars are decided too late or not at all; set this machine's "
            "clock"
        )
        events.append(("clock", text, last))
    elif before is not None and not wrong:
        events.append(("clock", f"this machine's clock agrees with that of {feed}", last))
    return state | {"skew": skew if wrong else None}, events
