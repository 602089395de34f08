"""The suite for feeds of the paper trader."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from sweepd.deploy.trading.closed_bar import COLUMNS, ClosedBar
from sweepd.deploy.trading.feeds import AGAIN_BARS, SETTLE_SECONDS, Feed
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.timeframe import bar_end
from sweepd.envs.support.errors import InputError


class FeedTestCase:
    """The laws of the contract of `Feed`. A subclass says how one is made:

        class TestMyFeed(FeedTestCase):
            bars = make_demo_market(0, assets=2, bars=160, timeframe="5m")

            def make(self, now):
                return MyFeed(...)     # of a source that has `bars`

            def advance(self, feed, now):
                ...                    # the source's clock, if it has one of its own

    Attributes:
        bars: what the source has, at least 160 bars without holes.
    """

    bars: ClassVar[Bars]

    def make(self, now: float) -> Feed:
        """Return a feed of a source that has the bars that have closed by `now`."""
        raise NotImplementedError("a subclass makes the feed")

    def advance(self, feed: Feed, now: float) -> None:
        """Let the source have the bars that have closed by `now`."""

    def at(self, bar: int, more: float = SETTLE_SECONDS) -> float:
        """Return the time so many seconds after the close of a bar."""
        return float(bar_end(self.bars.timeframe, int(self.bars.time[bar]))) + more

    def started(self, bar: int, last: int | None = None) -> tuple[Feed, Bars]:
        """Return a feed that starts after a bar has closed, and its history."""
        now = self.at(bar)
        feed = self.make(now)
        opened = None if last is None else int(self.bars.time[last])
        return feed, feed.start(20, now, opened)

    def polled(self, feed: Feed, bar: int, more: float = SETTLE_SECONDS) -> list[ClosedBar]:
        """Poll a feed so many seconds after the close of a bar."""
        self.advance(feed, self.at(bar, more))
        return feed.poll(self.at(bar, more))

    def test_the_history_ends_with_the_newest_closed_bar(self) -> None:
        """It has at least as many bars as were asked for, as the source has them."""
        feed, history = self.started(99)
        assert (feed.tickers, feed.timeframe) == (self.bars.tickers, self.bars.timeframe)
        assert history.tickers == self.bars.tickers
        assert int(history.time[-1]) == int(self.bars.time[99])
        assert len(history) >= 20
        for name in COLUMNS:
            wanted = getattr(self.bars, name)[100 - len(history) : 100]
            np.testing.assert_array_equal(getattr(history, name), wanted)

    def test_bars_are_delivered_once_each_as_they_close(self) -> None:
        """In order, for all tickers together, and none that is open."""
        feed, _ = self.started(99)
        assert self.polled(feed, 99) == []
        assert self.polled(feed, 100, -1.0) == [], "a bar that has not closed is delivered"
        (bar,) = self.polled(feed, 100)
        self.assert_bar(bar, 100)
        assert self.polled(feed, 100) == [], "a bar is delivered twice"
        # After a pause.
        for index, later in enumerate(self.polled(feed, 104), 101):
            self.assert_bar(later, index)
        assert index == 104

    def test_a_feed_continues_after_the_last_processed_bar(self) -> None:
        """As after a restart: the history ends there, and what closed since is delivered."""
        feed, history = self.started(120, last=110)
        assert int(history.time[-1]) == int(self.bars.time[110])
        bars = self.polled(feed, 120)
        assert [bar.time for bar in bars] == self.bars.time[111:121].tolist()
        self.assert_bar(bars[0], 111)

    def test_the_newest_delivered_bars_are_given_again(self) -> None:
        """As the source has them now, at most `AGAIN_BARS` of each ticker; none without a request."""
        feed, _ = self.started(99)
        self.polled(feed, 99)
        self.polled(feed, 100)
        for ticker, rows in feed.again.items():
            asset, count = self.bars.tickers.index(ticker), len(rows)
            assert rows.shape == (count, 6)
            assert 0 < count <= AGAIN_BARS
            part = slice(100 - count, 100)
            np.testing.assert_array_equal(rows[:, 0], self.bars.time[part])
            np.testing.assert_array_equal(rows[:, 4], self.bars.close[part, asset])

    def test_its_age_is_that_of_the_last_delivered_bar(self) -> None:
        """In seconds since its close; it grows until the next."""
        feed, _ = self.started(99)
        assert feed.age(self.at(99, 7.0)) == pytest.approx(7.0)
        self.polled(feed, 100)
        assert feed.age(self.at(100, 9.0)) == pytest.approx(9.0)
        skew = feed.skew(self.at(100))
        assert skew is None or abs(skew) < 60.0

    def test_too_short_a_history_is_refused(self) -> None:
        """Unless the trader has a record, as its other positions would be unmanaged."""
        now = self.at(30)
        with pytest.raises(InputError):
            self.make(now).start(60, now)

    def assert_bar(self, bar: ClosedBar, index: int) -> None:
        """Check that a bar is one of the source's."""
        assert bar.time == self.bars.time[index]
        for name in (*COLUMNS, "hole"):
            np.testing.assert_array_equal(getattr(bar, name), getattr(self.bars, name)[index])
