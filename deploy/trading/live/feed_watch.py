"""What a session watches besides its bars: their age, and this machine's clock."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from sweepd.deploy.trading.brokers.base import Broker
from sweepd.deploy.trading.feeds import Feed, RecordedFeed
from sweepd.deploy.trading.live.records import Event
from sweepd.envs.crypto.data.timeframe import bar_end, bar_seconds, closed_since, format_time, later
from sweepd.envs.support.errors import RunError

STALE_BARS = 3  # data older than that many bars is an alert
MOST_SKEW = 0.01  # of a bar, by which clocks may differ
SMALL_SKEW = 5.0  # seconds that are never reported


class FeedWatch:
    """Reports once when something is wrong, and once when it ends.

    Args:
        feed: the slot's feed.
        name: of the feed, for messages.
        broker: of the slot's own account, whose clock may be known, too.
    """

    def __init__(self, feed: Feed, name: str, broker: Broker) -> None:
        self._feed, self._name, self._broker = feed, name, broker
        self._stale = False

    def age(self, last: int, now: float) -> tuple[str | None, list[Event]]:
        """Return the session's status if there was no new bar for too long, and new events.

        Args:
            last: open of the last processed bar.
            now: seconds since the epoch.
        """
        # Of a market with hours, nights and weekends do not count.
        frame = self._feed.timeframe
        limit = bar_end(frame, later(frame, last, STALE_BARS)) - bar_end(frame, last)
        stale = self._feed.age(now) > limit
        status = f"no new bar for {closed_since(frame, last, now)} bars" if stale else None
        if stale == self._stale:
            return status, []
        self._stale = stale
        kind, text = (
            ("stale", "has had no new bar for too long")
            if stale
            else ("fresh", "is up to date again")
        )
        opened = format_time(last)
        return status, [(kind, f"{self._name} {text}; the last bar opened at {opened}", last)]

    def clock(self, last: int, now: float, state: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Compare this machine's clock with those of feed and broker, as far as they tell them.

        Args:
            last: open of the last processed bar.
            now: seconds since the epoch.
            state: the slot's state; `skew` are the seconds by which the others' clock is ahead,
                None if the difference is small.

        Returns:
            The new state, and new events.
        """
        if isinstance(self._feed, RecordedFeed):  # the market's time is another one
            return state, []
        found = [self._feed.skew(now)]
        with suppress(RunError):  # without an answer, nothing is known
            found.append(self._broker.clock_skew())
        skew = max((one for one in found if one is not None), key=abs, default=None)
        if skew is None:
            return state, []
        limit = max(SMALL_SKEW, MOST_SKEW * bar_seconds(self._feed.timeframe))
        before, wrong = state.get("skew"), abs(skew) > limit
        events: list[Event] = []
        if wrong and before is None:
            side = "behind" if skew > 0.0 else "ahead of"
            text = (
                f"this machine's clock is {abs(skew):,.0f} s {side} that of {self._name} (limit "
                f"{limit:,.0f} s): bars are decided too late or not at all; set this machine's "
                "clock"
            )
            events.append(("clock", text, last))
        elif before is not None and not wrong:
            events.append(("clock", f"this machine's clock agrees with that of {self._name}", last))
        return state | {"skew": skew if wrong else None}, events
