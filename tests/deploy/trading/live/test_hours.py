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

NY = "1d-XNYS"
FIRST, LAST = 640, 664


def bars_of() -> Bars:
    bars = make_demo_market(5, assets=3, bars=LAST + 1, timeframe=NY)
    return dataclasses.replace(bars, tickers=TICKERS)


BARS = bars_of()


def weekday(bar: int) -> int:
    return datetime.fromtimestamp(int(BARS.time[bar]), UTC).weekday()


FRIDAY = next(bar for bar in range(FIRST, LAST) if weekday(bar) == 4 and weekday(bar + 1) == 0)


def bundle(*, last_seen: int = int(BARS.time[0]), tickers: tuple[str, ...] = TICKERS) -> Bundle:
    """A bundle whose study ends at a session."""
    data = DataPart(
        fingerprint="f" * 64,
        first=format_time(int(BARS.time[0])),
        last=format_time(last_seen),
        synthetic=False,
    )
    return small_bundle(
        params=PARAMS, tickers=tickers, timeframe=NY, gain=1.5, last_seen=last_seen, data=data
    )


def test_the_live_trader_equals_the_replay_bit_for_bit(tmp_path: Path) -> None:
    world = World(tmp_path, bundle(), BARS, FIRST)
    world.run()
    expected = replay(world.bundle, BARS, (FIRST, LAST)).entries
    lines = world.lines()
    assert [line.time for line in lines] == BARS.time[FIRST:].tolist()
    assert [line.value for line in lines] == [entry.value for entry in expected]
    assert [list(line.units.values()) for line in lines] == [e.units.tolist() for e in expected]
    assert sum(line.trades for line in lines) > 10
    # No night and no weekend counts as late data.
    assert [text for kind, text in world.told if kind in ("stale", "caught up")] == []


def test_the_trader_waits_for_the_close_of_the_next_session(tmp_path: Path) -> None:
    world = World(tmp_path, bundle(), BARS, FRIDAY)
    session = world.session()
    world.clock.wait(bar_end(NY, int(BARS.time[FRIDAY])) + SETTLE_SECONDS - world.clock.now())
    session.poll()
    assert len(world.lines()) == 1
    closes = bar_end(NY, int(BARS.time[FRIDAY + 1]))
    assert closes - bar_end(NY, int(BARS.time[FRIDAY])) == 3 * DAY
    assert world.clock.now() + session._until_next() == closes + SETTLE_SECONDS
    # Until then the market is closed, which is no missing bar.
    for hours in (6, 40, 71):
        world.clock.wait(3600.0 * hours - (world.clock.now() - (closes - 3 * DAY)))
        session.poll()
        assert len(world.lines()) == 1
    world.clock.wait(closes + SETTLE_SECONDS - world.clock.now())
    session.poll()
    assert len(world.lines()) == 2
    assert [kind for kind, _ in world.told if kind in ("stale", "caught up")] == []


def test_missing_sessions_are_reported(tmp_path: Path) -> None:
    world = World(tmp_path, bundle(), BARS, FRIDAY)
    session = world.session()
    world.clock.wait(bar_end(NY, int(BARS.time[FRIDAY])) + SETTLE_SECONDS - world.clock.now())
    session.poll()
    session._feed.poll = lambda _now: []  # type: ignore[method-assign]
    for bars, stale in ((2, False), (3, True)):
        missed = later(NY, int(BARS.time[FRIDAY]), bars)
        world.clock.wait(bar_end(NY, missed) + 1.0 - world.clock.now())
        session.poll()
        assert [kind for kind, _ in world.told if kind == "stale"] == ["stale"] * stale
    assert session._status == "no new bar for 3 bars"


def test_a_feed_delivers_sessions_and_no_weekend() -> None:
    rows = [rows_of(BARS, asset) for asset in range(3)]
    now = 0.0

    def fetch(ticker: str, start: int, end: int) -> np.ndarray:
        found = rows[TICKERS.index(ticker)]
        time = found[:, 0]
        closed = np.array([bar_end(NY, int(one)) <= now for one in time])
        return found[(time >= start) & (time < end) & closed]

    feed = LiveFeed(fetch, TICKERS, NY, name="shop", sleep=lambda _: None)
    now = bar_end(NY, int(BARS.time[FRIDAY])) + SETTLE_SECONDS
    history = feed.start(200, now)
    assert history.time[-1] == BARS.time[FRIDAY]
    assert not history.hole.any()
    assert feed.age(now) == SETTLE_SECONDS
    for days in (1, 2, 2.9):
        now = bar_end(NY, int(BARS.time[FRIDAY])) + days * DAY
        assert feed.poll(now) == []
    monday = int(BARS.time[FRIDAY + 1])
    now = bar_end(NY, monday) + 7200.0  # published two hours after the close
    # One ticker is late: waited for, then a hole.
    rows[1] = rows[1][rows[1][:, 0] != monday]
    assert feed.poll(now) == []
    assert feed.poll(now + SESSION_GRACE_SECONDS - 1.0) == []
    [bar] = feed.poll(now + SESSION_GRACE_SECONDS)
    assert (bar.time, bar.hole.tolist()) == (monday, [False, True, False])
    np.testing.assert_array_equal(bar.close[[0, 2]], BARS.close[FRIDAY + 1, [0, 2]])


def test_recorded_sessions_close_with_the_market() -> None:
    feed = RecordedFeed(BARS)
    end = bar_end(NY, int(BARS.time[FRIDAY]))
    assert feed.start(100, end).time[-1] == BARS.time[FRIDAY]
    assert feed.poll(end + 2.5 * DAY) == []
    assert [bar.time for bar in feed.poll(end + 3.0 * DAY)] == [BARS.time[FRIDAY + 1]]


def test_environment_and_trader_agree() -> None:
    """The same actions give the same account, bar by bar, to 1e-9."""
    market = make_demo_market(6, assets=3, bars=620, timeframe=NY)
    made = bundle(tickers=market.tickers)
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


def test_sources_of_crypto_are_refused(tmp_path: Path) -> None:
    write_bars(BARS, tmp_path / "bars")
    registry = Registry(tmp_path / "deployments")
    made = bundle(last_seen=int(BARS.time[FIRST]))
    registry.promote(SLOT, made, expected=None, reason="test", data_dir=str(tmp_path / "bars"))
    with pytest.raises(InputError, match="--feed alpaca has crypto only"):
        trade(tmp_path, "--feed", "alpaca")
    with pytest.raises(InputError, match="--broker alpaca trades crypto only"):
        trade(tmp_path, "--feed", "recorded", "--broker", "alpaca")
    # Recorded sessions are traded from the first unseen one to the last.
    trade(tmp_path, "--feed", "recorded")
    expected = replay(made, BARS, (FIRST, LAST)).entries
    assert values(tmp_path) == [entry.value for entry in expected]
