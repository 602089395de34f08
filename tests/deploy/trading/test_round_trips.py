"""Round trips by hand, and the identity between profit, transfers and equity."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from sweepd.deploy.trading.flows import Flow
from sweepd.deploy.trading.live.profits import ProfitBook
from sweepd.deploy.trading.live.queries import Records
from sweepd.deploy.trading.live.records import SLOT_ACCOUNT
from sweepd.deploy.trading.round_trips import Checkpoint, Deal, Profits, profits
from sweepd.envs.crypto.data.timeframe import DAY
from tests.deploy.alpaca_server import Exchange, serving
from tests.deploy.builders import ensemble_of
from tests.deploy.trading.live.test_session import FIRST, LAST, TICKERS, bars_of, bundle_of
from tests.deploy.trading.live.test_transfers import run, transfer
from tests.deploy.trading.live.world import SLOT, World

A, B = TICKERS[:2]
HOUR = 3600


def point(
    hour: int, value: float, units: dict[str, float], close: float, flow: float = 0.0
) -> Checkpoint:
    time = hour * HOUR
    return Checkpoint(time, time + HOUR, value, flow, units, {A: close, B: 10.0})


def deal(
    hour: int, side: str, units: float, money: float, fee: float = 1.0, ticker: str = A
) -> Deal:
    return Deal(ticker, side, hour * HOUR, (hour + 1) * HOUR, units, money, fee)  # type: ignore[arg-type]


def test_round_trips_at_average_cost() -> None:
    """1,000 of cash: 2 for 201, 2 for 241, 1 sold for 129, the rest for 359; then one is bought."""
    deals = [
        deal(0, "buy", 2.0, 201.0),
        deal(1, "buy", 2.0, 241.0),
        deal(2, "sell", 1.0, 129.0),
        deal(30, "sell", 3.0, 359.0),
        deal(31, "buy", 1.0, 111.0),
    ]
    found = profits(
        deals, [point(0, 1_000.0, {A: 0.0}, 100.0), point(40, 1_055.0, {A: 1.0}, 120.0)]
    )
    assert found is not None
    first, second = found.trips
    assert (first.opened, first.closed, first.buys, first.sells) == (HOUR, 31 * HOUR, 2, 2)
    assert (first.entry, first.exit, first.fees) == (442.0 / 4.0, 488.0 / 4.0, 4.0)
    assert first.realised == pytest.approx(488.0 - 442.0)
    assert first.ratio == pytest.approx(46.0 / 442.0)
    assert (second.closed, second.held, second.unrealised) == (None, 1.0, pytest.approx(9.0))
    # The sale of one unit realises 129 minus a quarter of 442, on the first day.
    assert found.by_day() == {0: pytest.approx(129.0 - 110.5), DAY: pytest.approx(359.0 - 331.5)}
    [asset] = found.assets
    assert (asset.name, asset.trips, asset.wins, asset.losses, asset.open) == (A, 2, 1, 0, 1)
    assert (asset.duration, asset.win_rate, asset.profit_factor) == (30 * HOUR, 1.0, None)
    assert found.unexplained == pytest.approx(0.0, abs=1e-9)


def test_transfers_of_units_are_bought_and_sold_at_the_close() -> None:
    points = [
        point(0, 1_000.0, {}, 100.0),
        point(5, 1_300.0, {A: 3.0}, 100.0, flow=300.0),
        point(9, 1_120.0, {A: 1.0}, 120.0, flow=-240.0),
    ]
    found = profits([], points)
    assert found is not None
    [trip] = found.trips
    assert (trip.buys, trip.sells, trip.held, trip.realised) == (1, 1, 1.0, pytest.approx(40.0))
    assert (found.flows, found.unexplained) == (60.0, pytest.approx(0.0, abs=1e-9))


def test_short_round_trips_at_average_proceeds() -> None:
    """Sold short: 2 for 199, 2 for 239; covered: 1 for 131, the rest for 361; then 1 is sold short."""
    deals = [
        deal(0, "sell", 2.0, 199.0),
        deal(1, "sell", 2.0, 239.0),
        deal(2, "buy", 1.0, 131.0),
        deal(30, "buy", 3.0, 361.0),
        deal(31, "sell", 1.0, 109.0),
    ]
    found = profits(
        deals, [point(0, 1_000.0, {A: 0.0}, 100.0), point(40, 935.0, {A: -1.0}, 120.0)], shorts=True
    )
    assert found is not None
    first, second = found.trips
    assert (first.opened, first.closed, first.buys, first.sells) == (HOUR, 31 * HOUR, 2, 2)
    assert (first.entry, first.exit, first.short) == (438.0 / 4.0, 492.0 / 4.0, True)
    assert first.realised == pytest.approx(438.0 - 492.0)
    assert first.ratio == pytest.approx(-54.0 / 438.0)
    assert (second.closed, second.held, second.unrealised) == (None, -1.0, pytest.approx(-11.0))
    assert found.by_day() == {0: pytest.approx(109.5 - 131.0), DAY: pytest.approx(328.5 - 361.0)}
    assert found.unexplained == pytest.approx(0.0)


def test_costs_without_an_order_are_named_and_dust_closes_a_round_trip() -> None:
    deals = [
        deal(0, "buy", 2.0, 201.0),
        Deal(A, "sell", HOUR, 2 * HOUR, 1.99999, 219.0, 1.0, whole=True),
        deal(2, "buy", 1.0, 100.0),
    ]
    found = profits(deals, [point(0, 1_000.0, {A: 0.0}, 100.0), point(9, 1_017.5, {A: 1.0}, 100.0)])
    assert found is not None
    assert [trip.closed for trip in found.trips] == [2 * HOUR, None]
    assert found.unexplained == pytest.approx(-0.5)


def test_an_open_position_without_a_price_has_no_unrealised_profit() -> None:
    end = Checkpoint(9 * HOUR, 10 * HOUR, 1_000.0, 0.0, {A: 1.0}, {})
    found = profits([deal(0, "buy", 1.0, 100.0)], [point(0, 1_000.0, {}, 100.0), end])
    assert found is not None
    assert (found.trips[0].unrealised, found.unexplained) == (None, None)
    assert profits([], []) is None


def check(world: World, account: str = SLOT_ACCOUNT) -> Profits:
    """Compare the profits with the account's lines and orders."""
    trader = world.store.trader(SLOT)
    assert trader is not None
    found = ProfitBook(Records(world.registry.database), world.store).read(trader, account)
    lines = world.lines(account)
    assert found is not None
    assert (found.first, found.last) == (lines[0].value, lines[-1].value)
    assert found.flows == pytest.approx(sum(line.flow for line in lines[1:]))
    assert found.total.fees == pytest.approx(sum(line.fees for line in lines))
    assert sum(found.by_day().values()) == pytest.approx(found.total.realised)
    for name in ("realised", "unrealised", "trips", "fees"):
        whole = sum(getattr(asset, name) for asset in found.assets)
        assert whole == pytest.approx(getattr(found.total, name))
    return found


@pytest.mark.parametrize("trials", [1, 2])
@pytest.mark.parametrize(
    "flow", [Flow(), Flow(5_000.0), Flow(1_000.0, {TICKERS[0]: 25.0, TICKERS[2]: -1e9})]
)
def test_profit_and_transfers_are_the_change_of_the_equity(
    tmp_path: Path, flow: Flow, trials: int
) -> None:
    bundle = bundle_of() if trials == 1 else ensemble_of([bundle_of(0), bundle_of(1)], (0.6, 0.4))
    world = World(tmp_path, bundle, bars_of(holes=0.05), FIRST)
    session = run(world, FIRST, FIRST + 8)
    transfer(session, flow)
    run(world, FIRST + 8, FIRST + 12, session)
    run(world, FIRST + 12, LAST + 1)  # another process continues
    found = check(world)
    assert found.total.profit == pytest.approx(found.last - found.first - found.flows, rel=1e-9)
    assert found.unexplained == pytest.approx(0.0, abs=1e-9 * found.last)
    assert len(found.trips) > 3
    assert any(trip.closed for trip in found.trips)


@pytest.fixture
def exchange() -> Iterator[Exchange]:
    pytest.importorskip("alpaca", reason="alpaca-py is not installed")
    market = Exchange(
        {ticker.replace("USDT", "USD"): Decimal(1) for ticker in TICKERS}, spread=Decimal("0.001")
    )
    with serving(market) as made:
        yield made


def test_a_venues_rounding_is_less_than_cents(tmp_path: Path, exchange: Exchange) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST, exchange)
    world.run()
    found = check(world)
    assert found.unexplained == pytest.approx(0.0, abs=0.05)
    shadow = check(world, "shadow")
    assert shadow.unexplained == pytest.approx(0.0, abs=1e-9 * shadow.last)
