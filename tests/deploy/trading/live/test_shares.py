"""Shares on Alpaca's paper account: orders of a session's last bar wait for the next opening."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("alpaca", reason="alpaca-py is not installed")

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.manifest import DataPart
from sweepd.deploy.trading.certificates.parity import parity
from sweepd.deploy.trading.feeds import LiveFeed, RecordedFeed
from sweepd.deploy.trading.live.profits import fills_at_once
from sweepd.deploy.trading.live.records import SHADOW, SLOT_ACCOUNT
from sweepd.envs.crypto.data.alpaca import AlpacaShares
from sweepd.envs.crypto.data.bars import Bars, load_bars
from sweepd.envs.crypto.data.demo_market import make_demo_market
from sweepd.envs.crypto.data.download import download
from sweepd.envs.crypto.data.timeframe import bar_end, bar_number, bar_time, format_time, later
from tests.deploy.alpaca_server import Exchange, serving
from tests.deploy.builders import small_bundle
from tests.deploy.trading.live.test_revisions import scaled, traded
from tests.deploy.trading.live.test_session import PARAMS
from tests.deploy.trading.live.world import SLOT, Killer, World, is_open
from tests.envs.crypto.data.test_shares import half_hours
from tests.envs.loopback import Market
from tests.envs.loopback import serving as web_serving

HOURLY, DAILY = "1h-XNYS", "1d-XNYS"
TICKERS = ("AAPL/USD", "MSFT/USD", "KO/USD")
HISTORY = 640
SHARE_PARAMS = dataclasses.replace(PARAMS, fee=0.0, slippage=0.0)


def seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def bars_of(timeframe: str, first: str, count: int) -> Bars:
    """Bars of which number HISTORY is the first one from a day on."""
    start = bar_number(timeframe, seconds(first)) - HISTORY
    made = make_demo_market(5, assets=3, bars=HISTORY + count, timeframe=timeframe)
    time = [bar_time(timeframe, start + bar) for bar in range(HISTORY + count)]
    return dataclasses.replace(made, tickers=TICKERS, time=np.array(time), synthetic=False)


def bundle_of(bars: Bars) -> Bundle:
    first, last = (format_time(int(bars.time[bar])) for bar in (0, HISTORY - 1))
    data = DataPart(fingerprint="f" * 64, first=first, last=last, synthetic=False)
    return small_bundle(
        params=SHARE_PARAMS,
        tickers=TICKERS,
        timeframe=bars.timeframe,
        gain=1.5,
        last_seen=int(bars.time[HISTORY - 1]),
        data=data,
    )


@pytest.fixture
def exchange() -> Iterator[Exchange]:
    prices = {ticker.removesuffix("/USD"): Decimal(100) for ticker in TICKERS}
    with serving(Exchange(prices, is_open=False)) as made:
        yield made


def world_of(folder: Path, bars: Bars, exchange: Exchange, **changes: Any) -> World:
    return World(folder, bundle_of(bars), bars, HISTORY, exchange, **changes)


# Winter time begins on 3 November 2024; on 29 November the market closes at 13:00 in New York.
@pytest.mark.parametrize(
    ("timeframe", "first", "count"),
    [(HOURLY, "2024-11-01", 20), (HOURLY, "2024-11-27", 20), (DAILY, "2024-11-25", 9)],
)
def test_the_account_equals_the_shadow_that_fills_at_the_next_open(
    tmp_path: Path, exchange: Exchange, timeframe: str, first: str, count: int
) -> None:
    bars = bars_of(timeframe, first, count)
    world = world_of(tmp_path, bars, exchange)
    world.run()
    lines, shadow = world.lines(), world.lines(SHADOW)
    assert [line.time for line in lines] == bars.time[HISTORY:].tolist()
    # Without fees and slippage, only amounts in cents differ.
    assert [line.value for line in lines] == pytest.approx(
        [line.value for line in shadow], rel=1e-5
    )
    assert sum(line.trades for line in lines) >= 4
    assert all(line.flow == 0.0 for line in lines)
    orders = world.store.orders(SLOT)
    own = [line for line in orders if line.account == SLOT_ACCOUNT]
    decided = [line for line in own if line.order.decided != int(bars.time[-1])]
    waited = 0
    for line in decided:
        after = int(np.searchsorted(bars.time, line.order.decided)) + 1
        asset = TICKERS.index(line.order.ticker)
        assert line.fill is not None
        assert line.fill.price == bars.open[after, asset]
        assert line.fill.fee == 0.0
        waited += not is_open(timeframe, bar_end(timeframe, line.order.decided) + 2.0)
    assert 0 < waited <= len(decided)
    assert (waited == len(decided)) is (timeframe == DAILY)
    assert all(order["time_in_force"] == "day" for order in exchange.orders.values())
    assert [text for kind, text in world.told if kind in ("stale", "caught up", "transfer")] == []
    # The last bar's orders are still at Alpaca.
    assert {order["client_order_id"] for order in exchange.waiting} == {
        line.order.client_id for line in own if line.fill is None
    }
    assert not fills_at_once(world.store.trader(SLOT), SLOT_ACCOUNT)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_kill_at_any_step_over_a_night_loses_and_repeats_no_order(
    tmp_path: Path, exchange: Exchange
) -> None:
    """The first session is the short one after Thanksgiving, of four bars."""
    bars = bars_of(HOURLY, "2024-11-29T15:30", 5)
    start = world_of(tmp_path / "start", bars, exchange)
    start.begin()
    kept = ("cash", "units", "orders", "is_open", "prices")
    begun = copy.deepcopy({name: getattr(exchange, name) for name in kept})
    undisturbed = start.copy(tmp_path / "undisturbed")
    count = Killer()
    undisturbed.run(count)
    cash, held = exchange.cash, dict(exchange.units)
    assert len(exchange.orders) >= 4
    for at in range(1, count.steps + 1):
        for name, value in copy.deepcopy(begun).items():
            setattr(exchange, name, value)
        world = start.killed_at(at, tmp_path)
        assert (exchange.cash, exchange.units) == (cash, held), at
        assert world.orders() == undisturbed.orders(), at
        assert [line.value for line in world.lines()] == [
            line.value for line in undisturbed.lines()
        ], at


def test_a_restart_at_night_finds_the_waiting_orders(tmp_path: Path, exchange: Exchange) -> None:
    bars = bars_of(HOURLY, "2024-11-29", 6)  # four bars, a weekend, two bars
    world = world_of(tmp_path, bars, exchange)
    session = world.session()
    for bar in range(HISTORY, HISTORY + 4):
        world.until_close_of(bar)
        session.poll()
    sent = {order["client_order_id"] for order in exchange.waiting}
    assert sent
    assert world.clock.now() + session._until_next() == bar_end(HOURLY, int(bars.time[-2])) + 2.0
    for _ in range(2):
        world.clock.wait(20 * 3600.0)
        session = world.session()
        session.poll()
        assert {order["client_order_id"] for order in exchange.waiting} == sent
    world.run()
    fills = {line.order.client_id: line.fill for line in world.store.orders(SLOT)}
    for client_id in sent:
        fill = fills[client_id]
        assert fill is not None
        assert fill.status == "filled"
    assert len(exchange.orders) == sum(
        line.account == SLOT_ACCOUNT for line in world.store.orders(SLOT)
    )


def test_a_halt_that_sells_at_night_sells_at_the_opening(
    tmp_path: Path, exchange: Exchange
) -> None:
    bars = bars_of(HOURLY, "2024-11-29", 8)
    world = world_of(tmp_path, bars, exchange)
    session = world.session()
    for bar in range(HISTORY, HISTORY + 4):
        world.until_close_of(bar)
        session.poll()
    assert any(exchange.units.values())
    before = dict(exchange.units), len(exchange.orders)
    world.store.halt(SLOT, "enough", sells=True)
    session.poll()
    assert (dict(exchange.units), len(exchange.orders)) == before
    opening = later(HOURLY, int(bars.time[HISTORY + 3]))
    world.clock.wait(opening + 5.0 - world.clock.now())
    session.poll()
    assert not any(exchange.units.values())
    sold = [line for line in world.store.orders(SLOT) if "-halt" in line.order.client_id]
    assert all(line.fill is not None and line.fill.status == "filled" for line in sold)
    world.run()
    assert world.lines()[-1].cash == pytest.approx(float(exchange.cash), abs=0.01)


def test_what_was_recorded_is_replayed(tmp_path: Path, exchange: Exchange) -> None:
    bars = bars_of(HOURLY, "2024-11-27", 12)
    world = world_of(tmp_path, bars, exchange)
    world.run()
    days = parity(world.registry, SLOT)
    assert [day.bars for day in days] == [7, 4, 1]
    assert not any(day.differs for day in days)


def test_downloaded_bars_and_those_of_the_feed_make_the_same_account(
    tmp_path: Path, exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From Alpaca's half hours: a download, and a trader that is restarted at every other bar."""
    monkeypatch.setenv("APCA_API_KEY_ID", "key")
    monkeypatch.setenv("APCA_API_SECRET_KEY", "secret")
    symbols = tuple(ticker.removesuffix("/USD") for ticker in TICKERS)
    rows = half_hours(seconds("2024-07-15"), seconds("2024-12-05"))
    with web_serving(Market(rows, 1800, symbols)) as market:
        source = AlpacaShares(market.url, sleep=lambda _: None)
        folder = tmp_path / "bars"
        download(source, folder, HOURLY, symbols, int(rows[0, 0]), seconds("2024-12-04T16:00"))
        bars = load_bars(folder, HOURLY, TICKERS)
        first = int(np.searchsorted(bars.time, seconds("2024-11-27T14:30")))
        assert (first >= HISTORY, len(bars) - first) == (True, 7 + 4 + 14 + 1)
        recorded = World(tmp_path / "recorded", bundle_of(bars), bars, first, exchange)
        recorded.run()
        exchange.cash, exchange.units, exchange.orders = Decimal(10_000), {}, {}
        exchange.is_open = False
        live = World(tmp_path / "live", bundle_of(bars), bars, first, exchange)
        market.now = live.clock.now
        own = AlpacaShares(market.url, sleep=lambda _: None, now=live.clock.now)
        names = dict(zip(TICKERS, symbols, strict=True))
        live.make_feed = lambda _bundle: LiveFeed.of_source(
            own, TICKERS, HOURLY, symbols=names, sleep=lambda _: None
        )
        session = live.session()
        for bar in range(first, len(bars)):
            live.until_close_of(bar)
            session.poll()
            if bar % 2:
                session = live.session()
    assert [dataclasses.astuple(line) for line in live.lines()] == [
        dataclasses.astuple(line) for line in recorded.lines()
    ]
    assert sum(line.trades for line in live.lines()) > 6
    assert [text for kind, text in live.told if kind in ("stale", "revised", "adjusted")] == []


def test_a_split_at_night_changes_units_and_no_value(tmp_path: Path, exchange: Exchange) -> None:
    """Shares, the orders that wait, and the feed's earlier prices count in new units from then on."""
    bars = bars_of(HOURLY, "2024-11-29", 8)
    plain = world_of(tmp_path / "plain", bars, exchange)
    plain.run()
    exchange.cash, exchange.units, exchange.orders = Decimal(10_000), {}, {}
    exchange.is_open = False
    world = world_of(tmp_path / "split", bars, exchange)
    traded(world, HISTORY, HISTORY + 4)
    held = [place for place, ticker in enumerate(TICKERS) if exchange.units.get(ticker[:-4])]
    assert held
    assert exchange.waiting
    changed = bars
    for asset in held:
        changed = scaled(changed, 0.25, asset=asset)
        symbol = TICKERS[asset].removesuffix("/USD")
        exchange.units[symbol] *= 4
        for order in exchange.waiting:
            if (order["symbol"], order["side"]) == (symbol, "sell"):
                order["qty"] = str(Decimal(order["qty"]) * 4)
    world.clock._bars = changed
    world.make_feed = lambda _bundle: RecordedFeed(changed)
    world.run()
    assert [kind for kind, _ in world.told].count("adjusted") == len(held)
    assert not {"revised", "transfer", "halted", "cost"} & {kind for kind, _ in world.told}
    for line, other in zip(world.lines(), plain.lines(), strict=True):
        assert line.value == pytest.approx(other.value, rel=1e-6)
        assert line.flow == 0.0
    assert max(day.action for day in parity(world.registry, SLOT)) == 0.0
