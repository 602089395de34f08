"""The order rules for a batch of portfolios: planning, filling and valuation.

The environment uses this code directly, the paper trader and the simulated broker through
`portfolio`, so all apply the same rules. Tensors are asset-first, (N, R) for N assets and R rows:
sums over assets and factors per row then run along contiguous memory, which is several times
faster. Operations work in place in preallocated buffers, because at usual sizes the time of a step
is determined by the number of operations. Money, units and prices are float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sweepd.envs.crypto.asset_sum import AssetSum
from sweepd.envs.crypto.params import EnvParams, Instruments
from sweepd.envs.native.memory import per_row

TINY = 1e-200  # avoids 0/0 in quotients whose numerator is 0, too
# Smallest amount that any exchange knows, in quote units. An order below it is a rounding residue:
# it is neither placed nor counted. Positions below it are not kept, even without a minimum order.
SMALLEST_ORDER = 1e-8
# A quantity within this fraction below a whole number of increments (or cents) counts as whole.
ROUNDING_NOISE = 1e-6
# What an account with shorts keeps when its losses exceed its capital, in quote units: the venue
# bears the rest. Growth stays a number.
BANKRUPT_VALUE = 0.01


class Rules:
    """Order parameters as tensors with one entry per row. Rows can be changed at any time.

    The flags `stops`, `holding_rule` and `shorts` are set if any row uses that rule. Rules that are
    off in all rows are skipped, which does not change a bit of the results.
    """

    def __init__(
        self,
        rows: int,
        instruments: Instruments,
        device: torch.device | str = "cpu",
        *,
        bars_per_year: float | None = None,
    ) -> None:
        """Make rules; `bars_per_year`, of the timeframe, is needed where shorts are allowed."""

        def zeros(*shape: int) -> Tensor:
            return per_row(*shape, rows=rows, device=device)

        def per_ticker(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64, device=device).unsqueeze(1)

        # Fractions of V: an action's buy, its sell (negative), the position limit, the reserve.
        self.sizing = zeros(4)
        self.fee = zeros()
        self.buy_rate = zeros()  # units per quote unit of notional, times the open
        self.sell_rate = zeros()  # quote units per unit sold, over the open
        self.sell_notional = zeros()  # the same before the fee
        self.stop_level = zeros()  # fraction of the highest close; 0 if the rule is off
        self.max_holding_bars = zeros()  # infinity if the rule is off
        self.max_holding_fraction = zeros()
        # Of shorts: 1 if they are allowed, the stop as a multiple of the lowest close, the limits
        # as multiples of V and of the positions' sizes, the borrow fee per bar, and the value that
        # a bankrupt account keeps. Rows without shorts have values that never apply.
        self.short_allowed, self.cover_level, self.leverage = zeros(), zeros(), zeros()
        self.maintenance, self.borrow_rate, self.bankrupt_value = zeros(), zeros(), zeros()
        self._bars_per_year = bars_per_year
        self.stops = False
        self.holding_rule = False
        self.shorts = False
        # (N, R), or (1, R) if the exchange has no minimum orders.
        self._ticker_minimum = per_ticker(
            instruments.minimum_order if any(instruments.minimum_order) else (0.0,)
        )
        self.minimum = zeros(self._ticker_minimum.shape[0])
        self.increment = per_ticker(instruments.increment) if any(instruments.increment) else None
        self._members: dict[tuple[int, int], EnvParams] = {}

    @classmethod
    def of(
        cls,
        params: EnvParams,
        instruments: Instruments,
        rows: int = 1,
        *,
        bars_per_year: float | None = None,
    ) -> Rules:
        """Return the same parameters for `rows` rows, on the CPU."""
        rules = cls(rows, instruments, bars_per_year=bars_per_year)
        rules.set_rows(0, rows, params)
        return rules

    def set_rows(self, first: int, stop: int, params: EnvParams) -> None:
        """Set the parameters of rows first … stop-1. Use the same ranges in all calls."""
        at = slice(first, stop)
        scale, limit, reserve = params.action_scale, params.max_position, params.cash_reserve
        for row, value in enumerate((scale, -scale, limit, reserve)):
            self.sizing[row, at] = value
        self.fee[at] = params.fee
        # A buy at the open pays slippage on the price and the fee out of its notional; a sell
        # receives the price less slippage, less the fee.
        self.buy_rate[at] = (1.0 - params.fee) / (1.0 + params.slippage)
        self.sell_notional[at] = 1.0 - params.slippage
        self.sell_rate[at] = (1.0 - params.slippage) * (1.0 - params.fee)
        self.stop_level[at] = 1.0 - params.trailing_stop if params.trailing_stop else 0.0
        self.max_holding_bars[at] = params.max_holding_bars or torch.inf
        self.max_holding_fraction[at] = params.max_holding_fraction
        self.minimum[:, at] = self._ticker_minimum.clamp_min(
            max(params.minimum_order, SMALLEST_ORDER)
        )
        self._set_shorts(at, params)
        self._members[first, stop] = params
        # From the parameters: reading the tensors would synchronise with the device.
        self.stops = any(p.trailing_stop > 0 for p in self._members.values())
        self.holding_rule = any(p.max_holding_bars > 0 for p in self._members.values())
        self.shorts = any(p.allow_short for p in self._members.values())

    def _set_shorts(self, at: slice, params: EnvParams) -> None:
        self.cover_level[at] = 1.0 + params.trailing_stop if params.trailing_stop else torch.inf
        self.short_allowed[at] = float(params.allow_short)
        if not params.allow_short:
            self.leverage[at], self.maintenance[at], self.borrow_rate[at] = torch.inf, 0.0, 0.0
            self.bankrupt_value[at] = -torch.inf
            return
        if self._bars_per_year is None:
            raise ValueError("rules with shorts need bars_per_year")
        self.leverage[at] = params.max_leverage
        self.maintenance[at] = params.maintenance_margin
        self.borrow_rate[at] = params.borrow_fee / self._bars_per_year
        self.bankrupt_value[at] = BANKRUPT_VALUE

    def native_state(self) -> tuple[dict[str, int], dict[str, Tensor | None]]:
        """Return the sizes, flags and tensors of `sweepd.envs.crypto.native`."""
        sizes = {
            "minimums": len(self.minimum),
            "stops": int(self.stops),
            "holding_rule": int(self.holding_rule),
            "shorts": int(self.shorts),
        }
        names = (
            *("sizing", "minimum", "increment", "buy_rate", "sell_rate", "stop_level"),
            *("max_holding_bars", "max_holding_fraction"),
            *("short_allowed", "cover_level", "leverage", "maintenance", "borrow_rate"),
            "bankrupt_value",
        )
        return sizes, {name: getattr(self, name) for name in names}


class Filled(NamedTuple):
    """Result of one bar's orders, (…, R) each.

    Attributes:
        notional: in quote units.
        fees: in quote units.
        trades: number of orders filled.
        unfilled: number of orders that met a hole.
    """

    notional: Tensor
    fees: Tensor
    trades: Tensor
    unfilled: Tensor


class Ledger:
    """R portfolios of N assets, each with its equal-weight benchmark.

    In every bar, call `plan`, `fill`, `mark` and `settle`, in this order.

    Attributes:
        cash: (R,).
        units: (N, R), units held.
        paid: (N, R), cost of the units held, fees included.
        held: (N, R), bars since the position was opened or its clock restarted; 0 if flat.
        high: (N, R), highest close since the position was opened. Undefined if flat, or if no row
            has a trailing stop.
        equal_units: (N, R), units of the equal-weight benchmark, which callers maintain.
        worth: (N, R), value of the positions at the last marked close.
        equal_worth: (N, R), the same of the benchmark.
        worths: (2, N, R), `equal_worth` and `worth`.
        wish: (N, R), input of `plan`: actions in [-1, 1].
        scratch: (N, R), a free buffer that does not overlap `wish`.
        buy: (N, R), orders between `plan` and `fill`: notional to buy.
        sell: (N, R), orders between `plan` and `fill`: fraction of the position to sell, exactly 1
            for the whole position.
        dropped: (R,), orders below the minimum in the last `plan` that counted.
    """

    RECORD_ROWS = 8

    def __init__(self, rows: int, assets: int, device: torch.device | str = "cpu") -> None:
        def zeros(*shape: int) -> Tensor:
            return per_row(*shape, rows=rows, device=device)

        self.cash, self.held, self.high = zeros(), zeros(assets), zeros(assets)
        # Tensors that are processed together are adjacent in one block: both holdings are valued
        # together, and orders change units and paid together.
        self.holdings = zeros(3, assets)
        self.equal_units, self.units, self.paid = self.holdings
        self._valued, self._book = self.holdings[:2], self.holdings[1:]
        # Likewise: bought and buy are added to units and paid, buy and sell are the orders, and all
        # but bought are summed over assets.
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
        # The observation is written last, so until then its buffer serves for intermediate
        # results: a smaller working set stays in the processor's cache.
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
        self.dropped, self._trades, self._unfilled = self._counts
        self._marks = zeros(2, assets)  # 1.0 for orders to be counted
        self._marked_sells = self._marks[1]

    def plan(
        self, total: Tensor, close: Tensor, rules: Rules, *, count: bool = False
    ) -> Tensor | None:
        """Translate `wish` into the orders `buy` and `sell`.

        The order of the rules: forced exits, sells, buys, rounding. Overwrites `wish`.

        Args:
            total: (R,), V.
            close: (N, R). `worth` must be valued at it.
            rules: order parameters.
            count: whether to count orders below the minimum.

        Returns:
            (N, R) float64, a buffer: 1.0 for holding clocks that restart unless the next bar is a
            hole, else 0.0. None if no row has the holding rule.
        """
        sell, orders, worth = self.sell, self._orders, self.worth
        torch.mul(rules.sizing, total, out=self._sizes)
        # Buys and sells at once: sizing has the opposite sign for sells, and negative sizes are
        # clamped to 0 below.
        torch.mul(self.wish, self._per_action, out=orders)
        # Room for buys. It is stored in place of `equal_worth` until the next `mark`, next to
        # `worth`, so that one operation caps buys by the room and sells by the position.
        torch.sub(self._limit, worth, out=self.equal_worth)
        torch.minimum(orders, self.worths, out=orders).clamp_min_(0.0)
        restart = self._force_exits(close, rules) if rules.stops or rules.holding_rule else None

        self._limit_buys(total, rules)

        # If the rest of a position would be worth less than the minimum, sell it as well. A whole
        # position is exempt from the minimum.
        base = torch.maximum(worth, rules.minimum, out=self._keep)
        spare = torch.sub(base, rules.minimum, out=self._work)  # max(worth - minimum, 0)
        whole = torch.gt(sell, spare, out=spare)
        enough = torch.ge(orders, rules.minimum, out=self._enough)
        if count:
            torch.gt(orders, SMALLEST_ORDER, out=self._marks).addcmul_(
                self._marks, enough, value=-1.0
            )
            self._marked_sells.addcmul_(self._marked_sells, whole, value=-1.0)
            torch.sum(self._marks, (0, 1), out=self.dropped)
        orders.mul_(enough)
        # From here on, `sell` is a fraction of the position, exactly 1 for a whole one. `base` is
        # the position's worth, or the minimum if that is larger, which avoids a division by 0.
        torch.maximum(sell.div_(base), whole, out=sell)
        if rules.increment is not None:
            self._round_down(rules.increment)
        return restart

    def _limit_buys(self, total: Tensor, rules: Rules) -> None:  # noqa: ARG002
        """Scale all buys of a row by one factor: the cash above the reserve limits them.

        The proceeds of this bar's sells are not available yet.
        """
        money = torch.sub(self.cash, self._reserve, out=self._money)
        self.buy.mul_(money.div_(self._sum_bought().clamp_min_(TINY)).clamp_(0.0, 1.0))

    def _stopped(self, close: Tensor, rules: Rules) -> Tensor:
        """Return where trailing stops apply: (N, R) float64, a buffer."""
        level = torch.mul(self.high, rules.stop_level, out=self._work)
        return torch.lt(close, level, out=level)

    def _force_exits(self, close: Tensor, rules: Rules) -> Tensor | None:
        """Apply trailing stops, then the holding rule; both override the action.

        Neither applies to flat positions: their `high` is the last close and their clock is 0.

        Returns:
            (N, R), the clocks that restart, or None without the holding rule.
        """
        buy, sell, worth = self.buy, self.sell, self.worth
        stopped = restart = None
        if rules.stops:
            stopped = self._stopped(close, rules)
            buy.addcmul_(buy, stopped, value=-1.0)  # 0 if stopped
            torch.lerp(sell, worth, stopped, out=sell)  # the whole position if stopped
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
        """Round partial sells to increments and buys to cents, for assets with an increment.

        Whole positions are not rounded: a remainder below one increment could never be sold, and
        the position would stay open.
        """
        rounds = increment > 0
        step = torch.where(rounds, increment, 1.0)
        quantity = torch.floor(self.sell * self.units / step + ROUNDING_NOISE) * step
        partial = rounds & (self.sell < 1.0)
        fraction = (quantity / self.units.clamp_min(TINY)).clamp_max_(1.0)
        torch.where(partial, fraction, self.sell, out=self.sell)
        cents = torch.floor(self.buy * 100.0 + ROUNDING_NOISE) / 100.0
        torch.where(rounds, cents, self.buy, out=self.buy)

    def fill(
        self,
        restart: Tensor | None,
        open_: Tensor,
        tradable: Tensor | None,
        rules: Rules,
        *,
        count: bool = False,
    ) -> None:
        """Fill the orders at the next bar's open and advance the holding clocks by that bar.

        Call it once per bar, also without orders. `settle` then updates the cash. Overwrites the
        orders.

        Args:
            restart: the result of `plan`.
            open_: (N, R).
            tradable: (N, R) float64, 0.0 if the bar is a hole, else 1.0; None without holes. Orders
                that meet a hole expire unfilled.
            rules: order parameters.
            count: whether to count filled and unfilled orders.
        """
        buy, sell = self.buy, self.sell
        self._expire(tradable, count=count)
        # A whole sell (exactly 1) keeps exactly 0 units, so no rounding residue stays in the book.
        keep = torch.sub(self._one, sell, out=self._keep)
        # From here on, `sell` is in quote units before slippage and fee.
        sell.mul_(self.units).mul_(open_)
        torch.div(buy, open_, out=self._bought).mul_(rules.buy_rate)
        # Selling reduces units and cost in proportion: average-cost accounting.
        self._book.mul_(keep)
        # Read before the buys are added: a position that was flat starts its clock at 0.
        still_open = torch.gt(self.units, 0.0, out=keep)
        self._book.add_(self._into_book)
        self._advance(still_open, restart, tradable, rules)

    def _expire(self, tradable: Tensor | None, *, count: bool) -> None:
        """Remove orders that meet a hole."""
        orders = self._orders
        if tradable is not None:
            if count:
                torch.gt(orders, 0.0, out=self._marks).addcmul_(self._marks, tradable, value=-1.0)
                torch.sum(self._marks, (0, 1), out=self._unfilled)
            orders.mul_(tradable)
        if count:
            torch.sum(torch.gt(orders, 0.0, out=self._marks), (0, 1), out=self._trades)

    def _advance(
        self, still_open: Tensor, restart: Tensor | None, tradable: Tensor | None, rules: Rules
    ) -> None:
        """Advance clocks and highest closes, given which positions were not closed (N, R)."""
        held = self.held
        torch.addcmul(still_open, held, still_open, out=held)  # held + 1 if still open, else 0
        if restart is not None:
            # The order that restarts the clock did not fill if the bar is a hole.
            restart = restart if tradable is None else restart.mul_(tradable)
            held.addcmul_(held, restart, value=-1.0)
        if rules.stops:
            self.high.mul_(still_open)

    def mark(self, close: Tensor) -> None:
        """Value all positions at a close (N, R)."""
        torch.mul(self._valued, close, out=self.worths)

    def raise_highs(self, close: Tensor) -> None:
        """Update the highest closes, on which trailing stops depend, with a close (N, R)."""
        torch.maximum(self.high, close, out=self.high)

    def settle(self, rules: Rules) -> Tensor:
        """Settle the cash of the filled orders.

        Call it after `mark`. In between, `equal_worth` may be corrected where the benchmark is not
        bought yet.

        Returns:
            (2, R), a buffer: values of the benchmark and of the portfolio at the marked close.
        """
        self._sums()  # of orders and values at once
        # Rounding could spend a last bit more than the cash.
        self.cash.sub_(self._spent).clamp_min_(0.0).add_(
            torch.mul(self._sold, rules.sell_rate, out=self._money)
        )
        self._total.add_(self.cash)
        return self._totals

    def record(self, out: Tensor) -> None:
        """Write the bar's figures to `out` (RECORD_ROWS, R), after `settle`.

        Rows: quote units bought for; quote units sold, before slippage and fee; values of the
        benchmark and of the portfolio; cash; orders dropped, filled and unfilled, if counted.
        """
        out[:4] = self._sums.total
        out[4] = self.cash
        out[5:8] = self._counts

    def native_state(self) -> tuple[dict[str, int], dict[str, Tensor | None]]:
        """Return the tensors of `sweepd.envs.crypto.native`."""
        names = ("cash", "equal_units", "units", "paid", "held", "high", "equal_worth", "worth")
        return {}, {name: getattr(self, name) for name in names}

    def filled(self, rules: Rules) -> Filled:
        """Return the result of the bar's orders, after `settle`. `fill` must have counted."""
        return filled(self._spent, self._sold, self._trades, self._unfilled, rules)

    def observe(self, total: Tensor, inverse_held_scale: Tensor) -> Tensor:
        """Return what the policy observes of the portfolio: (1 + 3N, R) float64, a buffer.

        Cash fraction, N weights, N unrealised returns (0 if flat), and N values of
        min(1, bars held / held_scale).
        """
        torch.div(self.cash, total, out=self._cash_share)
        torch.div(self.worth, total, out=self._weight)
        # Unrealised return: worth / paid - 1. Flat positions have 0 / TINY = 0.
        base = torch.clamp_min(self.paid, TINY, out=self._clock)
        torch.sub(self.worth, self.paid, out=self._gain).div_(base)
        torch.mul(self.held, inverse_held_scale, out=self._clock).clamp_max_(1.0)
        return self._columns


def filled(spent: Tensor, sold: Tensor, trades: Tensor, unfilled: Tensor, rules: Rules) -> Filled:
    """Compute `Filled` from the columns of a record, (…, R) each."""
    notional = spent + sold * rules.sell_notional
    return Filled(notional, notional * rules.fee, trades, unfilled)
