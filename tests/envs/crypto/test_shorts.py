"""Properties of short positions, borrow fees and margin, of the order rules as pure functions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from sweepd.envs.crypto.data.timeframe import bars_per_year
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.params import EnvParams, Instruments
from sweepd.envs.crypto.portfolio import (
    Charged,
    Filled,
    Orders,
    Portfolio,
    charge,
    fill,
    observe,
    plan,
    value,
)
from sweepd.envs.crypto.rules import BANKRUPT_VALUE, Rules
from sweepd.envs.support.errors import InputError
from tests.envs.market_samples import WINDOWS, random_short_params, sample_market
from tests.extra import with_extra

YEAR = 8766.0
COSTLESS = {"fee": 0.0, "slippage": 0.0, "minimum_order": 0.0, "cash_reserve": 0.0}


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def rules_of(params: EnvParams, assets: int, increments: tuple[float, ...] = ()) -> Rules:
    made = Instruments((0.0,) * assets, increments or (0.0,) * assets)
    return Rules.of(params, made, bars_per_year=YEAR)


def portfolio(cash: float, *units: float) -> Portfolio:
    held = row(*units)
    high = torch.where(held != 0, 100.0, 0.0).double()
    return Portfolio(row(cash), held, 100.0 * held, high, held * 0)


def plan_at(held: Portfolio, close: Tensor, action: Tensor, rules: Rules) -> Orders:
    return plan(held, value(held, close), action, rules)


def charge_alone(
    held: Portfolio, close: Tensor, hole: Tensor | None, rules: Rules
) -> tuple[Portfolio, Filled, Charged]:
    """Charge a portfolio in a bar without orders."""
    return charge(held, Filled(*torch.zeros(4, 1, 1, dtype=torch.float64)), close, hole, rules)


def sizes(held: Portfolio, close: Tensor) -> float:
    return float((held.units * close).abs().sum())


class Case:
    """A random portfolio, prices of two bars, and the orders between them."""

    def __init__(self, seed: int, assets: int) -> None:
        draw = torch.Generator().manual_seed(seed)

        def uniform(low: float, high: float) -> Tensor:
            share = torch.rand(1, assets, dtype=torch.float64, generator=draw)
            return low + (high - low) * share

        self.params = random_short_params(seed)
        self.rules = rules_of(self.params, assets, (0.01,) * assets if seed % 2 else ())
        self.close, self.open, self.later = (uniform(20, 200) for _ in range(3))
        units = uniform(-30, 30) * (uniform(0, 1) > 0.3)
        cash = float(uniform(0, 10_000)[0, 0])
        self.before = portfolio(cash, *units[0].tolist())
        assume(float(value(self.before, self.close).total) > 100.0)
        action = uniform(-1, 1)
        self.orders = plan_at(self.before, self.close, action, self.rules)

    def fill(self) -> tuple[Portfolio, Filled]:
        return fill(self.before, self.orders, self.open, None, self.rules)


cases = st.builds(Case, st.integers(0, 100_000), st.integers(1, 5))


@settings(max_examples=150, deadline=None)
@given(cases)
def test_orders_change_the_value_by_fees_and_slippage_only(case: Case) -> None:
    after, filled = case.fill()
    moved = (after.units - case.before.units) * case.open
    bought, sold = float(moved.clamp_min(0).sum()), float((-moved).clamp_min(0).sum())
    slippage, fee = case.params.slippage, case.params.fee
    paid = bought * (1 + slippage) / (1 - fee) + sold * (1 - slippage)  # the notional
    assert float(filled.notional(case.rules)) == pytest.approx(paid, rel=1e-9, abs=1e-6)
    assert float(filled.fees(case.rules)) == pytest.approx(paid * fee, rel=1e-9, abs=1e-6)
    lost = bought * ((1 + slippage) / (1 - fee) - 1) + sold * (1 - (1 - slippage) * (1 - fee))
    lost_value = value(case.before, case.open).total - value(after, case.open).total
    assert float(lost_value) == pytest.approx(lost, rel=1e-9, abs=1e-6)


@settings(max_examples=150, deadline=None)
@given(cases)
def test_no_order_exceeds_the_leverage_or_crosses_zero(case: Case) -> None:
    at_close, _ = fill(
        case.before,
        case.orders,
        case.close,
        None,
        rules_of(EnvParams(allow_short=True, **COSTLESS), case.close.shape[1]),
    )
    total = float(value(case.before, case.close).total)
    limit = max(sizes(case.before, case.close), case.params.max_leverage * total)
    assert sizes(at_close, case.close) <= limit * (1 + 1e-12)
    assert bool((at_close.units * case.before.units >= 0).all())
    # A side never has two orders, and what increases a position respects its own limit.
    grown = (at_close.units.abs() > case.before.units.abs()).nonzero()[:, 1]
    for asset in grown.tolist():
        size = float(at_close.units.abs()[0, asset] * case.close[0, asset])
        assert size <= case.params.max_position * total * (1 + 1e-12)
    sides = torch.stack([case.orders.sell_units, case.orders.buy_notional, case.orders.cover_units])
    assert int((sides > 0).sum(0).max()) <= 1


@settings(max_examples=150, deadline=None)
@given(cases)
def test_the_venue_takes_the_fee_and_restores_the_margin_or_closes(case: Case) -> None:
    before, _ = case.fill()
    after, closed, taken = charge_alone(before, case.later, None, case.rules)
    total, left = float(value(before, case.later).total), float(value(after, case.later).total)
    owed = float((-before.units * case.later).clamp_min(0).sum()) + max(0.0, -float(before.cash))
    fee = owed * case.params.borrow_fee / YEAR
    liquidated = total - fee < case.params.maintenance_margin * sizes(before, case.later) * (
        1 - 1e-12
    )
    bankrupt = left == BANKRUPT_VALUE
    if not liquidated and not bankrupt:
        assert torch.equal(after.units, before.units)
        assert float(closed.notional(case.rules)) == 0.0
        assert left == pytest.approx(total - fee, rel=1e-12)
        return
    assert sizes(after, case.later) == 0.0
    held = before.units * case.later
    longs, shorts = float(held.clamp_min(0).sum()), float((-held).clamp_min(0).sum())
    slippage, cost = case.params.slippage, case.params.fee
    lost = shorts * ((1 + slippage) / (1 - cost) - 1) + longs * (1 - (1 - slippage) * (1 - cost))
    if not bankrupt:
        assert float(taken.charges) == pytest.approx(fee)
    # Nothing appears or vanishes: what the venue bears is in the charges.
    wanted = total - float(taken.charges) - lost
    assert left == pytest.approx(wanted, rel=1e-9, abs=1e-6)


def test_a_short_earns_what_the_price_falls_less_costs() -> None:
    """Figures by hand: sell 10 units short at 100, buy them back at 80."""
    params = EnvParams(
        allow_short=True,
        action_scale=0.1,
        borrow_fee=0.5,
        fee=0.01,
        slippage=0.02,
        minimum_order=0.0,
        cash_reserve=0.0,
    )
    rules = rules_of(params, 1)
    flat = portfolio(10_000.0, 0.0)
    orders = plan_at(flat, row(100.0), row(-1.0), rules)
    assert float(orders.sell_units) == 10.0
    held, filled = fill(flat, orders, row(100.0), None, rules)
    assert float(held.cash) == pytest.approx(10_000 + 1000 * 0.98 * 0.99)
    assert float(filled.fees(rules)) == pytest.approx(1000 * 0.98 * 0.01)
    held, _, taken = charge_alone(held, row(80.0), None, rules)
    assert float(taken.charges) == pytest.approx(800 * 0.5 / YEAR)
    seen = observe(held, value(held, row(80.0)), 0.1)[0].tolist()
    total = float(value(held, row(80.0)).total)
    assert seen[1] == pytest.approx(-800 / total)  # the weight
    assert seen[2] == pytest.approx(1 - 80 / (100 * 0.98 * 0.99))  # the unrealised return
    orders = plan_at(held, row(80.0), row(1.0), rules)
    assert bool(orders.whole)
    assert float(orders.cover_units) == 10.0
    assert float(orders.buy_notional) == 0.0
    closed, filled = fill(held, orders, row(80.0), None, rules)
    assert float(closed.units) == 0.0
    assert float(held.cash - closed.cash) == pytest.approx(800 * 1.02 / 0.99)
    assert float(filled.fees(rules)) == pytest.approx(800 * 1.02 / 0.99 * 0.01)


def test_proceeds_of_short_sales_buy_nothing() -> None:
    params = EnvParams(allow_short=True, action_scale=1.0, max_leverage=2.0, **COSTLESS)
    held = portfolio(11_000.0, -50.0, 40.0, 0.0)  # 5,000 owed, 4,000 owned, worth 10,000
    close = row(100.0, 100.0, 100.0)
    orders = plan_at(held, close, row(0.0, 0.0, 1.0), rules_of(params, 3))
    assert float(orders.buy_notional[0, 2]) == 6_000.0


def test_without_shorts_a_sale_of_nothing_is_no_order() -> None:
    rules = rules_of(EnvParams(), 1)
    orders = plan_at(portfolio(10_000.0, 0.0), row(100.0), row(-1.0), rules)
    assert float(orders.sell_units) == 0.0


def test_a_trailing_stop_covers_a_short_that_rises_from_its_lowest_close() -> None:
    params = EnvParams(allow_short=True, trailing_stop=0.1, maintenance_margin=0.0)
    rules = rules_of(params, 1)
    held = portfolio(20_000.0, -100.0)._replace(high=row(90.0))
    for close, stopped in ((98.9, False), (99.1, True)):
        orders = plan_at(held, row(close), row(-1.0), rules)
        assert bool(orders.whole) == stopped
        assert float(orders.cover_units) == (100.0 if stopped else 0.0)


def test_positions_in_a_hole_are_liquidated_later() -> None:
    params = EnvParams(allow_short=True, borrow_fee=0.0, maintenance_margin=0.5)
    rules = rules_of(params, 2)
    held = portfolio(20_000.0, -50.0, -50.0)
    hole = torch.tensor([[True, False]])
    after, _, _ = charge_alone(held, row(140.0, 140.0), hole, rules)
    assert after.units.tolist() == [[-50.0, 0.0]]
    after, _, _ = charge_alone(after, row(260.0, 140.0), None, rules)
    assert after.units.tolist() == [[0.0, 0.0]]


def test_an_account_that_owes_more_than_it_has_keeps_a_cent() -> None:
    params = EnvParams(allow_short=True, borrow_fee=0.0)
    held = portfolio(20_000.0, -100.0, 5.0)
    after, _, taken = charge_alone(held, row(300.0, 10.0), None, rules_of(params, 2))
    assert after.units.tolist() == [[0.0, 0.0]]
    assert float(after.cash) == BANKRUPT_VALUE
    assert float(taken.charges) < -9_000.0


def falling_and_leaping() -> CryptoEnv:
    """An evaluation environment whose price rises fivefold between two closes."""
    market = sample_market(1, assets=1, volatility=1e-4)
    market.bars.close[50:] *= 5.0
    market.bars.open[51:] *= 5.0
    params = EnvParams(allow_short=True, action_scale=1.0)
    return CryptoEnv.for_windows(market, params, [[(5, 100)]])


def test_a_bankrupt_account_stays_so_in_evaluation() -> None:
    env = falling_and_leaping()
    env.reset()
    values = []
    for _ in range(90):
        step = env.step(-torch.ones(1, 1))
        assert not bool(step.terminated)
        assert bool(torch.isfinite(step.obs).all() & torch.isfinite(step.reward).all())
        values.append(float(env.values()[0]))
    assert min(values[:44]) > 1_000.0
    assert set(values[45:]) == {BANKRUPT_VALUE}


@pytest.mark.parametrize("native", [False, True])
def test_a_bankrupt_account_terminates_in_training_and_starts_again(native: bool) -> None:
    market = falling_and_leaping().market
    params = EnvParams(allow_short=True, action_scale=1.0, episode_bars=95)
    env = CryptoEnv(market, params, [(5, 100)], 2, native=native)
    env.reset(0)
    ended = []
    for _ in range(95):
        step = env.step(-torch.ones(2, 1))
        ended.append(bool(step.terminated.all()))
        if ended[-1]:
            assert env.values()[0].tolist() == [10_000.0] * 2
            assert step.obs[:, :2].tolist() == [[1.0, 0.0]] * 2
            assert float(step.reward.max()) < -500.0
            last = env.final_obs()
            assert last[:, :3].tolist() == [[1.0, 0.0, 0.0]] * 2  # all cash, of a cent
            assert last[:, -1].tolist() == step.obs[:, -1].tolist()  # features of the same bar
    assert sum(ended) == 1
    assert bool(step.truncated.all())  # the episode keeps its length


@pytest.mark.parametrize("timeframe", with_extra(("1h", "1d"), ("1h",)))
def test_a_year_of_borrowing_costs_the_fee(timeframe: str) -> None:
    rate = 0.3
    params = EnvParams(allow_short=True, borrow_fee=rate)
    year = bars_per_year(timeframe)
    rules = Rules.of(params, Instruments.unrestricted(1), bars_per_year=year)
    held, total = portfolio(1e6, -10.0), 0.0
    for _ in range(math.floor(year)):
        held, _, taken = charge_alone(held, row(100.0), None, rules)
        total += float(taken.charges)
    assert total == pytest.approx(1000 * rate, rel=0.01)


def test_wrong_margins_are_refused() -> None:
    with pytest.raises(InputError, match=r"maintenance_margin 0\.5 times max_leverage 2 is 1"):
        EnvParams(allow_short=True, max_leverage=2.0, maintenance_margin=0.5)
    with pytest.raises(InputError, match="allow_short is 1; it must be true or false"):
        EnvParams(allow_short=1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="max_leverage is 0; it must be a number above 0"):
        EnvParams(max_leverage=0)
    env = CryptoEnv(sample_market(1), EnvParams(), WINDOWS, 2)
    with pytest.raises(InputError, match="made for members without shorts"):
        env.configure_member(0, EnvParams(allow_short=True), WINDOWS)
    with pytest.raises(ValueError, match="bars_per_year"):
        Rules.of(EnvParams(allow_short=True), Instruments.unrestricted(1))
