"""Feeds deliver every closed bar once, in order and as in a data set, and no open bar."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.feeds import (
    AGAIN_BARS,
    EMPTY_PAUSES,
    GRACE_SECONDS,
    SETTLE_SECONDS,
    SPARE_BARS,
    LiveFeed,
)
from sweepd.envs.crypto.data.alpaca import LATE_SECONDS, AlpacaSource
from sweepd.envs.crypto.data.bar_files import file_name
from sweepd.envs.crypto.data.bars import Bars, write_bars
from sweepd.envs.crypto.data.demo_market import make_demo_market
from sweepd.envs.support.errors import InputError, RunError, TryAgainLater
from tests.envs.loopback import Market, serving

STEP = 300
BARS = make_demo_market(0, assets=2, bars=160, timeframe="5m")
FIELDS = ("open", "high", "low", "close", "volume", "hole")


def rows_of(bars: Bars, asset: int) -> np.ndarray:
    return np.column_stack(
        [bars.time.astype(float), *(getattr(bars, name)[:, asset] for name in FIELDS[:5])]
    )


class Shop:
    """A source whose rows become visible at given times."""

    def __init__(self, bars: Bars) -> None:
        self.rows = [rows_of(bars, asset) for asset in range(len(bars.tickers))]
        self.seen_at = [rows[:, 0] + STEP for rows in self.rows]
        self.tickers = bars.tickers
        self.now = 0.0
        self.asked = 0

    def fetch(self, ticker: str, start: int, end: int) -> np.ndarray:
        self.asked += 1
        asset = self.tickers.index(ticker)
        time = self.rows[asset][:, 0]
        return self.rows[asset][(time >= start) & (time < end) & (self.seen_at[asset] <= self.now)]


def feed_on(
    shop: Shop, said: list[str] | None = None, sleep: Callable[[float], None] = lambda _: None
) -> LiveFeed:
    say = (said if said is not None else []).append
    return LiveFeed(shop.fetch, shop.tickers, "5m", name="shop", say=say, sleep=sleep)


def at(shop: Shop, bar: int, more: float = 0.0) -> float:
    """Advance to the close of a bar, and return that time."""
    shop.now = float(BARS.time[bar]) + STEP + more
    return shop.now


def assert_bar(bar: ClosedBar, bars: Bars, index: int) -> None:
    assert bar.time == bars.time[index]
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(bar, name), getattr(bars, name)[index])


def test_delivered_bars_are_given_again_as_the_source_has_them_now() -> None:
    shop = Shop(BARS)
    feed = feed_on(shop)
    feed.start(20, at(shop, 99, SETTLE_SECONDS))
    name = BARS.tickers[0]
    np.testing.assert_array_equal(feed.again[name], shop.rows[0][100 - AGAIN_BARS : 100])
    assert feed.poll(at(shop, 100, -1.0)) == []
    assert feed.again == {}, "the source was not asked"
    shop.rows[0][90, 5] *= 2.0
    [bar] = feed.poll(at(shop, 100, SETTLE_SECONDS))
    assert_bar(bar, BARS, 100)
    np.testing.assert_array_equal(feed.again[name], shop.rows[0][100 - AGAIN_BARS : 100])


def test_the_source_is_not_polled_before_a_bar_can_have_closed() -> None:
    shop = Shop(BARS)
    feed = feed_on(shop)
    feed.start(20, at(shop, 99, SETTLE_SECONDS))
    asked = shop.asked
    for more in range(3, 300):
        feed.poll(at(shop, 99, float(more)))
    assert shop.asked == asked


def test_a_late_ticker_has_a_hole_after_the_grace_period() -> None:
    shop = Shop(BARS)
    shop.seen_at[1][100] += GRACE_SECONDS - 1.0
    shop.seen_at[1][101] = math.inf
    feed = feed_on(shop)
    feed.start(20, at(shop, 99, SETTLE_SECONDS))
    assert feed.poll(at(shop, 100, 5.0)) == []
    [bar] = feed.poll(at(shop, 100, GRACE_SECONDS - 0.5))
    assert_bar(bar, BARS, 100)
    assert feed.poll(at(shop, 101, GRACE_SECONDS - 0.5)) == []
    [bar] = feed.poll(at(shop, 101, GRACE_SECONDS))
    assert bar.hole.tolist() == [False, True]
    assert [getattr(bar, name)[1] for name in FIELDS[:5]] == [BARS.close[100, 1]] * 4 + [0.0]
    shop.seen_at[1][102] = math.inf
    bars = feed.poll(at(shop, 103, GRACE_SECONDS))
    assert [bar.hole.tolist() for bar in bars] == [[False, True], [False, False]]
    assert bars[0].close[1] == BARS.close[100, 1]  # the last close there was


def test_no_bar_is_delivered_until_one_ticker_has_one() -> None:
    shop = Shop(BARS)
    for asset in (0, 1):
        shop.seen_at[asset][100:] = math.inf
    feed = feed_on(shop)
    feed.start(20, at(shop, 99, SETTLE_SECONDS))
    for bar in range(100, 110):
        assert feed.poll(at(shop, bar, GRACE_SECONDS)) == []
    assert feed.age(shop.now) == 10 * STEP + GRACE_SECONDS
    shop.seen_at[0][110] = 0.0
    bars = feed.poll(at(shop, 110, GRACE_SECONDS))
    assert [bar.hole.tolist() for bar in bars] == [[True, True]] * 10 + [[False, True]]


@settings(deadline=None, max_examples=60)
@given(
    delays=st.lists(st.floats(0.0, GRACE_SECONDS - 0.01), min_size=60, max_size=60),
    moments=st.lists(st.floats(1.0, 900.0), min_size=5, max_size=60),
)
def test_bars_within_the_grace_period_equal_the_data_set(
    delays: list[float], moments: list[float]
) -> None:
    shop = Shop(BARS)
    for asset in (0, 1):
        shop.seen_at[asset][100:130] += np.array(delays[asset * 30 : asset * 30 + 30])
    feed = feed_on(shop)
    feed.start(20, at(shop, 99, SETTLE_SECONDS))
    given_: list[ClosedBar] = []
    for moment in moments:
        shop.now = min(shop.now + moment, float(BARS.time[129]))
        for bar in feed.poll(shop.now):
            assert bar.time + STEP <= shop.now
            given_.append(bar)
    given_ += feed.poll(at(shop, 129, GRACE_SECONDS))
    assert len(given_) == 30
    for index, bar in enumerate(given_, start=100):
        assert_bar(bar, BARS, index)


@pytest.mark.parametrize(
    ("column", "value"), [(1, 0.0), (2, math.nan), (3, 1e12), (4, -1.0), (5, math.inf), (0, 7.0)]
)
def test_an_impossible_row_is_reported_and_skipped(column: int, value: float) -> None:
    shop, said = Shop(BARS), list[str]()
    shop.rows[0][100, column] = value if column else shop.rows[0][100, 0] + value
    feed = feed_on(shop, said)
    feed.start(20, at(shop, 99, SETTLE_SECONDS))
    [bar] = feed.poll(at(shop, 100, GRACE_SECONDS))
    assert bar.hole.tolist() == [True, False]
    assert "shop: DEMO1/USDT has an impossible bar" in said[0]


def test_the_last_of_duplicate_rows_counts() -> None:
    shop = Shop(BARS)
    again = shop.rows[0][100].copy()
    again[5] += 1.0
    shop.rows[0] = np.insert(shop.rows[0], 101, again, axis=0)
    shop.seen_at[0] = shop.rows[0][:, 0] + STEP
    feed = feed_on(shop)
    feed.start(20, at(shop, 99, SETTLE_SECONDS))
    [bar] = feed.poll(at(shop, 100, SETTLE_SECONDS))
    assert bar.volume[0] == BARS.volume[100, 0] + 1.0


def test_an_incomplete_history_is_refused() -> None:
    shop = Shop(BARS)
    with pytest.raises(
        InputError, match="shop has 100 bars that all tickers have; 150 are needed to start"
    ):
        feed_on(shop).start(150, at(shop, 99, SETTLE_SECONDS))
    shop.seen_at[1][50:60] = math.inf
    with pytest.raises(InputError, match="shop DEMO2/USDT: 10 of"):
        feed_on(shop).start(60, at(shop, 99, SETTLE_SECONDS))
    shop.seen_at[1][:] = math.inf
    with pytest.raises(InputError, match="shop has no bars of DEMO2/USDT"):
        feed_on(shop).start(20, at(shop, 99, SETTLE_SECONDS))
    with pytest.raises(RunError, match="not started"):
        feed_on(shop).poll(shop.now)


@pytest.mark.parametrize("how", ["silent", "refused"])
def test_after_a_restart_a_delisted_ticker_keeps_its_price(how: str) -> None:
    shop, said = Shop(BARS), list[str]()
    shop.seen_at[1][:] = math.inf
    fetch = shop.fetch

    def refusing(ticker: str, start: int, end: int) -> np.ndarray:
        if ticker == "DEMO2/USDT":
            raise InputError("no such market DEMO2/USDT")
        return fetch(ticker, start, end)

    shop.fetch = refusing if how == "refused" else fetch  # type: ignore[method-assign]
    feed = feed_on(shop, said)
    with pytest.raises(InputError, match="DEMO2/USDT"):
        feed.start(20, at(shop, 99, SETTLE_SECONDS))
    history = feed.start(20, at(shop, 99, SETTLE_SECONDS), int(BARS.time[99]), {"DEMO2/USDT": 7.5})
    assert len(history) == 20 + SPARE_BARS
    assert set(history.close[:, 1]) == {7.5}
    assert "its price stays 7.5" in said[0 if how == "silent" else 1]
    for index in range(100, 104):  # without the grace period
        [bar] = feed.poll(at(shop, index, SETTLE_SECONDS))
        assert (bar.close[1], bar.hole.tolist()) == (7.5, [False, True])


@pytest.mark.parametrize("empty", [1, len(EMPTY_PAUSES), len(EMPTY_PAUSES) + 1])
def test_an_empty_answer_at_a_restart_is_requested_again(empty: int) -> None:
    shop, said, slept = Shop(BARS), list[str](), list[float]()
    fetch, answers = shop.fetch, itertools.count()

    def failing(ticker: str, start: int, end: int) -> np.ndarray:
        return (
            np.empty((0, 6))
            if ticker == "DEMO2/USDT" and next(answers) < empty
            else fetch(ticker, start, end)
        )

    shop.fetch = failing  # type: ignore[method-assign]
    feed = feed_on(shop, said, slept.append)
    history = feed.start(
        20, at(shop, 99, SETTLE_SECONDS), int(BARS.time[99]), dict.fromkeys(BARS.tickers, 7.5)
    )
    assert slept == list(EMPTY_PAUSES[:empty])
    if empty > len(EMPTY_PAUSES):
        assert set(history.close[:, 1]) == {7.5}
    else:
        np.testing.assert_array_equal(history.close, BARS.close[100 - len(history) : 100])
        assert said == []


def test_a_source_without_any_bar_at_a_restart_is_out_of_reach() -> None:
    shop = Shop(BARS)
    for asset in (0, 1):
        shop.seen_at[asset][:] = math.inf
    now, last = at(shop, 99, SETTLE_SECONDS), int(BARS.time[99])
    with pytest.raises(TryAgainLater, match="shop has no bars of any ticker since"):
        feed_on(shop).start(20, now, last, dict.fromkeys(BARS.tickers, 7.5))
    shop.seen_at[0][:] = 0.0
    with pytest.raises(
        TryAgainLater, match="shop has no bars of DEMO2/USDT since"
    ):  # nor is its price known
        feed_on(shop).start(20, now, last, {})


def test_a_four_hour_bar_waits_for_its_last_hour() -> None:
    """Bars of 4 hours are joined from hours, the last of which Alpaca may publish late."""
    step, hour, first = 14_400, 3_600, 1_600_000_000 // 14_400 * 14_400
    published, now = first, float(first + 3)

    class Hours(AlpacaSource):
        def _pages(
            self, ticker: str, timeframe: str, start: int, last: int
        ) -> Iterator[np.ndarray]:
            del ticker, timeframe
            times = np.arange(start, min(last, published - hour) + 1, hour, dtype=float)
            yield np.column_stack([times, *[times / hour] * 4, np.ones(len(times))])

    feed = LiveFeed.of_source(Hours(now=lambda: now), ["BTC/USD"], "4h")
    assert feed.start(20, now).time[-1] == first - step
    published, now = first + 3 * hour, float(first + step + 3)
    assert feed.poll(now) == []
    published, now = first + step, now + 5
    [bar] = feed.poll(now)
    assert bar.close[0] == first / hour + 3
    published, now = first + step + 2 * hour, float(first + 2 * step + LATE_SECONDS)
    [bar] = feed.poll(now)  # nothing was published for two hours
    assert bar.close[0] == first / hour + 5


def test_bars_appended_to_a_folder_are_delivered(tmp_path: Path) -> None:
    write_bars(BARS.slice(0, 100), tmp_path)
    said: list[str] = []
    feed = LiveFeed.of_folder(tmp_path, BARS.tickers, "5m", say=said.append)
    feed.start(20, float(BARS.time[99]) + STEP + SETTLE_SECONDS)
    now = float(BARS.time[101]) + STEP + SETTLE_SECONDS
    assert feed.poll(now) == []  # the writer is late
    assert feed.age(now) == 2 * STEP + SETTLE_SECONDS
    path = tmp_path / file_name(BARS.tickers[0], "5m")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert feed.poll(now) == []
    assert "it will be read again" in said[0]
    write_bars(BARS.slice(0, 103), tmp_path)  # its last bar is still open
    given_ = feed.poll(now)
    assert [bar.time for bar in given_] == BARS.time[100:102].tolist()
    assert_bar(given_[1], BARS, 101)
    with pytest.raises(InputError, match="no 5m file for XRP/USDT"):
        LiveFeed.of_folder(tmp_path, ["XRP/USDT"], "5m")


def test_a_folder_with_a_bar_that_opens_in_the_future_tells_a_slow_clock(tmp_path: Path) -> None:
    write_bars(BARS.slice(0, 101), tmp_path)
    feed = LiveFeed.of_folder(tmp_path, BARS.tickers, "5m")
    opened = float(BARS.time[100])
    feed.start(20, opened + SETTLE_SECONDS)
    assert feed.skew(opened + SETTLE_SECONDS) == 0.0, "the last bar is open"
    assert feed.skew(opened - 90.0) == 90.0


def test_bars_of_a_source_over_http() -> None:
    market = Market(rows_of(BARS, 0), STEP)
    with serving(market):
        feed = LiveFeed.of_source(AlpacaSource(market.url, sleep=lambda _: None), ["BTC/USD"], "5m")
        history = feed.start(20, float(BARS.time[99]) + STEP + SETTLE_SECONDS)
        np.testing.assert_array_equal(history.close[:, 0], BARS.close[100 - len(history) : 100, 0])
        market.failures = [503, "cut"]
        [bar] = feed.poll(float(BARS.time[100]) + STEP + SETTLE_SECONDS)
        assert bar.close[0] == BARS.close[100, 0]


def test_a_feed_continues_after_the_last_processed_bar() -> None:
    shop = Shop(BARS)
    shop.seen_at[1][110] = math.inf  # that very bar is a hole
    feed = feed_on(shop)
    history = feed.start(20, at(shop, 120, GRACE_SECONDS), last=int(BARS.time[110]))
    assert int(history.time[-1]) == BARS.time[110]
    assert history.close[-1].tolist() == [BARS.close[110, 0], BARS.close[109, 1]]
    given_ = feed.poll(shop.now)
    assert [bar.time for bar in given_] == BARS.time[111:121].tolist()
    assert_bar(given_[0], BARS, 111)
