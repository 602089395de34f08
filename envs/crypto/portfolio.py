"""The order rules as pure functions on (R, N) tensors, for the paper trader and simulated broker.

They have few rows. The rules are those of `ledger`, which the environment uses in place. Money,
units and prices are float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from envs.crypto.ledger import AssetSum, Filled, Ledger, Rules
from envs.crypto.netting import Netted, Venue


class Portfolio(NamedTuple):
    """Portfolios of R rows, row-first and float64.

    Attributes:
        cash: (R,).
        units: (R, N).
        cost: (R, N), average cost per unit with fees; 0 if flat.
        high: (R, N), highest close since the position was opened; only kept with a trailing stop.
        held: (R, N), bars held; 0 if flat.
    """

    cash: Tensor
    units: Tensor
    cost: Tensor
    high: Tensor
    held: Tensor


@dataclass(frozen=True)
class Orders:
    """Orders decided at one close.

    Attributes:
        sell_units: (R, N) float64, 0 without an order.
        buy_notional: (R, N) float64, 0 without an order.
        whole: (R, N) bool, whether the sell closes the position.
        restart_clock: (R, N) bool, the holding clock restarts unless the fill bar is a hole.
        dropped: (R,), number of orders below the minimum.
    """

    sell_units: Tensor
    buy_notional: Tensor
    whole: Tensor
    restart_clock: Tensor
    dropped: Tensor

    @classmethod
    def none(cls, rows: int, assets: int) -> Orders:
        """Return no orders, for `rows` rows."""
        sells, buys = torch.zeros(2, rows, assets, dtype=torch.float64)
        return cls(sells, buys, sells > 0, buys > 0, torch.zeros(rows, dtype=torch.float64))


def value(portfolio: Portfolio, close: Tensor) -> Tensor:
    """Return cash plus the value of the units at `close` (R, N): (R,)."""
    return _marked(portfolio, close)[1]


def plan_orders(portfolio: Portfolio, close: Tensor, action: Tensor, rules: Rules) -> Orders:
    """Translate `action` (R, N) at `close` (R, N) into orders."""
    return _orders(*_planned(portfolio, close, action, rules))


def plan_netted(
    portfolio: Portfolio, close: Tensor, action: Tensor, rules: Rules, venue: Venue
) -> tuple[Portfolio, Orders, Netted]:
    """Plan the orders of rows that are sub-accounts of one account, netted.

    Returns:
        The portfolio after crossing at `close`, each row's part of the net orders, and the net
        orders of the account.
    """
    ledger, restart = _planned(portfolio, close, action, rules)
    netted = venue.net(ledger, close.t())
    return to_portfolio(ledger), _orders(ledger, restart), netted


def _planned(
    portfolio: Portfolio, close: Tensor, action: Tensor, rules: Rules
) -> tuple[Ledger, Tensor | None]:
    ledger, total = _marked(portfolio, close)
    ledger.wish.copy_(action.t())
    return ledger, ledger.plan(total, close.t().contiguous(), rules, count=True)


def _orders(ledger: Ledger, restart: Tensor | None) -> Orders:
    """Read the orders that `Ledger.plan` left in the ledger; `restart` is its result."""
    return Orders(
        sell_units=_by_row(ledger.sell * ledger.units),
        buy_notional=_by_row(ledger.buy),
        whole=_by_row((ledger.sell == 1.0) & (ledger.units > 0)),
        restart_clock=_by_row(torch.zeros_like(ledger.units) if restart is None else restart) > 0,
        dropped=ledger.dropped,
    )


def fill_orders(
    portfolio: Portfolio, orders: Orders, open_: Tensor, hole: Tensor | None, rules: Rules
) -> tuple[Portfolio, Filled]:
    """Fill orders at the next bar's open. Call it once per bar, also without orders.

    Args:
        portfolio: before the bar.
        orders: decided at the previous close.
        open_: (R, N).
        hole: (R, N) bool, or None without holes.
        rules: order parameters.

    Returns:
        The portfolio after the bar's open, and what was filled.
    """
    ledger = _ledger(portfolio)
    ledger.buy.copy_(orders.buy_notional.t())
    # The broker knows units, the ledger fractions of the position. The quotient is exactly 1 for a
    # whole position; rows without units have no order and would give 0 / 0.
    ledger.sell.copy_(
        torch.where(orders.sell_units > 0, orders.sell_units / portfolio.units, 0.0).t()
    )
    tradable = None if hole is None else (~hole.t()).double()
    ledger.fill(orders.restart_clock.t().double(), open_.t(), tradable, rules, count=True)
    ledger.settle(rules)
    return to_portfolio(ledger), ledger.filled(rules)


def mark(portfolio: Portfolio, close: Tensor, rules: Rules) -> Portfolio:
    """Update the highest closes with the bar's close (R, N), if a trailing stop is on."""
    ledger = _ledger(portfolio)
    if rules.stops:
        ledger.raise_highs(close.t())
    return to_portfolio(ledger)


def observe_portfolio(portfolio: Portfolio, close: Tensor, held_scale: float) -> Tensor:
    """Return the observation of a portfolio: (R, 1 + 3N) float32, see `Ledger.observe`."""
    ledger, total = _marked(portfolio, close)
    return _by_row(ledger.observe(total, torch.full_like(total, 1.0 / held_scale)).float())


def to_portfolio(ledger: Ledger) -> Portfolio:
    """Copy a ledger's portfolios to row-first tensors."""
    is_open = ledger.units > 0
    cost = torch.where(is_open, ledger.paid / ledger.units, 0.0)
    high = torch.where(is_open, ledger.high, 0.0)
    return Portfolio(
        ledger.cash.clone(),
        *(_by_row(tensor) for tensor in (ledger.units, cost, high, ledger.held)),
    )


def _ledger(portfolio: Portfolio) -> Ledger:
    """Copy portfolios to a new ledger."""
    rows, assets = portfolio.units.shape
    ledger = Ledger(rows, assets, portfolio.units.device)
    ledger.cash.copy_(portfolio.cash)
    ledger.units.copy_(portfolio.units.t())
    ledger.paid.copy_((portfolio.cost * portfolio.units).t())
    ledger.held.copy_(portfolio.held.t())
    ledger.high.copy_(portfolio.high.t())
    return ledger


def _marked(portfolio: Portfolio, close: Tensor) -> tuple[Ledger, Tensor]:
    """Return a ledger valued at `close` (R, N), and the portfolios' values (R,)."""
    ledger = _ledger(portfolio)
    ledger.mark(close.t())
    return ledger, AssetSum(ledger.worth)() + ledger.cash


def _by_row(tensor: Tensor) -> Tensor:
    """Copy (N, R) to a contiguous (R, N)."""
    return tensor.t().clone(memory_format=torch.contiguous_format)
