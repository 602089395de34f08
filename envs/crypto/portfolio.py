"""The order rules as pure functions on (R, N) tensors, for the paper trader and simulated broker.

They have few rows. The rules are those of `ledger` and `short_ledger`, which the environment uses
in place. Money, units and prices are float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sweepd.envs.crypto.asset_sum import AssetSum
from sweepd.envs.crypto.ledger import Filled, Ledger, Rules
from sweepd.envs.crypto.netting import Netted, Venue
from sweepd.envs.crypto.short_ledger import ShortLedger


class Portfolio(NamedTuple):
    """Portfolios of R rows, row-first and float64.

    Attributes:
        cash: (R,).
        units: (R, N), negative if short.
        cost: (R, N), average cost (short: proceeds) per unit after fees; 0 if flat.
        high: (R, N), highest (short: lowest) close since the position was opened; only kept with a
            trailing stop.
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
        sell_units: (R, N) float64, 0 without an order: of a long position, or short.
        buy_notional: (R, N) float64, 0 without an order.
        cover_units: (R, N) float64, units of a short position to buy back; 0 without an order.
        whole: (R, N) bool, whether the order closes the position.
        restart_clock: (R, N) bool, the holding clock restarts unless the fill bar is a hole.
        dropped: (R,), number of orders below the minimum.
    """

    sell_units: Tensor
    buy_notional: Tensor
    cover_units: Tensor
    whole: Tensor
    restart_clock: Tensor
    dropped: Tensor

    @classmethod
    def none(cls, rows: int, assets: int) -> Orders:
        """Return no orders, for `rows` rows."""
        none = torch.zeros(4, rows, assets, dtype=torch.float64)
        sells, buys, covers = none[:3]
        return cls(sells, buys, covers, none[3] > 0, none[3] > 0, none[3, :, 0].clone())


def value(portfolio: Portfolio, close: Tensor) -> Tensor:
    """Return cash plus the value of the units at `close` (R, N): (R,)."""
    return _marked(_ledger(portfolio), close)[1]


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
    ledger, total = _marked(_ledger(portfolio, rules), close)
    ledger.wish.copy_(action.t())
    return ledger, ledger.plan(total, close.t().contiguous(), rules, count=True)


def _orders(ledger: Ledger, restart: Tensor | None) -> Orders:
    """Read the orders that `Ledger.plan` left in the ledger; `restart` is its result."""
    reduced, increased, none = ledger.sell * ledger.units, ledger.buy, torch.zeros_like(ledger.buy)
    sells, buys, covers = reduced, increased, none
    if isinstance(ledger, ShortLedger):
        short = ledger.short > 0
        sells = torch.where(short, increased, reduced)
        buys = torch.where(short, none, increased)
        covers = torch.where(short, -reduced, none)
    return Orders(
        sell_units=_by_row(sells),
        buy_notional=_by_row(buys),
        cover_units=_by_row(covers),
        whole=_by_row((ledger.sell == 1.0) & (ledger.units != 0)),
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
    ledger = _ledger(portfolio, rules)
    reduced, increased = orders.sell_units, orders.buy_notional
    if isinstance(ledger, ShortLedger):
        short_sale = (orders.sell_units > 0) & (portfolio.units <= 0)
        ledger.short.copy_((short_sale | (orders.cover_units > 0)).t())
        increased = torch.where(short_sale, orders.sell_units, increased)
        reduced = torch.where(short_sale, 0.0, orders.sell_units + orders.cover_units)
    ledger.buy.copy_(increased.t())
    # The broker knows units, the ledger fractions of the position. The quotient is exactly 1 for a
    # whole position; rows without units have no order and would give 0 / 0.
    ledger.sell.copy_(torch.where(reduced > 0, reduced / portfolio.units.abs(), 0.0).t())
    tradable = None if hole is None else (~hole.t()).double()
    ledger.fill(orders.restart_clock.t().double(), open_.t(), tradable, rules, count=True)
    ledger.settle(rules)
    return to_portfolio(ledger), ledger.filled(rules)


class Charged(NamedTuple):
    """What the venue took at a close, (…, R) each.

    Attributes:
        charges: as in `ShortLedger`, quote units.
        notional: of liquidated positions, quote units.
        fees: of liquidated positions, quote units.
    """

    charges: Tensor
    notional: Tensor
    fees: Tensor


def charge_margin(
    portfolio: Portfolio, close: Tensor, hole: Tensor | None, rules: Rules
) -> tuple[Portfolio, Charged]:
    """Charge the bar's borrow fee at `close` (R, N), and liquidate where the margin is too small.

    Call it once per bar, after `fill_orders`, where shorts are allowed.

    Returns:
        The portfolio after that, and what the venue took.
    """
    ledger = _ledger(portfolio, rules)
    assert isinstance(ledger, ShortLedger)
    ledger.mark(close.t())
    ledger.settle(rules)  # no orders
    ledger.charge(rules, None if hole is None else (~hole.t()).double())
    done = ledger.filled(rules)
    return to_portfolio(ledger), Charged(ledger.charges, done.notional, done.fees)


def mark(portfolio: Portfolio, close: Tensor, rules: Rules) -> Portfolio:
    """Update the highest closes with the bar's close (R, N), if a trailing stop is on."""
    ledger = _ledger(portfolio, rules)
    if rules.stops:
        ledger.raise_highs(close.t())
    return to_portfolio(ledger)


def observe_portfolio(portfolio: Portfolio, close: Tensor, held_scale: float) -> Tensor:
    """Return the observation of a portfolio: (R, 1 + 3N) float32, see `Ledger.observe`."""
    rows, assets = portfolio.units.shape
    # For long positions it is `Ledger.observe`, to the bit.
    ledger, total = _marked(_filled_in(ShortLedger(rows, assets), portfolio), close)
    return _by_row(ledger.observe(total, torch.full_like(total, 1.0 / held_scale)).float())


def to_portfolio(ledger: Ledger) -> Portfolio:
    """Copy a ledger's portfolios to row-first tensors."""
    is_open = ledger.units != 0
    cost = torch.where(is_open, ledger.paid / ledger.units, 0.0)
    high = torch.where(is_open, ledger.high, 0.0)
    return Portfolio(
        ledger.cash.clone(),
        *(_by_row(tensor) for tensor in (ledger.units, cost, high, ledger.held)),
    )


def _ledger(portfolio: Portfolio, rules: Rules | None = None) -> Ledger:
    """Copy portfolios to a new ledger for these rules."""
    kind = ShortLedger if rules is not None and rules.shorts else Ledger
    rows, assets = portfolio.units.shape
    return _filled_in(kind(rows, assets, portfolio.units.device), portfolio)


def _filled_in(ledger: Ledger, portfolio: Portfolio) -> Ledger:
    ledger.cash.copy_(portfolio.cash)
    ledger.units.copy_(portfolio.units.t())
    ledger.paid.copy_((portfolio.cost * portfolio.units).t())
    ledger.held.copy_(portfolio.held.t())
    ledger.high.copy_(portfolio.high.t())
    return ledger


def _marked(ledger: Ledger, close: Tensor) -> tuple[Ledger, Tensor]:
    """Value a ledger at `close` (R, N); return it, and the portfolios' values (R,)."""
    ledger.mark(close.t())
    return ledger, AssetSum(ledger.worth)() + ledger.cash


def _by_row(tensor: Tensor) -> Tensor:
    """Copy (N, R) to a contiguous (R, N)."""
    return tensor.t().clone(memory_format=torch.contiguous_format)
