"""The order rules, for a batch of portfolios: what an action orders, how orders fill, and what it all is worth.

This one code serves the environment, the paper trader and the simulated broker (the latter two through `portfolio`).
Its tensors are asset-first, (N, R) for N assets and R rows: sums over assets and factors per row then run along
contiguous memory, several times as fast as the other way round. It works in place, in buffers and views made once,
since at the usual sizes a step's time is the number of its operations. Money, units and prices are float64.
"""

from __future__ import annotations

from collections.abc import Sequence
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
ROUNDING_NOISE = 1e-6


class Rules:
    """Order parameters as tensors, one entry per row. Rows can be set anew at any time.

    The flags (`stops`, `holding_rule`) are on where any row uses that rule. A block that is off in all rows would not
    change a bit of any result, so it is skipped.
    """

    def __init__(
        self, rows: int, instruments: Instruments, device: torch.device | str = "cpu"
    ) -> None:
        def per_row(*shape: int) -> Tensor:
            return torch.zeros(*shape, rows, dtype=torch.float64, device=device)

        def per_ticker(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64, device=device).unsqueeze(1)

        self.rows = rows
        self.assets = len(instruments.increment)
        self.sizing = per_row(
            4
        )  # shares of V: an action's buy, its sell (negative), a position's limit, the reserve
        self.fee = per_row()
        self.buy_rate = per_row()  # units per quote unit of notional, times the open
        self.sell_rate = per_row()  # quote units per unit sold, over the open
        self.sell_notional = per_row()  # the same before the fee
        self.stop_level = per_row()  # of the highest close; 0 where the rule is off
        self.max_holding_bars = per_row()  # infinite where the rule is off
        self.max_holding_fraction = per_row()
        self.stops = False
        self.holding_rule = False
        # (N, R), or (1, R) where the exchange sets none
        self._ticker_minimum = per_ticker(
            instruments.minimum_order if any(instruments.minimum_order) else (0.0,)
        )
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
        self.stop_level[at] = 1.0 - params.trailing_stop if params.trailing_stop else 0.0
        self.max_holding_bars[at] = params.max_holding_bars or torch.inf
        self.max_holding_fraction[at] = params.max_holding_fraction
        self.minimum[:, at] = self._ticker_minimum.clamp_min(
            max(params.minimum_order, SMALLEST_ORDER)
        )
        self._members[first, stop] = params
        self.stops = any(p.trailing_stop > 0 for p in self._members.values())
        self.holding_rule = any(p.max_holding_bars > 0 for p in self._members.values())


class AssetSum:
    """The sum over the assets of a fixed tensor (…, N, R), added up in an order that depends on N alone: (…, R).

    `Tensor.sum` orders its additions by a column's place in memory, so a row's last bits would depend on its slot.
    Every call sums anew what the tensor then holds, into the same result.
    """

    def __init__(self, values: Tensor) -> None:
        count = values.shape[-2]
        half = max(1, count // 2)
        sums = torch.empty_like(values.narrow(-2, 0, half))
        self.total = sums.select(-2, 0)
        self._steps: list[tuple[Tensor, Tensor | float, Tensor]] = []  # first + second -> third
        if count == 1:
            self._steps.append((values.select(-2, 0), 0.0, self.total))
            return
        self._steps.append((values.narrow(-2, 0, half), values.narrow(-2, half, half), sums))
        while half > 1:
            fold = half // 2
            into = sums.narrow(-2, 0, fold)
            self._steps.append((into, sums.narrow(-2, half - fold, fold), into))
            half -= fold
        if count % 2:
            self._steps.append((self.total, values.select(-2, count - 1), self.total))

    def __call__(self) -> Tensor:
        for first, second, into in self._steps:
            torch.add(first, second, out=into)
        return self.total


class Plan(NamedTuple):
    """What goes with the orders in a ledger's `buy` and `sell`.

    restart: (N, R) float64, 1.0 for clocks that restart if the next bar is no hole, else 0.0; None where no row has the
    holding rule. dropped: (R,) orders under the minimum, a buffer; None unless counted.
    """

    restart: Tensor | None
    dropped: Tensor | None


class Filled(NamedTuple):
    """What one bar's orders came to, (…, R) each: notional and fees in quote units, orders filled and left unfilled."""

    notional: Tensor
    fees: Tensor
    trades: Tensor
    unfilled: Tensor


class Ledger:
    """R portfolios of N assets, each with an equal-weight one beside it. In every bar: `plan`, `fill`, `mark`,
    `settle`.

    cash: (R,). units, paid: (N, R), what is held and what was paid for it, fees included. held: (N, R), bars since
    the position was opened from zero or its clock restarted; 0 where flat. high: (N, R), highest close since opening;
    meaningless where flat, and where no row has a stop. equal_units: (N, R), the units of equal weight, kept by
    others. worth, equal_worth: (N, R), what both are worth at the close last marked; `worths` (2, N, R) holds equal
    weight's first. wish: (N, R), where actions in [-1, 1] are put for `plan`; `scratch` (N, R) is free beside it.
    buy, sell: (N, R), the orders between `plan` and `fill`: notional to buy, and share of the position to sell (exactly
    1 for a whole one).
    """

    def __init__(self, rows: int, assets: int, device: torch.device | str = "cpu") -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, rows, dtype=torch.float64, device=device)

        self.cash, self.held, self.high = zeros(), zeros(assets), zeros(assets)
        # Neighbours in one block are worked on together: equal weight's units and units are valued, units and paid are
        # the book that orders change.
        self.holdings = zeros(3, assets)
        self.equal_units, self.units, self.paid = self.holdings
        self._valued, self._book = self.holdings[:2], self.holdings[1:]
        # Here, bought and buy go into the book, buy and sell are the orders, and all but bought are summed over assets.
        flows = zeros(5, assets)
        self._bought, self.buy, self.sell, self.equal_worth, self.worth = flows
        self._into_book, self._orders, self.worths = flows[:2], flows[1:3], flows[3:]
        self._sum_bought = AssetSum(self.buy)
        self._sums = AssetSum(flows[1:])
        self._spent, self._sold, *_ = self._sums.total
        self._totals, self._total = self._sums.total[2:], self._sums.total[3]

        self._sizes = zeros(4)
        self._per_action, self._limit, self._reserve = (
            self._sizes[:2].unsqueeze(1),
            self._sizes[2],
            self._sizes[3],
        )
        self._money = zeros()
        # What is observed is written last, so that until then its place serves for what a step needs on the way: the
        # fewer bytes a step touches, the more of them are still in the processor's cache.
        self._columns = zeros(1 + 3 * assets)
        self._cash_share = self._columns[0]
        columns = self._columns[1:].view(3, assets, rows)
        self._weight, self._gain, self._clock = columns
        self._enough, self._keep = columns[:2], columns[2]
        self.wish, self.scratch = self._bought, columns[0]
        self._work = self._bought
        self._restart = zeros(assets)
        self._one = torch.ones((), dtype=torch.float64, device=device)
        self._counts = zeros(3)
        self._dropped, self._trades, self._unfilled = self._counts
        self._marks = zeros(2, assets)  # 1.0 where an order is to be counted
        self._marked_sells = self._marks[1]

    def plan(self, total: Tensor, close: Tensor, rules: Rules, *, count: bool = False) -> Plan:
        """Write the orders that `wish` means into `buy` and `sell`: forced exits, then sells, then buys, then
        rounding.

        total: (R,), V. close: (N, R); `worth` must be valued at it. Uses up the wish.
        """
        buy, sell, orders, worth = self.buy, self.sell, self._orders, self.worth
        torch.mul(rules.sizing, total, out=self._sizes)
        torch.mul(self.wish, self._per_action, out=orders)
        # Room for buys takes equal weight's place beside worth until the next `mark`.
        torch.sub(self._limit, worth, out=self.equal_worth)
        torch.minimum(orders, self.worths, out=orders).clamp_min_(0.0)
        restart = self._force_exits(close, rules) if rules.stops or rules.holding_rule else None

        # All buys share one factor: the money is what cash exceeds the reserve by; the proceeds of these sells aren't
        # here yet.
        money = torch.sub(self.cash, self._reserve, out=self._money)
        buy.mul_(money.div_(self._sum_bought().clamp_min_(_TINY)).clamp_(0.0, 1.0))

        # What would remain worth less than the minimum is sold along: a whole position is exempt from the minimum.
        base = torch.maximum(worth, rules.minimum, out=self._keep)
        spare = torch.sub(base, rules.minimum, out=self._work)  # worth - minimum, but at least 0
        whole = torch.gt(sell, spare, out=spare)
        enough = torch.ge(orders, rules.minimum, out=self._enough)
        dropped = None
        if count:
            torch.gt(orders, SMALLEST_ORDER, out=self._marks).addcmul_(
                self._marks, enough, value=-1.0
            )
            self._marked_sells.addcmul_(self._marked_sells, whole, value=-1.0)
            dropped = torch.sum(self._marks, (0, 1), out=self._dropped)
        orders.mul_(enough)
        torch.maximum(sell.div_(base), whole, out=sell)
        if rules.increment is not None:
            self._round_down(rules.increment)
        return Plan(restart, dropped)

    def _force_exits(self, close: Tensor, rules: Rules) -> Tensor | None:
        """Trailing stops, then the holding rule: they override the action. Returns the clocks that restart.

        Where flat, neither applies: the high is then the last close, and the clock stands at 0.
        """
        buy, sell, worth = self.buy, self.sell, self.worth
        stopped = restart = None
        if rules.stops:
            level = torch.mul(self.high, rules.stop_level, out=self._work)
            stopped = torch.lt(close, level, out=level)
            buy.addcmul_(buy, stopped, value=-1.0)  # nothing where stopped
            torch.lerp(sell, worth, stopped, out=sell)  # all where stopped
        if rules.holding_rule:
            restart = torch.ge(self.held, rules.max_holding_bars, out=self._restart)
            if stopped is not None:
                restart.addcmul_(restart, stopped, value=-1.0)
            buy.addcmul_(buy, restart, value=-1.0)
            torch.lerp(
                sell,
                torch.mul(worth, rules.max_holding_fraction, out=self._keep),
                restart,
                out=sell,
            )
        return restart

    def _round_down(self, increment: Tensor) -> None:
        """Partial sells down to whole increments and buys down to cents, for assets that come with an increment.

        A whole position is sold whole: a remainder of less than an increment could never be sold, and would keep the
        position open.
        """
        rounds = increment > 0
        step = torch.where(rounds, increment, 1.0)
        quantity = torch.floor(self.sell * self.units / step + ROUNDING_NOISE) * step
        partial = rounds & (self.sell < 1.0)
        share = (quantity / self.units.clamp_min(_TINY)).clamp_max_(1.0)
        torch.where(partial, share, self.sell, out=self.sell)
        cents = torch.floor(self.buy * 100.0 + ROUNDING_NOISE) / 100.0
        torch.where(rounds, cents, self.buy, out=self.buy)

    def fill(
        self,
        plan: Plan,
        open_: Tensor,
        tradable: Tensor | None,
        rules: Rules,
        *,
        count: bool = False,
    ) -> None:
        """Fill the orders in `buy` and `sell` at the next bar's open, and let the clocks run on by that bar.

        open_: (N, R). tradable: (N, R) float64, 0.0 where the bar is a hole, else 1.0 (None: no holes). Orders that
        meet a hole stay unfilled and are gone. To be called once per bar, also where nothing is ordered; cash follows
        in `settle`. Uses up the orders.
        """
        buy, sell, orders, held = self.buy, self.sell, self._orders, self.held
        if tradable is not None:
            if count:
                torch.gt(orders, 0.0, out=self._marks).addcmul_(self._marks, tradable, value=-1.0)
                torch.sum(self._marks, (0, 1), out=self._unfilled)
            orders.mul_(tradable)
        if count:
            torch.sum(torch.gt(orders, 0.0, out=self._marks), (0, 1), out=self._trades)

        keep = torch.sub(self._one, sell, out=self._keep)
        sell.mul_(self.units).mul_(open_)  # quote units from here on, before slippage and fee
        torch.div(buy, open_, out=self._bought).mul_(rules.buy_rate)
        self._book.mul_(keep)
        still_open = torch.gt(self.units, 0.0, out=keep)
        self._book.add_(self._into_book)
        torch.addcmul(still_open, held, still_open, out=held)  # held + 1 where still open, else 0
        if plan.restart is not None:
            restart = plan.restart if tradable is None else plan.restart.mul_(tradable)
            held.addcmul_(held, restart, value=-1.0)
        if rules.stops:
            self.high.mul_(still_open)

    def mark(self, close: Tensor) -> None:
        """Value everything at a close (N, R)."""
        torch.mul(self._valued, close, out=self.worths)

    def raise_highs(self, close: Tensor) -> None:
        """Let the highs that trailing stops hang from follow a close (N, R)."""
        torch.maximum(self.high, close, out=self.high)

    def settle(self, rules: Rules) -> Tensor:
        """Settle the cash of what was filled; (2, R), a buffer: what equal weight and the portfolio are worth as
        marked.

        Between `mark` and this, `equal_worth` may be corrected where equal weight isn't bought yet.
        """
        self._sums()  # of orders and worths in one go
        # Rounding could spend a last bit more than there is.
        self.cash.sub_(self._spent).clamp_min_(0.0).add_(
            torch.mul(self._sold, rules.sell_rate, out=self._money)
        )
        self._total.add_(self.cash)
        return self._totals

    def record(self, out: Tensor) -> None:
        """Note the bar in out (8, R), after `settle`: quote units bought for, and sold before slippage and fee; what
        equal weight and the portfolio are worth; cash; orders dropped, filled and left unfilled, as far as counted.
        """
        out[:4] = self._sums.total
        out[4] = self.cash
        out[5:] = self._counts

    def filled(self, rules: Rules) -> Filled:
        """What the bar's orders came to, after `settle`; `fill` must have counted."""
        return filled(self._spent, self._sold, self._trades, self._unfilled, rules)

    def observe(self, total: Tensor, inverse_held_scale: Tensor) -> Tensor:
        """(1 + 3N, R) float64, a buffer: what a portfolio observes of itself.

        Cash share, weights, unrealised returns (0 where flat), and min(1, bars held / held_scale).
        """
        torch.div(self.cash, total, out=self._cash_share)
        torch.div(self.worth, total, out=self._weight)
        base = torch.clamp_min(self.paid, _TINY, out=self._clock)
        torch.sub(self.worth, self.paid, out=self._gain).div_(base)
        torch.mul(self.held, inverse_held_scale, out=self._clock).clamp_max_(1.0)
        return self._columns


def filled(spent: Tensor, sold: Tensor, trades: Tensor, unfilled: Tensor, rules: Rules) -> Filled:
    """From a record's columns, (…, R) each."""
    notional = spent + sold * rules.sell_notional
    return Filled(notional, notional * rules.fee, trades, unfilled)
