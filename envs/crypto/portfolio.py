"""The order rules: what an action orders, how orders fill, and what a portfolio is worth.

The environment, the paper trader and the simulated broker all go through this one code. Its core works in place on a
`Ledger` whose tensors are asset-first, (N, R) for N assets and R rows: sums over assets and factors per row then run
along contiguous memory, several times as fast as the other way round. `Portfolio` and the functions on it are the
same rules as pure functions on (R, N) tensors, for callers with few rows. Money, units and prices are float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from envs.crypto.params import EnvParams, Instruments

_TINY = 1e-200  # keeps 0/0 out of quotients whose numerator is 0 too
# The least amount that any exchange knows. An "order" worth less is what rounding left of one; it is neither placed nor
# counted, and a position worth less isn't kept, even where no minimum is set.
SMALLEST_ORDER = 1e-8
# Quantities that miss a whole number of increments (or cents) by less than this part of one are rounding noise, not
# remainders.
_ROUNDING_NOISE = 1e-6


class Rules:
    """Order parameters as tensors, one entry per row. Rows can be set anew at any time.

    The flags (`stops`, `holding_rule`) are on where any row uses that rule. A block that is off in all rows would not
    change a bit of any result, so it is skipped.
    """

    def __init__(self, rows: int, instruments: Instruments, device: torch.device | str = "cpu") -> None:
        def per_row(*shape: int) -> Tensor:
            return torch.zeros(*shape, rows, dtype=torch.float64, device=device)

        self.rows = rows
        self.assets = len(instruments.increment)
        self.sizing = per_row(4)  # shares of V: an action's buy, its sell (negative), a position's limit, the reserve
        self.fee = per_row()
        self.buy_rate = per_row()  # units per quote unit of notional, times the open
        self.sell_rate = per_row()  # quote units per unit sold, over the open
        self.sell_notional = per_row()  # the same before the fee
        self.trailing_stop = per_row()
        self.max_holding_bars = per_row()  # infinite where the rule is off
        self.max_holding_fraction = per_row()
        self.stops = False
        self.holding_rule = False

        def per_ticker(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64, device=device).unsqueeze(1)

        # (N, R), or (1, R) where the exchange sets none
        self._ticker_minimum = per_ticker(instruments.minimum_order if any(instruments.minimum_order) else (0.0,))
        self.minimum = per_row(self._ticker_minimum.shape[0])
        self.increment = per_ticker(instruments.increment) if any(instruments.increment) else None
        self._members: dict[tuple[int, int], EnvParams] = {}

    @classmethod
    def of(cls, params: EnvParams, instruments: Instruments, rows: int = 1) -> Rules:
        """The same parameters for `rows` rows, on the CPU."""
        rules = cls(rows, instruments)
        rules.set_rows(0, rows, params)
        return rules

    def set_rows(self, first: int, stop: int, params: EnvParams) -> None:
        """Rows first … stop-1 follow `params` from now on. Always call it with the same ranges."""
        at = slice(first, stop)
        scale, limit, reserve = params.action_scale, params.max_position, params.cash_reserve
        for row, value in enumerate((scale, -scale, limit, reserve)):
            self.sizing[row, at] = value
        self.fee[at] = params.fee
        self.buy_rate[at] = (1.0 - params.fee) / (1.0 + params.slippage)
        self.sell_notional[at] = 1.0 - params.slippage
        self.sell_rate[at] = (1.0 - params.slippage) * (1.0 - params.fee)
        self.trailing_stop[at] = params.trailing_stop
        self.max_holding_bars[at] = params.max_holding_bars or torch.inf
        self.max_holding_fraction[at] = params.max_holding_fraction
        self.minimum[:, at] = self._ticker_minimum.clamp_min(max(params.minimum_order, SMALLEST_ORDER))
        self._members[first, stop] = params
        self.stops = any(p.trailing_stop > 0 for p in self._members.values())
        self.holding_rule = any(p.max_holding_bars > 0 for p in self._members.values())


class Ledger(NamedTuple):
    """Portfolios of R rows, asset-first; changed in place.

    cash: (R,). book: (2, N, R), what was paid for the units held (fees included), then the units.
    held: (N, R), bars since the position was opened from zero or its clock restarted; 0 where flat.
    high: (N, R), highest close since opening; meaningless where flat, and where no row has a trailing stop.
    """

    cash: Tensor
    book: Tensor
    held: Tensor
    high: Tensor


class Plan(NamedTuple):
    """Orders decided at one close, asset-first.

    flow: (2, N, R), notional to buy, then share of the position to sell (exactly 1 for a whole one).
    restart: (N, R) bool, clocks that restart if the next bar is no hole; None where no row has the holding rule.
    dropped: (R,) orders under the minimum; None unless counted.
    """

    flow: Tensor
    restart: Tensor | None
    dropped: Tensor | None


class Filled(NamedTuple):
    """What one bar's orders came to, per row: notional and fees in quote units, orders filled and orders left
    unfilled.
    """

    notional: Tensor
    fees: Tensor
    trades: Tensor
    unfilled: Tensor


def sum_assets(values: Tensor) -> Tensor:
    """The sum over the assets of (…, N, R), added up in an order that depends on N alone: (…, R).

    `Tensor.sum` orders its additions by a column's place in memory, so a row's last bits would depend on its slot.
    """
    count = values.shape[-2]
    if count == 1:
        return values.squeeze(-2).clone()
    half = count // 2
    sums = values.narrow(-2, 0, half) + values.narrow(-2, half, half)
    while half > 1:
        fold = half // 2
        sums.narrow(-2, 0, fold).add_(sums.narrow(-2, half - fold, fold))
        half -= fold
    total = sums.select(-2, 0)
    return total.add_(values.select(-2, count - 1)) if count % 2 else total


def plan(
    ledger: Ledger, worth: Tensor, total: Tensor, close: Tensor, action: Tensor, rules: Rules, *, count: bool = False
) -> Plan:
    """The orders that `action` means at `close`: forced exits, then sells, then buys, then rounding.

    worth: (N, R), units times close. total: (R,), cash plus all worth. action: (N, R) float64 in [-1, 1]. Changes
    nothing.
    """
    sizes = rules.sizing * total
    flow = action * sizes[:2].unsqueeze(1)
    buy, sell = flow[0], flow[1]
    torch.minimum(buy, sizes[2] - worth, out=buy)
    torch.minimum(sell, worth, out=sell)
    flow.clamp_min_(0.0)

    forced = restart = None
    if rules.stops:
        level = (1.0 - rules.trailing_stop) * ledger.high
        forced = (close < level) & (rules.trailing_stop > 0) & (ledger.book[1] > 0)
    if rules.holding_rule:
        restart = (ledger.held >= rules.max_holding_bars) & (ledger.book[1] > 0)
        if forced is not None:
            restart &= ~forced
        sell.copy_(torch.where(restart, worth * rules.max_holding_fraction, sell))
        buy.masked_fill_(restart, 0.0)
    if forced is not None:
        sell.copy_(torch.where(forced, worth, sell))
        buy.masked_fill_(forced, 0.0)

    # All buys share one factor: the money is what cash exceeds the reserve by; the proceeds of these sells aren't
    # here yet.
    money = (ledger.cash - sizes[3]).clamp_min_(0.0)
    buy *= (money / sum_assets(buy).clamp_min_(_TINY)).clamp_max_(1.0)

    # What would remain worth less than the minimum is sold along: wholes are exempt from the minimum that the rest
    # must reach. Comparisons write 0.0 and 1.0, and products take the place of `where`, which is slow on the CPU;
    # everything is finite here.
    whole = torch.gt(sell, (worth - rules.minimum).clamp_min_(0.0), out=torch.empty_like(sell))
    enough = torch.ge(flow, rules.minimum, out=torch.empty_like(flow))
    dropped = None
    if count:
        missed = (flow > SMALLEST_ORDER) & (enough == 0)
        missed[1] &= whole == 0
        dropped = missed.sum((0, 1)).double()
    flow *= enough
    sell /= torch.maximum(worth, rules.minimum)
    torch.maximum(sell, whole, out=sell)
    if rules.increment is not None:
        _round_down(flow, ledger.book[1], rules.increment)
    return Plan(flow, restart, dropped)


def _round_down(flow: Tensor, units: Tensor, increment: Tensor) -> None:
    """Partial sells down to whole increments and buys down to cents, for assets that come with an increment.

    A whole position is sold whole: a remainder of less than an increment could never be sold, and would keep the
    position open.
    """
    buy, share = flow[0], flow[1]
    rounds = increment > 0
    step = torch.where(rounds, increment, 1.0)
    quantity = torch.floor(share * units / step + _ROUNDING_NOISE) * step
    partial = rounds & (share < 1.0)
    share.copy_(torch.where(partial, (quantity / units.clamp_min(_TINY)).clamp_max_(1.0), share))
    buy.copy_(torch.where(rounds, torch.floor(buy * 100.0 + _ROUNDING_NOISE) / 100.0, buy))


def fill_(
    ledger: Ledger, orders: Plan, open_: Tensor, hole: Tensor | None, rules: Rules, *, count: bool = False
) -> Filled | None:
    """Fill the orders at the next bar's open, in place, and let the clocks of positions run on by one bar.

    open_: (N, R). hole: (N, R) bool, assets without trade in that bar (None: none): their orders stay unfilled and
    are gone. Call it once per bar, also where nothing is ordered. Uses up `orders.flow`. Returns what was filled if
    `count`.
    """
    flow = orders.flow
    buy, sell = flow[0], flow[1]
    trades = unfilled = None
    if count:
        unfilled = torch.zeros_like(ledger.cash) if hole is None else ((flow > 0) & hole).sum((0, 1)).double()
    if hole is not None:
        flow *= ~hole
    if count:
        trades = (flow > 0).sum((0, 1)).double()

    units = ledger.book[1]
    keep = torch.rsub(sell, 1.0)
    sell *= units
    sell *= open_
    spent, sold = sum_assets(flow)  # quote units; `sold` is before slippage and fee
    torch.div(buy, open_, out=sell)
    sell *= rules.buy_rate
    ledger.book.mul_(keep)
    still_open = torch.gt(units, 0.0, out=keep)
    ledger.book.add_(flow)  # paid for the units bought, and the units

    ledger.held.add_(1.0).mul_(still_open)
    if orders.restart is not None:
        ledger.held.masked_fill_(orders.restart if hole is None else orders.restart & ~hole, 0.0)
    if rules.stops:
        ledger.high.mul_(still_open)

    # Rounding could spend a last bit more than there is.
    ledger.cash.sub_(spent).clamp_min_(0.0).add_(sold * rules.sell_rate)
    if trades is None or unfilled is None:
        return None
    notional = spent + sold * rules.sell_notional
    return Filled(notional, notional * rules.fee, trades, unfilled)


def mark_(ledger: Ledger, close: Tensor, rules: Rules) -> None:
    """Note a bar's close (N, R) in the highs that trailing stops hang from."""
    if rules.stops:
        torch.maximum(ledger.high, close, out=ledger.high)


def portfolio_columns(worth: Tensor, total: Tensor, ledger: Ledger, inverse_held_scale: Tensor) -> Tensor:
    """(3, N, R) float64: weights, unrealised returns (0 where flat) and min(1, bars held / held_scale)."""
    columns = torch.empty((3, *worth.shape), dtype=worth.dtype, device=worth.device)
    basis = ledger.book[0]
    torch.div(worth, total, out=columns[0])
    gain = torch.sub(worth, basis, out=columns[1])
    gain /= basis.clamp_min(_TINY)
    torch.mul(ledger.held, inverse_held_scale, out=columns[2]).clamp_max_(1.0)
    return columns


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


class Fills(NamedTuple):
    """What one bar's orders came to: all (R,) float64."""

    notional: Tensor
    fees: Tensor
    trades: Tensor
    unfilled: Tensor


def open_portfolio(initial_cash: float | Sequence[float], assets: int) -> Portfolio:
    """Flat portfolios with that much cash, one row per number."""
    cash = torch.tensor([initial_cash] if isinstance(initial_cash, int | float) else initial_cash, dtype=torch.float64)
    return Portfolio(cash, *(torch.zeros(len(cash), assets, dtype=torch.float64) for _ in range(4)))


def value(portfolio: Portfolio, close: Tensor) -> Tensor:
    """(R,) cash plus units at `close` (R, N)."""
    worth = portfolio.units.t() * close.t()
    return sum_assets(worth) + portfolio.cash


def plan_orders(portfolio: Portfolio, close: Tensor, action: Tensor, rules: Rules) -> Orders:
    """The orders that `action` (R, N) means at `close` (R, N)."""
    ledger = _ledger(portfolio)
    close_by_asset = close.t().contiguous()
    worth = ledger.book[1] * close_by_asset
    total = sum_assets(worth) + ledger.cash
    made = plan(ledger, worth, total, close_by_asset, action.t().double().contiguous(), rules, count=True)
    buy, share = made.flow
    assert made.dropped is not None
    restart = torch.zeros_like(share, dtype=torch.bool) if made.restart is None else made.restart
    return Orders(
        sell_units=(share * ledger.book[1]).t().contiguous(),
        buy_notional=buy.t().contiguous(),
        whole=((share == 1.0) & (ledger.book[1] > 0)).t().contiguous(),
        restart_clock=restart.t().contiguous(),
        dropped=made.dropped,
    )


def fill_orders(
    portfolio: Portfolio, orders: Orders, open_: Tensor, hole: Tensor | None, rules: Rules
) -> tuple[Portfolio, Fills]:
    """The portfolio after its orders met the next bar's `open_` (R, N), and what was filled.

    hole: (R, N) bool or None. Call it once per bar, also where nothing is ordered: clocks run on.
    """
    ledger = _ledger(portfolio)
    share = orders.sell_units / portfolio.units.clamp_min(_TINY)
    flow = torch.stack([orders.buy_notional.t(), share.t()])
    made = Plan(flow, orders.restart_clock.t(), None)
    holes = None if hole is None else hole.t().contiguous()
    filled = fill_(ledger, made, open_.t().contiguous(), holes, rules, count=True)
    assert filled is not None
    return to_portfolio(ledger), Fills(*filled)


def mark(portfolio: Portfolio, close: Tensor, rules: Rules) -> Portfolio:
    """The portfolio after the close (R, N) of the bar its orders filled in (only highs change)."""
    ledger = _ledger(portfolio)
    mark_(ledger, close.t(), rules)
    return to_portfolio(ledger)


def observe_portfolio(portfolio: Portfolio, close: Tensor, held_scale: float) -> Tensor:
    """(R, 1 + 3N) float32: cash share, weights, unrealised returns, min(1, bars held / held_scale)."""
    ledger = _ledger(portfolio)
    worth = ledger.book[1] * close.t()
    total = sum_assets(worth) + ledger.cash
    columns = portfolio_columns(worth, total, ledger, torch.full_like(total, 1.0 / held_scale))
    return torch.cat([(ledger.cash / total).unsqueeze(0), columns.flatten(0, 1)]).t().float()


def _ledger(portfolio: Portfolio) -> Ledger:
    """A copy of the portfolio, asset-first."""
    book = torch.stack([(portfolio.cost * portfolio.units).t(), portfolio.units.t()])
    held, high = portfolio.held.t().contiguous(), portfolio.high.t().contiguous()
    return Ledger(portfolio.cash.clone(), book, held.clone(), high.clone())


def to_portfolio(ledger: Ledger) -> Portfolio:
    """The same portfolios row-first, in tensors of their own."""
    basis, units = ledger.book
    cost = torch.where(units > 0, basis / units.clamp_min(_TINY), 0.0)
    high = torch.where(units > 0, ledger.high, 0.0)
    return Portfolio(ledger.cash.clone(), *(tensor.t().contiguous() for tensor in (units, cost, high, ledger.held)))
