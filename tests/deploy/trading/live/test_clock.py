"""A machine's clock that differs from the feed's is reported once, and so is its end."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from sweepd.deploy.dashboard.alerts import slot_alerts
from sweepd.deploy.dashboard.formatting import seconds_of
from sweepd.deploy.dashboard.health import health
from sweepd.deploy.trading.brokers.sim import SimBroker
from sweepd.deploy.trading.feeds import Feed, LiveFeed
from sweepd.deploy.trading.live.queries import Records
from sweepd.envs.crypto.data.timeframe import bar_ends
from sweepd.envs.support.errors import TryAgainLater
from tests.deploy.trading.live.test_session import FIRST, bars_of, bundle_of
from tests.deploy.trading.live.world import SLOT, World


@dataclasses.dataclass
class Exchange:
    """A source whose clock is `skew` seconds ahead of the trader's; None if it does not tell it."""

    world: World
    skew: float = 0.0
    told: bool = True

    def feed(self) -> Feed:
        bars, tickers = self.world.bars, self.world.bundle.manifest.tickers

        def fetch(ticker: str, start: int, end: int) -> np.ndarray:
            now, asset = self.world.clock.now() + self.skew, bars.tickers.index(ticker)
            columns = (bars.open, bars.high, bars.low, bars.close, bars.volume)
            rows = np.column_stack([bars.time, *(column[:, asset] for column in columns)])
            closed = bar_ends(bars.timeframe, bars.time) <= now
            return rows[closed & (bars.time >= start) & (bars.time < end)]

        def skew(_now: float) -> float | None:
            return self.skew if self.told else None

        return LiveFeed(fetch, tickers, "1h", name="exchange", skew=skew, sleep=lambda _: None)


def world_of(folder: Path) -> tuple[World, Exchange]:
    world = World(folder, bundle_of(), bars_of(), FIRST)
    exchange = Exchange(world)
    world.make_feed = lambda _bundle: exchange.feed()
    return world, exchange


def states(world: World) -> str:
    trader = world.store.trader(SLOT)
    assert trader is not None
    found = health(dataclasses.replace(trader, last_bar=None), seconds_of(trader.beat), slot=SLOT)
    return f"{found.state}: {' '.join(found.sentences)}"


def test_a_clock_that_is_30_minutes_fast_is_reported(tmp_path: Path) -> None:
    world, exchange = world_of(tmp_path)
    world.begin()
    exchange.skew = -1800.0
    session = world.session()
    for bar in range(FIRST + 1, FIRST + 4):
        world.until_close_of(bar)
        world.clock.wait(1800.0)  # the bar arrives when it has closed by the exchange's clock
        session.poll()
    assert [line.action is None for line in world.lines()[1:]] == [False, True, True, True]
    session = world.session()  # a restart does not repeat it
    reports = [text for kind, text in world.told if kind == "clock"]
    assert reports == [
        "this machine's clock is 1,800 s ahead of that of recorded (limit 36 s): bars are decided "
        "too late or not at all; set this machine's clock"
    ]
    assert "is 30 min ahead of that of recorded." in states(world)
    exchange.skew = 0.0
    world.until_close_of(FIRST + 4)
    session.poll()
    reports = [text for kind, text in world.told if kind == "clock"]
    assert reports[1:] == ["this machine's clock agrees with that of recorded"]
    assert states(world).startswith("trading")


@pytest.mark.parametrize(
    ("skew", "told", "brokers", "wrong"),
    [
        (40.0, True, None, True),
        (30.0, True, None, False),
        (40.0, False, None, False),
        (0.0, False, -40.0, True),
        (0.0, True, TryAgainLater("no answer"), False),
    ],
)
def test_what_feed_or_broker_tell_is_held_to_a_small_part_of_a_bar(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    skew: float,
    told: bool,
    brokers: float | Exception | None,
    wrong: bool,
) -> None:
    def clock_skew(_broker: SimBroker) -> float | None:
        if isinstance(brokers, Exception):
            raise brokers
        return brokers

    monkeypatch.setattr(SimBroker, "clock_skew", clock_skew)
    world, exchange = world_of(tmp_path)
    exchange.skew, exchange.told = skew, told
    world.begin()
    assert any(kind == "clock" for kind, _ in world.told) == wrong
    assert states(world).startswith("clock" if wrong else "trading")
    trader, now = world.store.trader(SLOT), world.clock.now()
    assert trader is not None
    state = health(dataclasses.replace(trader, last_bar=None), now, slot=SLOT)
    alerts = slot_alerts(Records(world.registry.database), trader, SLOT, state, now)
    assert [alert.title for alert in alerts if alert.title == "clock"] == ["clock"] * wrong
