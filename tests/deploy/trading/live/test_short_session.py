"""The live trader with short positions: the replay's numbers, also after kills."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.trading.brokers.base import LIQUIDATED
from sweepd.deploy.trading.live.profits import ProfitBook
from sweepd.deploy.trading.live.queries import Records
from sweepd.deploy.trading.live.records import SLOT_ACCOUNT
from sweepd.deploy.trading.live.start import LiveFlags, TraderParts
from sweepd.deploy.trading.replay import replay
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.support.errors import InputError
from tests.deploy.builders import small_bundle
from tests.deploy.trading.live.world import SLOT, Killer, World
from tests.deploy.trading.test_paper_trader import TICKERS, market_bars

FIRST, LAST = 640, 664
PARAMS = EnvParams(
    action_scale=0.7, allow_short=True, borrow_fee=5.0, max_leverage=5.0, maintenance_margin=0.19
)


def wild_bars(last: int = LAST) -> Bars:
    bars = market_bars(1, bars=last + 1, holes=0.05)
    level = bars.close[FIRST]
    names = ("open", "high", "low", "close")
    values = {name: level * (getattr(bars, name) / level) ** 8 for name in names}
    return dataclasses.replace(bars, **values)


def bundle_of() -> Bundle:
    return small_bundle(0, tickers=TICKERS, gain=1.5, params=PARAMS)


def test_the_live_trader_equals_the_replay_bit_for_bit(tmp_path: Path) -> None:
    bars, bundle = wild_bars(), bundle_of()
    world = World(tmp_path, bundle, bars, FIRST)
    world.run()
    expected = replay(bundle, bars, (FIRST, LAST)).entries
    lines = world.lines()
    for line, entry in zip(lines, expected, strict=True):
        assert (line.value, line.cash, line.fees) == (entry.value, entry.cash, entry.fees)
        assert list(line.units.values()) == entry.units.tolist()
        assert line.flow == 0.0
    assert min(min(line.units.values()) for line in lines) < 0.0
    orders = world.store.orders(SLOT)
    liquidated = [one for one in orders if one.fill and one.fill.reason == LIQUIDATED]
    assert liquidated
    assert all(one.order.client_id.startswith(f"{SLOT}-") for one in liquidated)


def test_round_trips_explain_the_equity_but_for_borrow_fees(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), wild_bars(), FIRST)
    world.run()
    trader = world.store.trader(SLOT)
    assert trader is not None
    found = ProfitBook(Records(world.registry.database), world.store).read(trader, SLOT_ACCOUNT)
    assert found is not None
    lines = world.lines()
    borrowed = sum(line.fees for line in lines) - found.total.fees
    assert borrowed > 0.0
    assert found.unexplained == pytest.approx(-borrowed, rel=1e-9)
    assert {trip.short for trip in found.trips} == {False, True}
    held = {trip.ticker: trip.held for trip in found.trips if trip.closed is None}
    units = {ticker: units for ticker, units in lines[-1].units.items() if units}
    assert held == pytest.approx(units)


@pytest.mark.extra
def test_a_kill_at_any_step_changes_no_order_and_no_record(tmp_path: Path) -> None:
    bars, bundle = wild_bars(), bundle_of()
    undisturbed = World(tmp_path / "undisturbed", bundle, bars, FIRST)
    undisturbed.begin()
    start = undisturbed.copy(tmp_path / "start")
    count = Killer()
    undisturbed.run(count)
    for at in range(3, count.steps + 1, 7):
        world = start.killed_at(at, tmp_path)
        assert world.lines() == undisturbed.lines(), at
        assert world.orders() == undisturbed.orders(), at


def test_a_halt_that_sells_covers_short_positions(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), wild_bars(), FIRST)
    session = world.session()
    halted = False
    for bar in range(FIRST, LAST):
        world.until_close_of(bar)
        session.poll()
        lines = world.lines()
        if not halted and lines and min(lines[-1].units.values()) < 0.0:
            world.store.halt(SLOT, "test", sells=True)
            halted = True
    assert halted
    assert set(world.lines()[-1].units.values()) == {0.0}


def test_venues_without_shorts_refuse_the_bundle(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), wild_bars(), FIRST)
    flags = LiveFlags(broker="alpaca", feed="alpaca")
    parts = TraderParts(SLOT, world.registry, flags, world.bundle, print, threading.Event())
    with pytest.raises(InputError, match="was trained with --allow-short: use --broker sim"):
        parts.broker(world.bundle)
