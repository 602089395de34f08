"""Transfers: no return, limit or record counts them as a gain or a loss."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweepd.deploy.dashboard.series import SeriesCache
from sweepd.deploy.dashboard.view import slot_view
from sweepd.deploy.trading.brokers.base import AccountState, Fill, Order
from sweepd.deploy.trading.brokers.sim import SimBroker
from sweepd.deploy.trading.flows import FEE_MARGIN, CostAllowance, Flow, growth, less_costs, rebased
from sweepd.deploy.trading.live.records import SHADOW, SLOT_ACCOUNT
from sweepd.deploy.trading.live.returns import paired_returns
from sweepd.deploy.trading.live.session import LiveSession
from sweepd.deploy.trading.risk import Conditions, RiskRules, Situation
from sweepd.deploy.trading.risk_limits import RiskLimits
from sweepd.deploy.trading.sub_accounts import SubAccounts
from tests.deploy.alpaca_server import Exchange
from tests.deploy.builders import ensemble_of
from tests.deploy.trading.live.test_session import FIRST, MARKET, TICKERS, bars_of, bundle_of
from tests.deploy.trading.live.test_session import exchange as exchange
from tests.deploy.trading.live.world import SLOT, World

HOUR = 3600
STRICT = RiskLimits(drawdown=0.15, daily_loss=0.15)


def run(world: World, first: int, last: int, session: LiveSession | None = None) -> LiveSession:
    """Process the bars from `first` to before `last` in a session."""
    session = session or world.session()
    for bar in range(first, last):
        world.until_close_of(bar)
        session.poll()
    return session


def transfer(session: LiveSession, flow: Flow) -> None:
    """Transfer cash or units during the next bar, after its orders were filled."""
    broker = session._venue.broker
    assert isinstance(broker, SimBroker)
    fill = broker.next_bar

    def next_bar(*bar: Any) -> None:
        fill(*bar)
        broker.transfer(flow)
        broker.next_bar = fill  # type: ignore[method-assign]

    broker.next_bar = next_bar  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "flow",
    [
        Flow(5_000.0),
        Flow(-6_000.0),
        Flow(0.0, {TICKERS[1]: 40.0}),
        Flow(1_000.0, {TICKERS[0]: 25.0, TICKERS[2]: -1e9}),
        Flow(-1e9, dict.fromkeys(TICKERS, -1e9)),
    ],
    ids=["cash came", "cash went", "units came", "some of each", "all went"],
)
@pytest.mark.parametrize("trials", [1, 2])
def test_a_transfer_is_reported_and_is_no_gain_or_loss(
    tmp_path: Path, flow: Flow, trials: int
) -> None:
    bundle = bundle_of() if trials == 1 else ensemble_of([bundle_of(0), bundle_of(1)], (0.6, 0.4))
    world = World(tmp_path, bundle, bars_of(), FIRST, options={"limits": STRICT})
    session = run(world, FIRST, FIRST + 4)
    transfer(session, flow)
    run(world, FIRST + 4, FIRST + 8, session)
    run(world, FIRST + 8, FIRST + 12)  # another process continues
    lines = world.lines()
    assert len(lines) == 12
    [told] = [text for kind, text in world.told if kind == "transfer"]
    assert "without an order; this counts as no gain or loss" in told
    moved = np.array([line.flow for line in lines])
    assert np.flatnonzero(moved).tolist() == [4]
    [returns] = paired_returns(world.store, SLOT, (SLOT_ACCOUNT,), 0).values()
    assert np.abs(returns).max() < 0.05
    assert not [text for kind, text in world.told if kind == "risk"]
    emptied = flow.cash == -1e9
    assert (lines[-1].value > 0.0) != emptied
    if not emptied:
        assert lines[4].value - lines[3].value == pytest.approx(moved[4], abs=500.0)
        assert sum(line.trades for line in lines[5:]) > 0


def test_unexplained_units_count_as_bought_at_the_close(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST)
    session = run(world, FIRST, FIRST + 1)
    transfer(session, Flow(0.0, {TICKERS[1]: 7.0}))
    world.store.halt(SLOT, "wait", sells=False)
    run(world, FIRST + 1, FIRST + 2, session)
    accounts = session.machine.own.trader.accounts
    [book] = accounts.books
    place, close = TICKERS.index(TICKERS[1]), session.machine.history.close[-1]
    fills = [
        line.fill
        for line in world.store.orders(SLOT)
        if line.fill and line.order.ticker == TICKERS[1]
    ]
    paid = sum(fill.notional for fill in fills)
    assert book.basis[place] == pytest.approx(paid + 7.0 * close[place], rel=1e-9)


def test_an_emptied_account_is_traded_after_it_is_funded(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST, options={"limits": STRICT})
    session = run(world, FIRST, FIRST + 4)
    transfer(session, Flow(-1e9, dict.fromkeys(TICKERS, -1e9)))
    run(world, FIRST + 4, FIRST + 6, session)
    assert [line.value for line in world.lines()][-2:] == [0.0, 0.0]
    transfer(session, Flow(8_000.0))
    run(world, FIRST + 6, FIRST + 10, session)
    lines = world.lines()
    assert lines[6].flow == lines[6].value == 8_000.0
    assert sum(line.trades for line in lines[7:]) > 0
    [returns] = paired_returns(world.store, SLOT, (SLOT_ACCOUNT,), 0).values()
    assert np.abs(returns).max() < 0.05


def test_daily_summary_and_dashboard_exclude_transfers(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), bars_of(MARKET), FIRST)
    session = run(world, FIRST, FIRST + 4)
    transfer(session, Flow(-6_000.0))
    run(world, FIRST + 4, FIRST + 24, session)
    [day] = [text for kind, text in world.told if kind == "day" and "transfers" in text]
    gained = float(day.partition("(")[2].partition("%")[0])
    assert abs(gained) < 6.0
    view = slot_view(world.registry, SeriesCache(world.store), SLOT, world.clock.now())
    account = view.account(SLOT_ACCOUNT)
    assert account is not None
    assert account.flow < -1_000.0
    assert abs(account.total_return) < 0.1
    assert account.max_drawdown < 0.1
    assert "without transfers of -" in view.summary


def test_the_shadow_repeats_transfers(tmp_path: Path, exchange: Exchange) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST, exchange)
    session = run(world, FIRST, FIRST + 4)
    exchange.cash += Decimal(4_000)
    exchange.units["BTC/USD"] = exchange.units.get("BTC/USD", Decimal(0)) + 30
    run(world, FIRST + 4, FIRST + 8, session)
    run(world, FIRST + 8, FIRST + 12)
    shadow, own = world.lines(SHADOW), world.lines()
    assert own[4].flow == pytest.approx(
        4_000.0 + 30 * session.machine.history.close[-4][0], rel=0.05
    )
    np.testing.assert_allclose(
        [line.value for line in own], [line.value for line in shadow], rtol=1e-3
    )
    records = paired_returns(world.store, SLOT, (SLOT_ACCOUNT, SHADOW), 0)
    np.testing.assert_allclose(records[SLOT_ACCOUNT], records[SHADOW], atol=1e-3)


def test_a_transfer_during_a_selling_halt_is_detected(tmp_path: Path, exchange: Exchange) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST, exchange)
    session = run(world, FIRST, FIRST + 4)
    exchange.cash += Decimal(3_000)
    world.store.halt(SLOT, "by the operator", sells=True)
    world.clock.wait(10.0)
    session.poll()
    accounts = session.machine.own.trader.accounts
    assert (
        accounts.state()["allowance"][-1][0] == world.bars.time[FIRST + 4] // HOUR
    )  # the bar in which it was sold
    run(world, FIRST + 4, FIRST + 6)
    assert [line.flow for line in world.lines()] == pytest.approx([0, 0, 0, 0, 3_000, 0], abs=0.01)


def test_fees_and_rounding_are_no_transfers(tmp_path: Path, exchange: Exchange) -> None:
    exchange.fee = Decimal("0.0015")  # the bundle says 0.0025
    world = World(tmp_path, bundle_of(), bars_of(), FIRST, exchange)
    run(world, FIRST, FIRST + 12)
    assert sum(line.trades for line in world.lines()) > 5
    assert {line.flow for line in world.lines()} == {0.0}


def filled_notional(exchange: Exchange, since: int) -> Decimal:
    """USD that orders traded, after the first `since` of them."""
    orders = list(exchange.orders.values())[since:]
    return sum(
        (Decimal(one["filled_qty"]) * Decimal(one["filled_avg_price"] or 0) for one in orders),
        Decimal(0),
    )


def with_late_fees(world: World, rate: str) -> None:
    """Trade for a day; one bar after a fill, the venue charges `rate` of its notional."""
    assert world.exchange is not None
    session, known = world.session(), 0
    for bar in range(FIRST, FIRST + 24):
        world.exchange.cash -= filled_notional(world.exchange, known) * Decimal(rate)
        known = len(world.exchange.orders)
        run(world, bar, bar + 1, session)
        if bar == FIRST + 12:
            session = world.session()  # another process continues with the same allowance


@pytest.mark.parametrize("rate", ["0", "0.004"])
def test_many_small_late_fees_are_losses_that_a_drawdown_stop_sees(
    tmp_path: Path, exchange: Exchange, rate: str
) -> None:
    """Without late fees, the account falls by 9% from its highest value; with them, by 11%."""
    world = World(
        tmp_path,
        bundle_of(),
        bars_of(MARKET),
        FIRST,
        exchange,
        {"limits": RiskLimits(drawdown=0.1)},
    )
    with_late_fees(world, rate)
    kinds = [kind for kind, _ in world.told]
    assert "transfer" not in kinds
    assert {line.flow for line in world.lines()} == {0.0}
    assert ("cost" in kinds) == ("risk" in kinds) == (rate != "0")
    own = [text for kind, text in world.told if kind == "cost"]
    assert all(
        text.endswith("left the account without an order; this counts as a cost of trading")
        for text in own
    )


def test_what_leaves_an_account_beyond_the_allowance_is_a_transfer(
    tmp_path: Path, exchange: Exchange
) -> None:
    world = World(
        tmp_path, bundle_of(), bars_of(), FIRST, exchange, {"limits": RiskLimits(drawdown=0.1)}
    )
    session = run(world, FIRST, FIRST + 4)
    cash = exchange.cash
    exchange.cash -= cash * Decimal("0.6")
    run(world, FIRST + 4, FIRST + 8, session)
    assert "risk" not in [kind for kind, _ in world.told]
    [told] = [text for kind, text in world.told if kind == "transfer"]
    assert told.endswith(
        "Another 67.86 left the account without an order; this counts as a cost of trading"
    )
    traded = sum(line.notional for line in world.lines()[:5])
    moved = [line.flow for line in world.lines()]
    assert moved[4] == pytest.approx(FEE_MARGIN * traded - 0.6 * float(cash), abs=0.01)
    assert [*moved[:4], *moved[5:]] == [0.0] * 7
    shadow = world.lines(
        SHADOW
    )  # repeats the transfer, and has no late fees that a part of it could be
    assert [line.flow for line in shadow] == pytest.approx(moved, abs=1e-6)


def test_an_allowance_lasts_two_days_and_is_spent_once() -> None:
    allowance = CostAllowance()
    allowance.earn(0, 10_000.0)
    allowance.earn(10 * HOUR, 1_000.0)
    assert allowance.spend(10 * HOUR, 20.0) == 20.0
    allowance = CostAllowance(allowance.state())
    assert allowance.spend(47 * HOUR, 31.0) == 31.0
    assert allowance.spend(47 * HOUR, 100.0) == pytest.approx(4.0)
    assert allowance.spend(47 * HOUR, 100.0) == 0.0
    allowance.earn(50 * HOUR, 10_000.0)
    assert allowance.spend(98 * HOUR, 100.0) == 0.0


def test_an_allowance_survives_a_swap() -> None:
    accounts = SubAccounts(("A", "B"), (1.0,), AccountState(1_000.0, {"A": 2.0}))
    bought = Fill(Order("1", "A", "buy", 0), "filled", 0, units=2.0, notional=200.0)
    accounts.reset(0, AccountState(800.0, {"A": 4.0}, late_fees=True), np.ones(2), [bought])
    assert accounts.state()["allowance"] == [(0, FEE_MARGIN * 200.0)]
    heir = SubAccounts.split(("B", "A"), (0.5, 0.5), accounts)
    assert heir.state()["allowance"] == accounts.state()["allowance"]
    restored = SubAccounts.restored(("A", "B"), (1.0,), accounts.state())
    assert restored.state() == accounts.state()


def test_units_bought_by_hand_are_no_cost() -> None:
    allowance, tickers, close = CostAllowance([(0, 50.0)]), ("A", "B"), np.array([10.0, 2.0])
    bought = Flow(-1_000.0, {"A": 100.0})
    assert less_costs(bought, allowance, 0, tickers, close) == bought
    with_fee = less_costs(Flow(-1_000.0, {"A": 98.0}), allowance, 0, tickers, close)
    assert (with_fee.cost, with_fee.value(tickers, close)) == pytest.approx((20.0, 0.0))
    went = less_costs(Flow(-60.0, {"A": 3.0, "B": -60.0}), allowance, 0, tickers, close)
    assert went.cost == 30.0
    assert went == Flow(pytest.approx(-50.0), {"A": 3.0, "B": pytest.approx(-50.0)}, 30.0)


def test_limits_are_adjusted_for_transfers() -> None:
    def judge(values: list[tuple[float, float]]) -> list[bool]:
        rules = RiskRules(RiskLimits(drawdown=0.2, daily_loss=0.1))
        return [
            rules.judge(Situation(HOUR * bar, value, Conditions(0.0), flow)).sell_all
            for bar, (value, flow) in enumerate(values)
        ]

    assert judge([(100, 0), (40, -60), (40, 0), (35, 0)]) == [False, False, False, True]
    assert judge([(100, 0), (95, 0), (195, 100), (170, 0)]) == [
        False,
        False,
        False,
        True,
    ]  # 5% and 13% of the day
    assert judge([(100, 0), (0, -100), (0, 0), (50, 50), (44, 0)]) == [
        False,
        False,
        False,
        False,
        True,
    ]


def test_growth_is_time_weighted() -> None:
    value, flow = (
        np.array([100.0, 110.0, 60.0, 66.0, 0.0, 50.0, 55.0]),
        np.array([0.0, 0, -50, 0, -66, 50, 0]),
    )
    np.testing.assert_allclose(growth(value, flow), [1, 1.1, 1.1, 1.21, 1.21, 1.21, 1.331])
    assert growth(np.zeros(0), np.zeros(0)).tolist() == []
    assert rebased(100.0, 40.0, 0.0) == 100.0
    assert rebased(100.0, 0.0, 0.0) == 100.0
