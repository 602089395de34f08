"""The order rules as pure functions on (R, N) tensors: for the paper trader and the simulated broker, whose rows are
few.

The rules themselves are those of `ledger`, which the environment uses in place. Money, units and prices are float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from envs.crypto.ledger import AssetSum, Filled, Ledger, Plan, Rules
from envs.crypto.netting import Netted, Venue

__all__ = [
    "Filled",
    "Orders",
    "Portfolio",
    "Rules",
    "fill_orders",
    "mark",
    "observe_portfolio",
    "open_portfolio",
    "plan_netted",
    "plan_orders",
    "to_portfolio",
    "value",
]


class Portfolio(NamedTuple):
    """Portfolios of R rows, row-first: cash (R,); units, average cost per unit with fees, highest close since
    opening, and bars held, each (R, N). All float64; `cost` and `held` are 0 where flat, and `high` is only kept
    where a stop is on.
    """

    cash: Tensor
    units: Tensor
    cost: Tensor
    high: Tensor
    held: Tensor


@dataclass(frozen=True)
class Orders:
    """Orders decided at one close. All (R, N), but `dropped` (R,).

    sell_units, buy_notional: float64, 0 where there is no order. whole: the sell closes the position. restart_clock:
    the holding rule's clock restarts if the fill bar is no hole. dropped: how many orders were under the minimum.
    """

    sell_units: Tensor
    buy_notional: Tensor
    whole: Tensor
    restart_clock: Tensor
    dropped: Tensor


def open_portfolio(initial_cash: float | Sequence[float], assets: int) -> Portfolio:
    """Flat portfolios with that much cash, one row per number."""
    cash = torch.tensor(
        [initial_cash] if isinstance(initial_cash, int | float) else initial_cash,
        dtype=torch.float64,
    )
    return Portfolio(cash, *(torch.zeros(len(cash), assets, dtype=torch.float64) for _ in range(4)))


def value(portfolio: Portfolio, close: Tensor) -> Tensor:
    """(R,) cash plus units at `close` (R, N)."""
    return _marked(portfolio, close)[1]


def plan_orders(portfolio: Portfolio, close: Tensor, action: Tensor, rules: Rules) -> Orders:
    """The orders that `action` (R, N) means at `close` (R, N)."""
    return _orders(*_planned(portfolio, close, action, rules))


def plan_netted(
    portfolio: Portfolio, close: Tensor, action: Tensor, rules: Rules, venue: Venue
) -> tuple[Portfolio, Orders, Netted]:
    """The same where all rows are sub-accounts of one account: the portfolio after orders were crossed at `close`, each
    row's part of the net orders, and those orders.
    """
    ledger, plan = _planned(portfolio, close, action, rules)
    netted = venue.net(ledger, close.t())
    return to_portfolio(ledger), _orders(ledger, plan), netted


def _planned(
    portfolio: Portfolio, close: Tensor, action: Tensor, rules: Rules
) -> tuple[Ledger, Plan]:
    ledger, total = _marked(portfolio, close)
    ledger.wish.copy_(action.t())
    return ledger, ledger.plan(total, close.t().contiguous(), rules, count=True)


def _orders(ledger: Ledger, plan: Plan) -> Orders:
    assert plan.dropped is not None  # it was told to count
    restart = (
        torch.zeros_like(ledger.units, dtype=torch.bool)
        if plan.restart is None
        else plan.restart > 0
    )
    return Orders(
        sell_units=_by_row(ledger.sell * ledger.units),
        buy_notional=_by_row(ledger.buy),
        whole=_by_row((ledger.sell == 1.0) & (ledger.units > 0)),
        restart_clock=_by_row(restart),
        dropped=plan.dropped,
    )


def fill_orders(
    portfolio: Portfolio, orders: Orders, open_: Tensor, hole: Tensor | None, rules: Rules
) -> tuple[Portfolio, Filled]:
    """The portfolio after its orders met the next bar's `open_` (R, N), and what was filled.

    hole: (R, N) bool or None. Call it once per bar, also where nothing is ordered: clocks run on.
    """
    ledger = _ledger(portfolio)
    ledger.buy.copy_(orders.buy_notional.t())
    ledger.sell.copy_(
        torch.where(orders.sell_units > 0, orders.sell_units / portfolio.units, 0.0).t()
    )
    tradable = None if hole is None else (~hole.t()).double()
    ledger.fill(
        Plan(orders.restart_clock.t().double(), None), open_.t(), tradable, rules, count=True
    )
    ledger.settle(rules)
    return to_portfolio(ledger), ledger.filled(rules)


def mark(portfolio: Portfolio, close: Tensor, rules: Rules) -> Portfolio:
    """The portfolio after the close (R, N) of the bar its orders filled in (only highs change, where a stop is on)."""
    ledger = _ledger(portfolio)
    if rules.stops:
        ledger.raise_highs(close.t())
    return to_portfolio(ledger)


def observe_portfolio(portfolio: Portfolio, close: Tensor, held_scale: float) -> Tensor:
    """(R, 1 + 3N) float32: cash share, weights, unrealised returns, min(1, bars held / held_scale)."""
    ledger, total = _marked(portfolio, close)
    return _by_row(ledger.observe(total, torch.full_like(total, 1.0 / held_scale)).float())


def to_portfolio(ledger: Ledger) -> Portfolio:
    """The ledger's portfolios row-first, in tensors of their own."""
    is_open = ledger.units > 0
    cost = torch.where(is_open, ledger.paid / ledger.units, 0.0)
    high = torch.where(is_open, ledger.high, 0.0)
    return Portfolio(
        ledger.cash.clone(),
        *(_by_row(tensor) for tensor in (ledger.units, cost, high, ledger.held)),
    )


def _ledger(portfolio: Portfolio) -> Ledger:
    """The same portfolios in a ledger of their own."""
    rows, assets = portfolio.units.shape
    ledger = Ledger(rows, assets, portfolio.units.device)
    ledger.cash.copy_(portfolio.cash)
    ledger.units.copy_(portfolio.units.t())
    ledger.paid.copy_((portfolio.cost * portfolio.units).t())
    ledger.held.copy_(portfolio.held.t())
    ledger.high.copy_(portfolio.high.t())
    return ledger


def _marked(portfolio: Portfolio, close: Tensor) -> tuple[Ledger, Tensor]:
    """A ledger marked at `close` (R, N), and the portfolios' values (R,)."""
    ledger = _ledger(portfolio)
    ledger.mark(close.t())
    return ledger, AssetSum(ledger.worth)() + ledger.cash


def _by_row(tensor: Tensor) -> Tensor:
    """(N, R) as (R, N), in memory of its own."""
    return tensor.t().clone(memory_format=torch.contiguous_format)
