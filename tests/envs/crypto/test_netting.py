"""Netting: sub-accounts cross their orders at the close, and only the net order is sent."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sweepd.envs.crypto.netting import Netted, Venue, sub_account
from sweepd.envs.crypto.params import EnvParams, Instruments
from sweepd.envs.crypto.portfolio import Orders, Portfolio, plan, value
from sweepd.envs.crypto.rules import Rules

FREE = EnvParams(minimum_order=0.0)


@dataclass
class Accounts:
    """Sub-accounts between `plan` and `fill`. Arrays are (N, R), `close` is (N,)."""

    portfolio: Portfolio
    orders: Orders
    close: torch.Tensor

    @classmethod
    def of(
        cls,
        cash: list[float],
        units: np.ndarray,
        buy: np.ndarray,
        part: np.ndarray,
        close: np.ndarray,
    ) -> Accounts:
        """Make accounts with orders to buy (quote units) and to sell (parts of the positions)."""
        at = close[:, None]
        portfolio = Portfolio(
            torch.tensor(cash, dtype=torch.float64).unsqueeze(1),
            by_row(units),
            by_row(units * at * 0.9),
            by_row(np.where(units > 0, 1.1 * at, 0.0)),
            by_row(np.where(units > 0, 7.0, 0.0)),
        )
        orders = dataclasses.replace(
            Orders.none(*portfolio.units.shape),
            sell_units=by_row(part * units),
            buy_notional=by_row(buy),
            part=by_row(part),
        )
        return cls(portfolio, orders, by_row(np.repeat(at, units.shape[1], axis=1)))

    def net(self, venue: Venue) -> tuple[Accounts, Netted]:
        portfolio, orders, netted = venue.net(self.portfolio, self.orders, self.close)
        return Accounts(portfolio, orders, self.close), netted

    @property
    def by_asset(self) -> dict[str, torch.Tensor]:
        """Return cash (1, R), and the others (N, R)."""
        orders = {"buy": self.orders.buy_notional, "part": self.orders.part}
        orders["sell_units"] = self.orders.sell_units
        return {name: column.t() for name, column in (self.portfolio._asdict() | orders).items()}


def by_row(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.T.astype(np.float64))


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
    accounts = Accounts.of(cash, units, buy, sell, close)
    netting, netted = accounts.net(Venue(FREE, Instruments.unrestricted(assets)))
    before, after = accounts.by_asset, netting.by_asset
    expected = scalar_reference(cash, units, buy, sell, close)
    # Orders below the smallest possible amount are not sent.
    for found, wanted in zip(
        (after["cash"][0], after["units"], after["buy"], after["sell_units"]), expected, strict=True
    ):
        np.testing.assert_allclose(found.numpy(), np.asarray(wanted), rtol=1e-9, atol=1e-7)
    assert float(after["cash"].sum()) == pytest.approx(sum(cash), rel=1e-12)
    np.testing.assert_allclose(after["units"].sum(1).numpy(), units.sum(1), rtol=1e-12, atol=1e-12)
    gross = before["buy"].sum(1) + before["sell_units"].sum(1) * accounts.close[0]
    net = netted.buy + netted.sell_units * accounts.close[0]
    assert bool((net <= gross * (1 + 1e-12)).all())
    assert bool(((netted.buy == 0) | (netted.sell_units == 0)).all())
    np.testing.assert_allclose(
        (net + 2.0 * netted.crossed).numpy(), gross.numpy(), rtol=1e-9, atol=1e-7
    )
    if rows == 1:
        assert all(torch.equal(before[name], after[name]) for name in before)


def crossed_pair(minimum: float = 0.0) -> tuple[dict[str, torch.Tensor], Netted]:
    """Row 0 sells its 6 units at 10; row 1, flat, buys for 40; row 2 holds 2 units, no orders."""
    accounts = Accounts.of(
        [0.0, 100.0, 0.0],
        np.array([[6.0, 0.0, 2.0]]),
        np.array([[0.0, 40.0, 0.0]]),
        np.array([[1.0, 0.0, 0.0]]),
        np.array([10.0]),
    )
    venue = Venue(EnvParams(minimum_order=minimum), Instruments.unrestricted(1))
    after, netted = accounts.net(venue)
    return after.by_asset, netted


def test_crossed_orders_fill_at_the_close_without_fee() -> None:
    after, netted = crossed_pair()
    assert after["cash"].tolist() == [[40.0, 60.0, 0.0]]
    assert after["units"].tolist() == [[2.0, 4.0, 2.0]]
    assert after["paid"][0].tolist() == pytest.approx([6 * 10 * 0.9 / 3, 40.0, 18.0])
    assert after["held"].tolist() == [[7.0, 0.0, 7.0]]
    assert after["high"].tolist() == [[11.0, 10.0, 11.0]]
    assert after["part"].tolist() == [
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
    accounts = Accounts.of([0.0, 1e6], units, buy, sell, close)
    netting, netted = accounts.net(Venue(FREE, Instruments.unrestricted(200)))
    after = netting.by_asset
    assert not bool(after["units"][:, 0].any())
    assert not bool(after["sell_units"].any())
    assert not bool(netted.sell_units.any())
    assert not bool(after["held"][:, 0].any())


def test_a_net_order_under_the_minimum_is_dropped_unless_it_closes_the_account_s_position() -> None:
    after, netted = crossed_pair(minimum=50.0)
    assert (netted.sell_units.tolist(), netted.dropped.tolist()) == ([0.0], [True])
    assert after["sell_units"].tolist() == [[0.0, 0.0, 0.0]]
    assert after["units"].tolist() == [[2.0, 4.0, 2.0]]  # crossed nevertheless
    closing = Accounts.of(
        [0.0] * 2, np.array([[1.0, 2.0]]), np.zeros((1, 2)), np.ones((1, 2)), np.array([10.0])
    )
    _, netted = closing.net(Venue(EnvParams(minimum_order=50.0), Instruments.unrestricted(1)))
    assert (netted.sell_units.tolist(), netted.whole.tolist()) == ([3.0], [True])
    buying = Accounts.of(
        [99.0] * 2, np.zeros((1, 2)), np.array([[6.0, 3.0]]), np.zeros((1, 2)), np.array([1.0])
    )
    left, netted = buying.net(Venue(EnvParams(minimum_order=10.0), Instruments.unrestricted(1)))
    assert netted.dropped.tolist() == [True]
    assert not bool(left.orders.buy_notional.any())


def test_net_orders_are_rounded_to_increments_and_shared_in_proportion() -> None:
    instruments = Instruments(minimum_order=(0.0, 0.0), increment=(0.5, 0.5))
    accounts = Accounts.of(
        [100.0, 100.0],
        np.array([[1.0, 2.0], [0.0, 0.0]]),
        np.array([[0.0, 0.0], [10.006, 20.001]]),
        np.array([[0.5, 0.4], [0.0, 0.0]]),
        np.array([10.0, 3.0]),
    )
    netting, netted = accounts.net(Venue(FREE, instruments))
    after = netting.by_asset
    assert netted.sell_units.tolist() == pytest.approx([1.0, 0.0])  # of 0.5 + 0.8
    assert netted.buy.tolist() == pytest.approx([0.0, 30.0])  # of 30.007
    assert after["sell_units"][0].tolist() == pytest.approx([0.5 / 1.3, 0.8 / 1.3])
    assert after["buy"][1].tolist() == pytest.approx(
        [30.0 * 10.006 / 30.007, 30.0 * 20.001 / 30.007]
    )


def test_a_sub_account_trades_as_the_whole_does_on_its_scale() -> None:
    whole, part = EnvParams(minimum_order=25.0), sub_account(EnvParams(minimum_order=25.0), 0.3)
    assert (part.initial_cash, part.minimum_order) == (3_000.0, 7.5)
    rng = np.random.default_rng(0)
    rules = [Rules.of(params, Instruments.unrestricted(3)) for params in (whole, part)]
    close = torch.tensor([[100.0, 50.0, 20.0]], dtype=torch.float64)
    units = torch.from_numpy(rng.uniform(0.0, 30.0, (1, 3)))
    cash, flat = torch.full((1, 1), 5_000.0, dtype=torch.float64), torch.zeros_like(units)
    for _ in range(40):
        wish = torch.from_numpy(rng.uniform(-0.3, 0.3, (1, 3)))
        held = [Portfolio(k * cash, k * units, flat, flat, flat) for k in (1.0, 0.3)]
        one, two = (
            plan(part, value(part, close), wish, own) for part, own in zip(held, rules, strict=True)
        )
        for name in ("buy_notional", "sell_units"):
            found, wanted = getattr(two, name), 0.3 * getattr(one, name)
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
