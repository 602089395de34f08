"""Netting: sub-accounts cross their orders at the close, and only the net order is sent."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sweepd.envs.crypto.ledger import Ledger, Rules
from sweepd.envs.crypto.netting import Netted, Venue, sub_account
from sweepd.envs.crypto.params import EnvParams, Instruments

FREE = EnvParams(minimum_order=0.0)


def ledger_of(
    cash: list[float], units: np.ndarray, buy: np.ndarray, sell: np.ndarray, close: np.ndarray
) -> tuple[Ledger, torch.Tensor]:
    """Make a ledger between `plan` and `fill`, and its rows' close. Arrays (N, R); close (N,)."""
    ledger = Ledger(units.shape[1], units.shape[0])
    ledger.cash.copy_(torch.tensor(cash, dtype=torch.float64))
    ledger.units.copy_(torch.from_numpy(units))
    ledger.paid.copy_(torch.from_numpy(units * close[:, None] * 0.9))
    ledger.held.copy_(torch.from_numpy(np.where(units > 0, 7.0, 0.0)))
    ledger.high.copy_(torch.from_numpy(np.where(units > 0, 1.1 * close[:, None], 0.0)))
    ledger.buy.copy_(torch.from_numpy(buy))
    ledger.sell.copy_(torch.from_numpy(sell))
    return ledger, torch.from_numpy(np.repeat(close[:, None], units.shape[1], axis=1))


def state(ledger: Ledger) -> dict[str, torch.Tensor]:
    names = ("cash", "units", "paid", "held", "high", "buy", "sell")
    return {name: getattr(ledger, name).clone() for name in names}


def scalar_reference(
    cash: list[float], units: np.ndarray, buy: np.ndarray, sell: np.ndarray, close: np.ndarray
) -> tuple[list[float], np.ndarray, np.ndarray, np.ndarray]:
    """Cross each buyer with each seller in proportion, pair by pair.

    Returns cash, units, and the remaining orders to buy (quote units) and to sell (units).
    """
    cash, units, buy, sell_units = list(cash), units.copy(), buy.copy(), sell * units
    for asset in range(len(close)):
        bought, sold = buy[asset].sum(), (sell_units[asset] * close[asset]).sum()
        if min(bought, sold) <= 0.0:
            continue
        wanted, offered = buy[asset].copy(), sell_units[asset] * close[asset]
        for buyer, seller in itertools.product(range(len(cash)), repeat=2):
            amount = wanted[buyer] * offered[seller] / max(bought, sold)
            cash[buyer] -= amount
            cash[seller] += amount
            units[asset, buyer] += amount / close[asset]
            units[asset, seller] -= amount / close[asset]
            buy[asset, buyer] -= amount
            sell_units[asset, seller] -= amount / close[asset]
    return cash, units, buy, sell_units


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), rows=st.integers(1, 4), assets=st.integers(1, 4))
def test_crossing_equals_pairwise_trades_and_conserves_money(
    seed: int, rows: int, assets: int
) -> None:
    rng = np.random.default_rng(seed)
    close = rng.uniform(1.0, 100.0, assets)
    units = rng.uniform(0.0, 5.0, (assets, rows)) * (rng.random((assets, rows)) < 0.7)
    wish = rng.normal(size=(assets, rows))
    cash = rng.uniform(2000.0, 3000.0, rows).tolist()
    buy = np.where(wish > 0, 100.0 * wish, 0.0)
    sell = np.where(
        (wish < 0) & (units > 0), np.where(rng.random(wish.shape) < 0.3, 1.0, -wish / 4.0), 0.0
    ).clip(0, 1)
    ledger, at = ledger_of(cash, units, buy, sell, close)
    before = state(ledger)
    netted = Venue(FREE, Instruments.unrestricted(assets)).net(ledger, at)
    after = state(ledger)
    expected = scalar_reference(cash, units, buy, sell, close)
    # Orders below the smallest possible amount are not sent.
    for found, wanted in zip(
        (after["cash"], after["units"], after["buy"], after["sell"] * after["units"]),
        expected,
        strict=True,
    ):
        np.testing.assert_allclose(found.numpy(), np.asarray(wanted), rtol=1e-9, atol=1e-7)
    assert float(after["cash"].sum()) == pytest.approx(sum(cash), rel=1e-12)
    np.testing.assert_allclose(after["units"].sum(1).numpy(), units.sum(1), rtol=1e-12, atol=1e-12)
    gross = before["buy"].sum(1) + (before["sell"] * before["units"]).sum(1) * at[:, 0]
    net = netted.buy + netted.sell_units * at[:, 0]
    assert bool((net <= gross * (1 + 1e-12)).all())
    assert bool(((netted.buy == 0) | (netted.sell_units == 0)).all())
    np.testing.assert_allclose(
        (net + 2.0 * netted.crossed).numpy(), gross.numpy(), rtol=1e-9, atol=1e-7
    )
    if rows == 1:
        assert all(torch.equal(before[name], after[name]) for name in before)


def crossed_pair(minimum: float = 0.0) -> tuple[Ledger, Netted]:
    """Row 0 sells its 6 units at 10; row 1, flat, buys for 40; row 2 holds 2 units, no orders."""
    ledger, close = ledger_of(
        [0.0, 100.0, 0.0],
        np.array([[6.0, 0.0, 2.0]]),
        np.array([[0.0, 40.0, 0.0]]),
        np.array([[1.0, 0.0, 0.0]]),
        np.array([10.0]),
    )
    params = EnvParams(minimum_order=minimum)
    return ledger, Venue(params, Instruments.unrestricted(1)).net(ledger, close)


def test_crossed_orders_fill_at_the_close_without_fee() -> None:
    ledger, netted = crossed_pair()
    assert ledger.cash.tolist() == [40.0, 60.0, 0.0]
    assert ledger.units.tolist() == [[2.0, 4.0, 2.0]]
    assert ledger.paid[0].tolist() == pytest.approx([6 * 10 * 0.9 / 3, 40.0, 18.0])
    assert ledger.held.tolist() == [[7.0, 0.0, 7.0]]
    assert ledger.high.tolist() == [[11.0, 10.0, 11.0]]
    assert ledger.sell.tolist() == [
        [1.0, 0.0, 0.0]
    ]  # the remaining order still sells the whole position
    assert (netted.sell_units.tolist(), netted.whole.tolist(), netted.crossed.tolist()) == (
        [2.0],
        [False],
        [40.0],
    )


def test_a_whole_position_crossed_completely_leaves_zero_units() -> None:
    rng = np.random.default_rng(0)
    close, units = rng.uniform(0.1, 100.0, 200), np.zeros((200, 2))
    units[:, 0] = rng.uniform(0.1, 10.0, 200)
    assert np.any(
        units[:, 0] - units[:, 0] * close / close != 0.0
    )  # the residue that rounding would leave
    buy, sell = np.zeros_like(units), np.zeros_like(units)
    buy[:, 1], sell[:, 0] = 2_000.0, 1.0
    ledger, at = ledger_of([0.0, 1e6], units, buy, sell, close)
    netted = Venue(FREE, Instruments.unrestricted(200)).net(ledger, at)
    assert not bool(ledger.units[:, 0].any())
    assert not bool(ledger.sell.any())
    assert not bool(netted.sell_units.any())
    assert not bool(ledger.held[:, 0].any())


def test_a_net_order_under_the_minimum_is_dropped_unless_it_closes_the_account_s_position() -> None:
    ledger, netted = crossed_pair(minimum=50.0)
    assert (netted.sell_units.tolist(), netted.dropped.tolist()) == ([0.0], [True])
    assert ledger.sell.tolist() == [[0.0, 0.0, 0.0]]
    assert ledger.units.tolist() == [[2.0, 4.0, 2.0]]  # crossed nevertheless
    closing, close = ledger_of(
        [0.0] * 2, np.array([[1.0, 2.0]]), np.zeros((1, 2)), np.ones((1, 2)), np.array([10.0])
    )
    netted = Venue(EnvParams(minimum_order=50.0), Instruments.unrestricted(1)).net(closing, close)
    assert (netted.sell_units.tolist(), netted.whole.tolist()) == ([3.0], [True])
    buying, close = ledger_of(
        [99.0] * 2, np.zeros((1, 2)), np.array([[6.0, 3.0]]), np.zeros((1, 2)), np.array([1.0])
    )
    assert Venue(EnvParams(minimum_order=10.0), Instruments.unrestricted(1)).net(
        buying, close
    ).dropped.tolist() == [True]
    assert not bool(buying.buy.any())


def test_net_orders_are_rounded_to_increments_and_shared_in_proportion() -> None:
    instruments = Instruments(minimum_order=(0.0, 0.0), increment=(0.5, 0.5))
    ledger, close = ledger_of(
        [100.0, 100.0],
        np.array([[1.0, 2.0], [0.0, 0.0]]),
        np.array([[0.0, 0.0], [10.006, 20.001]]),
        np.array([[0.5, 0.4], [0.0, 0.0]]),
        np.array([10.0, 3.0]),
    )
    netted = Venue(FREE, instruments).net(ledger, close)
    assert netted.sell_units.tolist() == pytest.approx([1.0, 0.0])  # of 0.5 + 0.8
    assert netted.buy.tolist() == pytest.approx([0.0, 30.0])  # of 30.007
    assert (ledger.sell * ledger.units)[0].tolist() == pytest.approx([0.5 / 1.3, 0.8 / 1.3])
    assert ledger.buy[1].tolist() == pytest.approx([30.0 * 10.006 / 30.007, 30.0 * 20.001 / 30.007])


def test_a_sub_account_trades_as_the_whole_does_on_its_scale() -> None:
    whole, part = EnvParams(minimum_order=25.0), sub_account(EnvParams(minimum_order=25.0), 0.3)
    assert (part.initial_cash, part.minimum_order) == (3_000.0, 7.5)
    rng = np.random.default_rng(0)
    ledgers = [Ledger(1, 3), Ledger(1, 3)]
    rules = [Rules.of(params, Instruments.unrestricted(3)) for params in (whole, part)]
    units, close = (
        rng.uniform(0.0, 30.0, (3, 1)),
        torch.tensor([[100.0], [50.0], [20.0]], dtype=torch.float64),
    )
    for _ in range(40):
        wish = torch.from_numpy(rng.uniform(-0.3, 0.3, (3, 1)))
        for ledger, own, scale in zip(ledgers, rules, (1.0, 0.3), strict=True):
            ledger.cash.fill_(5_000.0 * scale)
            ledger.units.copy_(torch.from_numpy(units * scale))
            ledger.mark(close)
            ledger.wish.copy_(wish)
            ledger.plan(ledger.cash + ledger.worth.sum(0), close, own)
        np.testing.assert_allclose(
            ledgers[1].buy.numpy(), 0.3 * ledgers[0].buy.numpy(), rtol=1e-9, atol=1e-9
        )
        np.testing.assert_allclose(
            ledgers[1].sell.numpy(), ledgers[0].sell.numpy(), rtol=1e-9, atol=1e-9
        )
