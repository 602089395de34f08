"""Orders above Alpaca's limit of 200,000 USD are sent in parts, which are orders of their own."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from sweepd.deploy.trading.certificates.parity import parity
from sweepd.deploy.trading.live.records import SHADOW, SLOT_ACCOUNT
from tests.deploy.alpaca_server import LARGEST, Exchange, serving
from tests.deploy.trading.live.test_session import FIRST, TICKERS, bars_of, bundle_of
from tests.deploy.trading.live.test_transfers import run
from tests.deploy.trading.live.world import SLOT, Killer, World

CASH = Decimal(2_000_000)


@pytest.fixture
def exchange() -> Iterator[Exchange]:
    pytest.importorskip("alpaca", reason="alpaca-py is not installed")
    market = Exchange(
        {one.replace("USDT", "USD"): Decimal(1) for one in TICKERS},
        cash=CASH,
        spread=Decimal("0.001"),
    )
    with serving(market) as made:
        yield made


def world_of(folder: Path, exchange: Exchange, count: int = FIRST + 12) -> World:
    options = {"any_account": True}
    return World(folder, bundle_of(), bars_of(count), FIRST, exchange, options)


def test_large_orders_are_filled_in_parts(tmp_path: Path, exchange: Exchange) -> None:
    world = world_of(tmp_path, exchange)
    session = run(world, FIRST, FIRST + 11)
    lines = world.store.orders(SLOT, account=SLOT_ACCOUNT)
    fills = [line.fill for line in lines if line.fill]
    assert {fill.status for fill in fills} == {"filled"}, {fill.reason for fill in fills}
    parts = {side: [f for f in fills if f.order.side == side] for side in ("buy", "sell")}
    for side, found in parts.items():
        assert any(fill.order.client_id.endswith("-2") for fill in found), side
    assert max(fill.notional for fill in fills) <= LARGEST
    # A complete sale leaves nothing, and the simulator, which has no limit, has the same account.
    sold = next(
        line for line in world.lines() if line.time > FIRST and not any(line.units.values())
    )
    assert sold.cash == sold.value
    own, shadow = world.lines()[-1], world.lines(SHADOW)[-1]
    assert own.value == pytest.approx(shadow.value, rel=1e-4)
    assert own.units == pytest.approx(shadow.units, rel=1e-4)
    assert sum(units > 0 for units in exchange.units.values()) > 0
    assert not any(day.differs for day in parity(world.registry, SLOT))
    before = len(world.store.orders(SLOT))
    world.store.halt(SLOT, "by the operator", sells=True)
    session.poll()
    assert len(world.store.orders(SLOT)) > before + 1
    assert max(exchange.units.values()) < Decimal("1e-9")  # less than can be sold


def test_a_kill_between_the_parts_loses_and_repeats_none(
    tmp_path: Path, exchange: Exchange
) -> None:
    start = world_of(tmp_path / "start", exchange, FIRST + 3)
    start.begin()
    begun = copy.deepcopy((exchange.cash, exchange.units, exchange.orders))
    undisturbed = start.copy(tmp_path / "undisturbed")
    count = Killer()
    undisturbed.run(count)
    cash, held = exchange.cash, dict(exchange.units)
    for at in range(2, count.steps + 1, 3):
        exchange.cash, exchange.units, exchange.orders = copy.deepcopy(begun)
        world = start.killed_at(at, tmp_path)
        assert (exchange.cash, exchange.units) == (cash, held), at
        assert world.orders() == undisturbed.orders(), at
