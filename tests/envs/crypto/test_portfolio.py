"""The order rules as pure functions for the paper trader and the simulated broker."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.params import EnvParams, Instruments
from sweepd.envs.crypto.portfolio import Portfolio, asset_sum, fill, mark, observe, plan, value
from sweepd.envs.crypto.rules import Rules
from tests.envs.market_samples import random_params, sample_market

RULES = Instruments((0.0, 20.0, 0.0), (1e-3, 0.0, 0.5))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), rows=st.sampled_from([1, 3]), holes=st.sampled_from([0.0, 0.2]))
def test_the_functions_equal_the_environment(seed: int, rows: int, holes: float) -> None:
    market = sample_market(seed, hole_share=holes, volatility=0.05, instruments=RULES)
    params = random_params(seed, episode_bars=250)
    env = CryptoEnv(market, params, [(5, 290)], rows, accounts=True)
    env.reset(seed)
    rules = Rules.of(params, RULES, rows)
    portfolio = open_portfolio([params.initial_cash] * rows, 3)
    opens, closes = torch.from_numpy(market.bars.open), torch.from_numpy(market.bars.close)
    hole = torch.from_numpy(market.bars.hole)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(30):
        bar = env.bars()
        action = torch.rand(rows, 3, generator=generator) * 2 - 1
        obs = env.step(action).obs
        before = [part.clone() for part in portfolio]
        orders = plan(portfolio, value(portfolio, closes[bar]), action, rules)
        after, fills = fill(portfolio, orders, opens[bar + 1], hole[bar + 1], rules)
        for part, copy in zip(portfolio, before, strict=True):
            assert torch.equal(part, copy)  # pure: the input is unchanged
        portfolio = mark(after, closes[bar + 1], rules)
        account, theirs = env.account, env.portfolio()
        assert account is not None
        assert torch.equal(orders.dropped, account.dropped)
        assert torch.equal(fills.trades[:, 0], account.trades)
        assert torch.equal(fills.unfilled[:, 0], account.unfilled)
        assert torch.equal(fills.fees(rules)[:, 0], account.fees)
        assert torch.equal(fills.notional(rules)[:, 0], account.notional)
        assert torch.equal(value(portfolio, closes[bar + 1]).total[:, 0], account.value)
        for one, two in zip(portfolio, theirs, strict=True):
            assert torch.equal(one, two)
        seen = observe(
            portfolio, value(portfolio, closes[bar + 1]), 1.0 / params.held_scale
        ).float()
        assert torch.equal(seen, obs[:, :10])


def open_portfolio(cash: list[float], assets: int) -> Portfolio:
    """Make portfolios without positions, one row per amount of cash."""
    nothing = [torch.zeros(len(cash), assets, dtype=torch.float64) for _ in range(4)]
    return Portfolio(torch.tensor(cash, dtype=torch.float64).unsqueeze(1), *nothing)


def one_position(
    units: float, close: float, params: EnvParams, action: float, rules: Instruments | None = None
):  # type: ignore[no-untyped-def]
    """Plan orders for a single asset with that position and 1,000 in cash."""
    portfolio = open_portfolio([1000.0], 1)._replace(
        units=torch.tensor([[units]], dtype=torch.float64)
    )
    made = Rules.of(params, rules or Instruments.unrestricted(1))
    at = value(portfolio, torch.tensor([[close]], dtype=torch.float64))
    return plan(portfolio, at, torch.tensor([[action]]), made)


# V is 2,000 in all cases: 1,000 in cash and 1,000 in the position.
@pytest.mark.parametrize(
    ("action", "scale", "sold", "whole", "dropped"),
    [
        (-1.0, 0.1, 2.0, False, 0),  # 200 of 1,000
        (-1.0, 0.496, 10.0, True, 0),  # 8 would remain, under the minimum of 10: all is sold
        (-1.0, 0.495, 9.9, False, 0),  # exactly 10 may remain
        (-1.0, 1.0, 10.0, True, 0),  # more than there is
        (-0.04, 0.1, 0.0, False, 1),  # 8 is under the minimum
        (-0.05, 0.1, 0.1, False, 0),  # exactly the minimum is enough
        (0.0, 0.1, 0.0, False, 0),
    ],
)
def test_sells(action: float, scale: float, sold: float, whole: bool, dropped: int) -> None:
    orders = one_position(10.0, 100.0, EnvParams(action_scale=scale), action)
    assert orders.sell_units.item() == pytest.approx(sold)
    assert orders.whole.item() == whole
    assert orders.dropped.item() == dropped
    assert orders.buy_notional.item() == 0.0


@pytest.mark.parametrize(
    ("action", "params", "bought", "dropped"),
    [
        (1.0, EnvParams(action_scale=0.1), 200.0, 0),
        (
            1.0,
            EnvParams(action_scale=0.1, max_position=0.55),
            100.0,
            0,
        ),  # 5% of V below the position limit
        (
            1.0,
            EnvParams(action_scale=0.1, max_position=0.4),
            0.0,
            0,
        ),  # above the limit already: no order, nothing dropped
        (1.0, EnvParams(action_scale=1.0, cash_reserve=0.1), 800.0, 0),  # cash less a tenth of V
        (1.0, EnvParams(action_scale=1.0, cash_reserve=0.6), 0.0, 0),
        (1.0, EnvParams(action_scale=1.0, cash_reserve=0.497), 0.0, 1),  # 6 are available
        (0.04, EnvParams(action_scale=0.1), 0.0, 1),
    ],
)
def test_buys(action: float, params: EnvParams, bought: float, dropped: int) -> None:
    orders = one_position(10.0, 100.0, params, action)
    assert orders.buy_notional.item() == pytest.approx(bought)
    assert orders.dropped.item() == dropped
    assert orders.sell_units.item() == 0.0


def test_money_from_sells_isnt_spent_in_the_same_bar() -> None:
    portfolio = open_portfolio([20.0], 2)._replace(
        units=torch.tensor([[10.0, 0.0]], dtype=torch.float64)
    )
    rules = Rules.of(EnvParams(action_scale=1.0, cash_reserve=0.0), Instruments.unrestricted(2))
    close = torch.tensor([[100.0, 100.0]], dtype=torch.float64)
    orders = plan(portfolio, value(portfolio, close), torch.tensor([[-1.0, 1.0]]), rules)
    assert orders.sell_units.tolist() == [[10.0, 0.0]]
    assert orders.buy_notional[0].tolist() == pytest.approx([0.0, 20.0])


def test_increments_round_down_but_never_strand_a_position() -> None:
    coarse = Instruments((0.0,), (0.3,))
    partial = one_position(10.0, 100.0, EnvParams(action_scale=0.1), -1.0, coarse)  # 2.0 requested
    assert partial.sell_units.item() == pytest.approx(1.8)
    exact = one_position(
        10.0, 100.0, EnvParams(action_scale=0.09), -1.0, coarse
    )  # 1.8 is six increments, 0.3 isn't
    assert exact.sell_units.item() == pytest.approx(1.8)
    whole = one_position(10.0, 100.0, EnvParams(action_scale=1.0), -1.0, coarse)
    assert whole.sell_units.item() == 10.0
    cents = one_position(10.0, 100.0, EnvParams(action_scale=0.0333333), 1.0, coarse)
    assert cents.buy_notional.item() == pytest.approx(66.66, abs=1e-9)
    smooth = one_position(10.0, 100.0, EnvParams(action_scale=0.0333333), 1.0)
    assert smooth.buy_notional.item() == pytest.approx(66.6666, abs=1e-9)


def test_average_cost_includes_fees_and_outlives_partial_sells() -> None:
    params = EnvParams(fee=0.01, slippage=0.02, cash_reserve=0.0, action_scale=0.1)
    rules = Rules.of(params, Instruments.unrestricted(1))

    def price(number: float) -> torch.Tensor:
        return torch.tensor([[number]], dtype=torch.float64)

    portfolio = open_portfolio([1000.0], 1)
    for action, open_ in ((1.0, 50.0), (1.0, 80.0), (-0.5, 60.0)):
        orders = plan(portfolio, value(portfolio, price(open_)), torch.tensor([[action]]), rules)
        paid = orders.buy_notional.item()
        before = portfolio
        portfolio, _ = fill(portfolio, orders, price(open_), None, rules)
        if action > 0:
            units = paid * 0.99 / (open_ * 1.02)
            spent = before.units.item() * before.cost.item() + paid
            assert portfolio.cost.item() == pytest.approx(spent / (before.units.item() + units))
        else:
            assert portfolio.units.item() < before.units.item()
            assert portfolio.cost.item() == pytest.approx(before.cost.item())
            sold = before.units.item() - portfolio.units.item()
            assert portfolio.cash.item() == pytest.approx(
                before.cash.item() + sold * 60 * 0.98 * 0.99
            )


@pytest.mark.parametrize("assets", [*range(1, 12), 64])
def test_sums_over_assets_are_right_and_the_same_in_every_row(assets: int) -> None:
    column = torch.rand(
        assets, generator=torch.Generator().manual_seed(assets), dtype=torch.float64
    ).exp()
    for rows in (1, 7, 33, 100):
        values = column.expand(rows, -1)
        for memory in (values.contiguous(), values.t().contiguous().t()):
            sums = asset_sum(memory)
            assert sums.shape == (rows, 1)
            assert len(sums.unique()) == 1
            assert float(sums[0]) == pytest.approx(sum(column.tolist()), rel=1e-14)
            sums.add_(1.0)
            assert torch.equal(memory[0], column)  # the input is unchanged
