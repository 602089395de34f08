"""The order rules: pure functions on portfolios, long and short, R rows of N assets.

In every bar: `plan` at its close; in the next bar `fill` at its open, then `mark` and, where shorts
are allowed, `charge` at its close. The environment, the paper trader and the simulated broker call
these functions, so all apply the same rules. `native/src/orders.h` computes the same in C++, to the
bit.

A short position has negative units. Every rule applies to its size as it applies to a long one: an
order towards the position's side increases it, one against it reduces it. No order crosses zero; an
asset is flat for at least one close between two sides. `docs/reference/order_rules.md` has the
formulas. Code that only shorts need is skipped without them, which does not change a bit.

Money, units and prices are float64. Figures of rows are (R, 1), so that they meet those of assets,
(R, N).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sweepd.envs.crypto.rules import SMALLEST_ORDER, Rules

TINY = 1e-200  # avoids 0/0 in quotients whose numerator is 0, too
# A quantity within this fraction below a whole number of increments (or cents) counts as whole.
ROUNDING_NOISE = 1e-6


class Portfolio(NamedTuple):
    """Portfolios of R rows.

    Attributes:
        cash: (R, 1).
        units: (R, N), negative if short.
        paid: (R, N), cost of the units held, fees included; of a short position, minus the proceeds
            of its sale after fees.
        high: (R, N), highest (short: lowest) close since the position was opened. Undefined if
            flat, or if no row has a trailing stop.
        held: (R, N), bars since the position was opened or its clock restarted; 0 if flat.
    """

    cash: Tensor
    units: Tensor
    paid: Tensor
    high: Tensor
    held: Tensor

    @property
    def cost(self) -> Tensor:
        """Average cost (short: proceeds) per unit after fees, 0 if flat: (R, N)."""
        return torch.where(self.units != 0, self.paid / self.units, 0.0)


@dataclass(frozen=True)
class Orders:
    """Orders decided at one close, at most one per asset.

    Attributes:
        sell_units: (R, N), 0 without an order: of a long position, or short.
        buy_notional: (R, N), 0 without an order.
        cover_units: (R, N), units of a short position to buy back; 0 without an order.
        whole: (R, N) bool, whether the order closes the position.
        restart_clock: (R, N) bool, the holding clock restarts unless the fill bar is a hole.
        dropped: (R,), number of orders below the minimum.
        part: (R, N), fraction of the position that a sell or a cover closes, exactly 1 for a whole
            one. None where only units are known, as at a broker.
        short: (R, N) bool, whether the asset's order is one of the short side. None without shorts,
            or where only units are known.
    """

    sell_units: Tensor
    buy_notional: Tensor
    cover_units: Tensor
    whole: Tensor
    restart_clock: Tensor
    dropped: Tensor
    part: Tensor | None = None
    short: Tensor | None = None

    @classmethod
    def none(cls, rows: int, assets: int) -> Orders:
        """Return no orders, for `rows` rows."""
        none = torch.zeros(4, rows, assets, dtype=torch.float64)
        sells, buys, covers = none[:3]
        return cls(sells, buys, covers, none[3] > 0, none[3] > 0, none[3, :, 0].clone())


class Filled(NamedTuple):
    """What was bought and sold in a bar.

    Attributes:
        spent: quote units.
        sold: quote units before slippage and fee.
        trades: number of orders filled.
        unfilled: number of orders that met a hole.
    """

    spent: Tensor
    sold: Tensor
    trades: Tensor
    unfilled: Tensor

    def notional(self, rules: Rules) -> Tensor:
        """Return the orders' notional in quote units."""
        return self.spent + self.sold * rules.sell_notional

    def fees(self, rules: Rules) -> Tensor:
        """Return the orders' fees in quote units."""
        return self.notional(rules) * rules.fee


class Charged(NamedTuple):
    """What the venue did at a close.

    Attributes:
        charges: borrow fees, less the debt of a bankrupt account that it bears; quote units.
        bankrupt: bool, whether the account went bankrupt.
    """

    charges: Tensor
    bankrupt: Tensor


class Valued(NamedTuple):
    """A portfolio's value at a close.

    Attributes:
        close: (R, N).
        worth: (R, N), value of the units, negative if short.
        total: (R, 1), with cash.
    """

    close: Tensor
    worth: Tensor
    total: Tensor


def asset_sum(values: Tensor) -> Tensor:
    """Return the sum over the assets, (…, N) to (…, 1), in an order that depends only on N.

    `Tensor.sum` chooses its order of additions by memory position, so a row's last bits would
    depend on its slot. This one adds halves pairwise.
    """
    return sum_parts(*asset_parts(values))


def asset_parts(values: Tensor) -> Sequence[Tensor]:
    """Return views of both halves of the assets and, if their number is odd, of the last one."""
    half, odd = divmod(values.shape[-1], 2)
    return torch.split_with_sizes(values, [half, half, 1] if odd else [half, half], -1)


def sum_parts(first: Tensor, second: Tensor, last: Tensor | None = None) -> Tensor:
    """Return `asset_sum` of a tensor's `asset_parts`."""
    width = first.shape[-1]
    if last is not None and not width:
        return last + 0.0
    sums = first + second
    while width > 3:  # fewer are added one by one
        fold = width // 2
        sums.narrow(-1, 0, fold).add_(sums.narrow(-1, width - fold, fold))
        width -= fold
    if width > 1:
        sums, *others = torch.split_with_sizes(sums, [1] * sums.shape[-1], -1)[:width]
        for other in reversed(others):
            sums.add_(other)
    return sums if last is None else sums.add_(last)


def _pair_sum(first: Tensor, second: Tensor, rules: Rules) -> tuple[Tensor, Tensor]:
    """Return `asset_sum` of two tensors (R, N), computed at once."""
    # Unlike `torch.stack`, `where` keeps the layout that they have.
    one, two = asset_sum(torch.where(rules.first, first, second)).unbind()
    return one, two


def value(portfolio: Portfolio, close: Tensor) -> Valued:
    """Value portfolios at `close` (R, N)."""
    worth = portfolio.units * close
    return Valued(close, worth, asset_sum(worth) + portfolio.cash)


def plan(
    portfolio: Portfolio, valued: Valued, action: Tensor, rules: Rules, *, count: bool = True
) -> Orders:
    """Translate `action` (R, N) in [-1, 1] at a close into orders.

    The order of the rules: forced exits, sells, buys, rounding.

    Args:
        portfolio: at the close.
        valued: its value.
        action: of the policy.
        rules: order parameters.
        count: whether to count orders below the minimum, and to say which orders are `whole` and
            what is covered. Otherwise the orders have none of these; `fill` doesn't need them.
    """
    units, size, total = portfolio.units, valued.worth, valued.total
    short = _short_side(units, action, rules)
    if short is not None:
        action, size = torch.where(short, -action, action), size.abs()
    # What increases a position and what reduces it, in quote units, and what limits both. As pairs
    # they take half the operations. These are in place from here on, on tensors of this function.
    most = torch.addcmul(rules.limits * total, size, rules.sides)
    orders = torch.minimum(action * (rules.per_action * total), most).clamp_min_(0.0)
    more, less = orders.unbind()
    restart = _force_exits(portfolio, valued.close, more, less, size, rules)
    # The cash above the reserve limits buys, by one factor per row. The proceeds of this bar's sells
    # are not available yet.
    cash, reserve = portfolio.cash, rules.reserve * total
    if short is None:
        more.mul_(_share(cash - reserve, more))
    else:
        debt, gross = _debt_and_sum(valued.worth, size, rules)
        _limit_sides(more, short, cash - debt - reserve, total, gross, rules)

    # If the rest of a position would be worth less than the minimum, it is sold as well. A whole
    # position is exempt from the minimum. `base` avoids a division by 0. Masks are float64: with
    # bool, the products below are several times slower.
    base = torch.maximum(size, rules.minimum)
    spare = base - rules.minimum
    whole = torch.gt(less, spare, out=spare)
    enough = torch.ge(orders, rules.minimum, out=most)
    dropped = rules.none_dropped
    if count:
        small = (more > SMALLEST_ORDER) & (more < rules.minimum)
        small |= (less > SMALLEST_ORDER) & (less < rules.minimum) & (whole == 0)
        dropped = _count(small).squeeze(1)
    orders.mul_(enough)
    part = torch.maximum(less.div_(base), whole, out=whole)
    if rules.increment is not None:
        part = _round_part(part, units, rules.increment)
    closed, buys = torch.mul(part, units, out=less), _buys(more, rules.increment)
    sells, covers = closed, rules.nothing
    if short is not None:
        # A short sale is an order of units: rounded down to increments, like every sale.
        sells = torch.where(short, _rounded(more / valued.close, rules.increment), closed)
        buys = buys.masked_fill(short, 0.0)
        covers = torch.where(short, -closed, rules.nothing) if count else covers
    return Orders(
        sell_units=sells,
        buy_notional=buys,
        cover_units=covers,
        whole=part == 1.0 if count else rules.never,
        restart_clock=restart,
        dropped=dropped,
        part=part,
        short=short,
    )


def _short_side(units: Tensor, action: Tensor, rules: Rules) -> Tensor | None:
    """Return where an order is one of the short side; None if no row allows shorts."""
    if not rules.shorts:
        return None
    return torch.where(units == 0, action < rules.sale_below, units < 0)


def _force_exits(
    portfolio: Portfolio, close: Tensor, more: Tensor, less: Tensor, size: Tensor, rules: Rules
) -> Tensor:
    """Apply the holding rule and, before it, trailing stops; both override the action, in place.

    Neither applies to flat positions: their `high` is the last close or 0, and their clock is 0.

    Returns:
        Which clocks restart.
    """
    restart = rules.never
    if rules.holding_rule:
        restart = portfolio.held >= rules.max_holding_bars
        more.mul_(~restart)
        torch.where(restart, size * rules.max_holding_fraction, less, out=less)
    if rules.stops:
        stopped = close < portfolio.high * rules.stop_level
        if rules.shorts:
            above = close > portfolio.high * rules.cover_level
            stopped = torch.where(portfolio.units < 0, above, stopped)
        if rules.holding_rule:
            restart = restart & ~stopped
        more.mul_(~stopped)
        torch.where(stopped, size, less, out=less)
    return restart


def _limit_sides(
    more: Tensor, short: Tensor, money: Tensor, total: Tensor, gross: Tensor, rules: Rules
) -> None:
    """Scale orders that increase positions, in place, where some are short.

    Long ones first, to the `money` above the reserve that no short position owes. Then all of them,
    so that the positions' sizes together, now `gross`, stay within the leverage.
    """
    share = _share(money, more.masked_fill(short, 0.0))
    torch.where(short, more, more * share, out=more)
    # A bankrupt account has no room.
    room = (rules.leverage * total - gross) * (total > rules.bankrupt_value)
    more.mul_(_share(room, more))


def _share(available: Tensor, wanted: Tensor) -> Tensor:
    """Return the fraction of all that is wanted (R, N) that is available (R, 1)."""
    return (available / asset_sum(wanted).clamp_min_(TINY)).clamp_(0.0, 1.0)


def _debt_and_sum(worth: Tensor, values: Tensor, rules: Rules) -> tuple[Tensor, Tensor]:
    """Return the value of the short positions, without sign, and the sum of `values`: (R, 1)."""
    return _pair_sum((-worth).clamp_min_(0.0), values, rules)


def _round_part(part: Tensor, units: Tensor, increment: Tensor) -> Tensor:
    """Round partial sells and covers down to increments, for assets with one.

    Whole positions are not rounded: a remainder below one increment could never be sold, and the
    position would stay open.
    """
    held = units.abs()
    fraction = (_rounded(part * held, increment) / held.clamp_min(TINY)).clamp_max(1.0)
    return torch.where((increment > 0) & (part < 1.0), fraction, part)


def _rounded(units: Tensor, increment: Tensor | None) -> Tensor:
    """Round units down to increments, for assets with one."""
    if increment is None:
        return units
    step = torch.where(increment > 0, increment, 1.0)
    steps = torch.floor(units / step + ROUNDING_NOISE) * step
    return torch.where(increment > 0, steps, units)


def _buys(notional: Tensor, increment: Tensor | None) -> Tensor:
    """Round notionals down to cents, for assets with an increment."""
    if increment is None:
        return notional
    cents = torch.floor(notional * 100.0 + ROUNDING_NOISE) / 100.0
    return torch.where(increment > 0, cents, notional)


def fill(
    portfolio: Portfolio,
    orders: Orders,
    open_: Tensor,
    hole: Tensor | None,
    rules: Rules,
    *,
    count: bool = True,
) -> tuple[Portfolio, Filled]:
    """Fill orders at the next bar's open, and advance the holding clocks by that bar.

    Call it once per bar, also without orders.

    Args:
        portfolio: before the bar.
        orders: decided at the previous close. Those that meet a hole expire unfilled.
        open_: (R, N).
        hole: (R, N) bool, or None without holes.
        rules: order parameters.
        count: whether to count filled and unfilled orders.

    Returns:
        The portfolio after the bar's open, and what was filled.
    """
    cash, units, paid, high, held = portfolio
    part, short = orders.part, orders.short
    if part is None:
        part, short = _placed(orders, units, rules)
    buys, opened, restart = orders.buy_notional, orders.sell_units, orders.restart_clock
    trades = unfilled = rules.none
    if count:
        ordered = (buys > 0) | (opened > 0) | (orders.cover_units > 0)
        trades = _count(ordered if hole is None else ordered & ~hole)
        unfilled = unfilled if hole is None else _count(ordered & hole)
    if hole is not None:
        restart = restart & ~hole
        met = (~hole).double()
        part, buys, opened = part * met, buys * met, opened * met

    # Of planned orders without shorts, that many units are sold.
    reduced = opened if short is None and orders.part is not None else part * units
    spent, sold = buys, reduced * open_
    if short is not None:
        proceeds = opened * open_
        # Buying back takes as many quote units as a buy that brings these units.
        spent = torch.where(short, -sold / rules.buy_rate, spent)
        sold = torch.where(short, proceeds, sold)
    spent, sold = _pair_sum(spent, sold, rules)
    bought, cost = (buys / open_).mul_(rules.buy_rate), buys
    if short is not None:
        bought = torch.where(short, -opened, bought)
        cost = torch.where(short, -(proceeds * rules.sell_rate), cost)
    # A whole order (exactly 1) keeps exactly 0 units, so no rounding residue stays in the book.
    kept = torch.rsub(part, 1.0)
    left = units * kept
    # Units and cost fall by the same fraction: average-cost accounting.
    paid = (paid * kept).add_(cost)
    # A position that was flat starts its clock at 0.
    still_open = torch.ne(left, 0.0, out=kept)
    held = torch.addcmul(still_open, held, still_open)
    if rules.holding_rule:
        held.mul_(~restart)
    high = high * still_open if rules.stops else high
    units = left.add_(bought)
    # Rounding could spend a last bit more than the cash. With shorts, cash may fall below 0.
    cash = torch.maximum(cash - spent, rules.least_cash)
    cash.add_(sold * rules.sell_rate)
    return Portfolio(cash, units, paid, high, held), Filled(spent, sold, trades, unfilled)


def _placed(orders: Orders, units: Tensor, rules: Rules) -> tuple[Tensor, Tensor | None]:
    """Return `part` and `short` of orders in units."""
    sold_short = (orders.sell_units > 0) & (units <= 0)
    reduced = torch.where(sold_short, 0.0, orders.sell_units + orders.cover_units)
    # The quotient is exactly 1 for a whole position.
    part = torch.where(reduced > 0, reduced / units.abs(), 0.0)
    return part, sold_short | (orders.cover_units > 0) if rules.shorts else None


def _count(marks: Tensor) -> Tensor:
    return marks.sum(1, keepdim=True, dtype=torch.float64)


def mark(portfolio: Portfolio, close: Tensor, rules: Rules) -> Portfolio:
    """Update the highest closes with the bar's close (R, N), if a trailing stop is on."""
    if not rules.stops:
        return portfolio
    high = torch.maximum(portfolio.high, close)
    if rules.shorts:
        # `fill` sets it to 0 where the position is new.
        lowest = torch.where(portfolio.high > 0, torch.minimum(portfolio.high, close), close)
        high = torch.where(portfolio.units < 0, lowest, high)
    return portfolio._replace(high=high)


def charge(
    portfolio: Portfolio, filled: Filled, close: Tensor, hole: Tensor | None, rules: Rules
) -> tuple[Portfolio, Filled, Charged]:
    """Charge the bar's borrow fee at the close, and liquidate where the margin is too small.

    Call it once per bar, after `mark`, where shorts are allowed. Positions without a bar, in a
    hole, cannot be liquidated; the check repeats at every close.

    Args:
        portfolio: at the bar's close.
        filled: what the bar's orders did.
        close: (R, N).
        hole: (R, N) bool, or None without holes.
        rules: order parameters.

    Returns:
        The portfolio after that, `filled` with what was liquidated, and what the venue did.
    """
    worth = portfolio.units * close
    debt, sum_worth = _debt_and_sum(worth, worth, rules)
    fee = (debt + (-portfolio.cash).clamp_min_(0.0)) * rules.borrow_rate
    cash = portfolio.cash - fee
    call = sum_worth + cash < rules.maintenance * (sum_worth + (debt + debt))
    closing = call if hole is None else call & ~hole
    portfolio = portfolio._replace(cash=cash)
    portfolio, filled, valued = _liquidate(
        portfolio, filled, Valued(close, worth, sum_worth), closing, rules
    )
    # A bankrupt account has no positions, not even in a hole; the venue bears what it owes.
    bankrupt = valued.total < rules.bankrupt_value
    portfolio, filled, valued = _liquidate(portfolio, filled, valued, bankrupt, rules)
    missing = (rules.bankrupt_value - valued.total).masked_fill_(~bankrupt, 0.0)
    cash = torch.where(bankrupt, rules.bankrupt_value, portfolio.cash)
    return portfolio._replace(cash=cash), filled, Charged(fee - missing, bankrupt)


def _liquidate(
    portfolio: Portfolio, filled: Filled, valued: Valued, closing: Tensor, rules: Rules
) -> tuple[Portfolio, Filled, Valued]:
    """Close positions at the close where `closing`, (R, N) or (R, 1) bool.

    Returns:
        The portfolio after that and what was filled, and the portfolio's value.
    """
    closing = closing & (valued.worth != 0)
    kept = ~closing
    # What short positions owe, and what long ones are worth.
    flows = (valued.worth * rules.sides).clamp_min_(0.0).masked_fill_(kept, 0.0)
    owed, sold = asset_sum(flows).unbind()
    spent = owed / rules.buy_rate
    cash = portfolio.cash + sold * rules.sell_rate - spent
    positions = [*portfolio[1:], valued.worth]
    *left, worth = torch._foreach_mul(positions, [kept.double()] * len(positions))
    filled = filled._replace(
        spent=filled.spent + spent, sold=filled.sold + sold, trades=filled.trades + _count(closing)
    )
    return Portfolio(cash, *left), filled, Valued(valued.close, worth, asset_sum(worth) + cash)


def observe(
    portfolio: Portfolio, valued: Valued, inverse_held_scale: Tensor | float, *, shorts: bool = True
) -> Tensor:
    """Return what the policy observes of a portfolio: (R, 1 + 3N) float64.

    Cash fraction, N weights (negative if short), N unrealised returns (0 if flat), and N values of
    min(1, bars held / held_scale). `shorts` is false if no position can be short.
    """
    _, worth, total = valued
    paid = portfolio.paid
    # Flat positions have 0 / TINY = 0.
    base = paid.abs().clamp_min_(TINY) if shorts else paid.clamp_min(TINY)
    gain = (worth - paid).div_(base)
    clock = (portfolio.held * inverse_held_scale).clamp_max_(1.0)
    return torch.cat([portfolio.cash / total, worth / total, gain, clock], dim=1)
