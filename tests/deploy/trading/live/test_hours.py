"""Paper trading on a market with hours: nights and weekends are waited for, and are no holes."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.manifest import DataPart
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.feeds import (
    GRACE_SECONDS,
    SESSION_GRACE_SECONDS,
    SETTLE_SECONDS,
    LiveFeed,
    RecordedFeed,
)
from sweepd.deploy.trading.replay import replay
from sweepd.envs.crypto.data.bars import Bars, write_bars
from sweepd.envs.crypto.data.demo_market import make_demo_market
from sweepd.envs.crypto.data.timeframe import DAY, bar_end, format_time, later
from sweepd.envs.support.errors import InputError
from tests.deploy.builders import small_bundle
from tests.deploy.trading.live.test_session import PARAMS, TICKERS
from tests.deploy.trading.live.test_trade_command import trade, values
from tests.deploy.trading.live.world import SLOT, World
from tests.deploy.trading.test_feeds import rows_of
from tests.deploy.trading.test_paper_trader import assert_same_account

NY, HOURLY = "1d-XNYS", "1h-XNYS"
FIRST, LAST = 640, 690


def bars_of(timeframe: str) -> Bars:
    bars = make_demo_market(5, assets=3, bars=LAST + 1, timeframe=timeframe)
    return dataclasses.replace(bars, tickers=TICKERS)


MARKETS = {timeframe: bars_of(timeframe) for timeframe in (NY, HOURLY)}
BARS = MARKETS[NY]


def friday_of(bars: Bars) -> int:
    """Return the last bar before a weekend without a holiday."""
    days = [datetime.fromtimestamp(int(time), UTC).weekday() for time in bars.time]
    return next(bar for bar in range(FIRST, LAST) if days[bar : bar + 2] == [4, 0])


FRIDAY = friday_of(BARS)
EACH = pytest.mark.parametrize("timeframe", [NY, HOURLY])


def bundle(
    *, last_seen: int = int(BARS.time[0]), tickers: tuple[str, ...] = TICKERS, timeframe: str = NY
) -> Bundle:
    """A bundle whose study ends at a session."""
    if timeframe != NY:
        last_seen = int(MARKETS[timeframe].time[0])
    data = DataPart(
        fingerprint="f" * 64,
        first=format_time(int(MARKETS[timeframe].time[0])),
        last=format_time(last_seen),
        synthetic=False,
    )
    return small_bundle(
        params=PARAMS,
        tickers=tickers,
        timeframe=timeframe,
        gain=1.5,
        last_seen=last_seen,
        data=data,
    )


@EACH
def test_the_live_trader_equals_the_replay_bit_for_bit(tmp_path: Path, timeframe: str) -> None:
    bars = MARKETS[timeframe]
    world = World(tmp_path, bundle(timeframe=timeframe), bars, FIRST)
    world.run()
    expected = replay(world.bundle, bars, (FIRST, LAST)).entries
    lines = world.lines()
    assert [line.time for line in lines] == bars.time[FIRST:].tolist()
    assert [line.value for line in lines] == [entry.value for entry in expected]
    assert [list(line.units.values()) for line in lines] == [e.units.tolist() for e in expected]
    assert sum(line.trades for line in lines) > 10
    # No night and no weekend counts as late data.
    assert [text for kind, text in world.told if kind in ("stale", "caught up")] == []


@EACH
def test_the_trader_waits_for_the_end_of_the_next_bar(tmp_path: Path, timeframe: str) -> None:
    bars, friday = MARKETS[timeframe], friday_of(MARKETS[timeframe])
    world = World(tmp_path, bundle(timeframe=timeframe), bars, friday)
    session = world.session()
    closed = bar_end(timeframe, int(bars.time[friday]))
    world.clock.wait(closed + SETTLE_SECONDS - world.clock.now())
    session.poll()
    assert len(world.lines()) == 1
    closes = bar_end(timeframe, int(bars.time[friday + 1]))
    # The first bar of an hour ends 5.5 hours before its session.
    assert closes - closed == 3 * DAY - (0 if timeframe == NY else 5.5 * 3600)
    assert world.clock.now() + session._until_next() == closes + SETTLE_SECONDS
    # Until then the market is closed, which is no missing bar.
    for hours in (6, 40, 65):
        world.clock.wait(3600.0 * hours - (world.clock.now() - closed))
        session.poll()
        assert len(world.lines()) == 1
    world.clock.wait(closes + SETTLE_SECONDS - world.clock.now())
    session.poll()
    assert len(world.lines()) == 2
    assert [kind for kind, _ in world.told if kind in ("stale", "caught up")] == []


@EACH
def test_missing_bars_are_reported(tmp_path: Path, timeframe: str) -> None:
    bars, friday = MARKETS[timeframe], friday_of(MARKETS[timeframe])
    world = World(tmp_path, bundle(timeframe=timeframe), bars, friday)
    session = world.session()
    world.until_close_of(friday)
    session.poll()
    session._feed.poll = lambda _now: []  # type: ignore[method-assign]
    for count, stale in ((2, False), (3, True)):
        missed = later(timeframe, int(bars.time[friday]), count)
        world.clock.wait(bar_end(timeframe, missed) + 1.0 - world.clock.now())
        session.poll()
        assert [kind for kind, _ in world.told if kind == "stale"] == ["stale"] * stale
    assert session._status == "no new bar for 3 bars"


@EACH
def test_a_feed_delivers_sessions_and_no_weekend(timeframe: str) -> None:
    bars, friday = MARKETS[timeframe], friday_of(MARKETS[timeframe])
    rows = [rows_of(bars, asset) for asset in range(3)]
    now = 0.0

    def fetch(ticker: str, start: int, end: int) -> np.ndarray:
        found = rows[TICKERS.index(ticker)]
        time = found[:, 0]
        closed = np.array([bar_end(timeframe, int(one)) <= now for one in time])
        return found[(time >= start) & (time < end) & closed]

    feed = LiveFeed(fetch, TICKERS, timeframe, name="shop", sleep=lambda _: None)
    now = bar_end(timeframe, int(bars.time[friday])) + SETTLE_SECONDS
    history = feed.start(200, now)
    assert history.time[-1] == bars.time[friday]
    assert not history.hole.any()
    assert feed.age(now) == SETTLE_SECONDS
    for days in (1, 2, 2.7):
        now = bar_end(timeframe, int(bars.time[friday])) + days * DAY
        assert feed.poll(now) == []
    monday = int(bars.time[friday + 1])
    # Bars of a session are published hours after the close, and those of an hour at once.
    now = bar_end(timeframe, monday) + (7200.0 if timeframe == NY else SETTLE_SECONDS)
    grace = SESSION_GRACE_SECONDS if timeframe == NY else GRACE_SECONDS - SETTLE_SECONDS
    # One ticker is late: waited for, then a hole.
    rows[1] = rows[1][rows[1][:, 0] != monday]
    assert feed.poll(now) == []
    assert feed.poll(now + grace - 1.0) == []
    [bar] = feed.poll(now + grace)
    assert (bar.time, bar.hole.tolist()) == (monday, [False, True, False])
    np.testing.assert_array_equal(bar.close[[0, 2]], bars.close[friday + 1, [0, 2]])


def test_recorded_sessions_close_with_the_market() -> None:
    feed = RecordedFeed(BARS)
    end = bar_end(NY, int(BARS.time[FRIDAY]))
    assert feed.start(100, end).time[-1] == BARS.time[FRIDAY]
    assert feed.poll(end + 2.5 * DAY) == []
    assert [bar.time for bar in feed.poll(end + 3.0 * DAY)] == [BARS.time[FRIDAY + 1]]


@EACH
def test_environment_and_trader_agree(timeframe: str) -> None:
    """The same actions give the same account, bar by bar, to 1e-9."""
    market = make_demo_market(6, assets=3, bars=620, timeframe=timeframe)
    made = bundle(tickers=market.tickers, timeframe=timeframe)
    actions = np.random.default_rng(0).uniform(-1, 1, (60, 3))
    totals = assert_same_account(made, market, actions, (550, 610))
    assert totals["trades"] > 10


def test_a_bundle_names_a_bar_of_its_calendar() -> None:
    saturday = int(BARS.time[FRIDAY]) + DAY
    good = bundle(last_seen=int(BARS.time[FRIDAY]))
    assert good.manifest.timeframe == NY
    with pytest.raises(InputError, match="is not the open of a bar of 1d-XNYS"):
        bundle(last_seen=saturday).check()
    assert format_time(saturday).endswith("00:00:00Z")


def test_sources_of_crypto_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APCA_API_KEY_ID", "key")
    monkeypatch.setenv("APCA_API_SECRET_KEY", "secret")
    write_bars(BARS, tmp_path / "bars")
    registry = Registry(tmp_path / "deployments")
    made = bundle(last_seen=int(BARS.time[FIRST]))  # of tickers in USDT, which no share is in
    registry.promote(SLOT, made, expected=None, reason="test", data_dir=str(tmp_path / "bars"))
    for part in ("feed", "broker"):
        with pytest.raises(InputError, match="has no symbols for alpaca: Alpaca has shares in USD"):
            trade(tmp_path, f"--{part}", "alpaca", *(["--feed", "recorded"] * (part == "broker")))
    pytest.importorskip("ccxt", reason="the extra [ccxt] is not installed")
    with pytest.raises(InputError, match="exchanges of ccxt never close"):
        trade(tmp_path, "--feed", "binance")
    # Recorded sessions are traded from the first unseen one to the last.
    trade(tmp_path, "--feed", "recorded")
    expected = replay(made, BARS, (FIRST, LAST)).entries
    assert values(tmp_path) == [entry.value for entry in expected]
