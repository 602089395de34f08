"""The order rules where positions may be short, with borrow fees and margin.

A short position has negative units. Every rule of `ledger` applies to its size as it applies to a
long position: an order towards the position's side increases it, one against it reduces it. No
order crosses zero; an asset is flat for at least one close between two sides. `docs/shorts.md` has
the formulas. In rows that allow no shorts, results are those of `Ledger`, to the bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sweepd.envs.crypto.asset_sum import AssetSum
from sweepd.envs.crypto.ledger import ROUNDING_NOISE, TINY, Ledger, Rules
from sweepd.envs.native.memory import per_row


class ShortLedger(Ledger):
    """R portfolios of N assets whose units may be negative.

    In every bar, call `plan`, `fill`, `mark`, `settle` and `charge`, in this order.

    Attributes:
        paid: (N, R); of a short position, minus the proceeds of its sale after fees.
        high: (N, R); of a short position, the lowest close since it was opened.
        buy: (N, R), orders that increase a position; of a short side, the units to sell.
        sell: (N, R), orders that reduce a position, as a fraction of it.
        short: (N, R), 1.0 where the orders are those of a short side, else 0.0.
        charges: (R,), what the venue took in the last `charge`: borrow fees, less the debt of a
            bankrupt account that it bears.
        gross: (R,), sum of the positions' sizes after the last `charge`.
        bankrupt: (R,), 1.0 where the account went bankrupt in the last `charge`, else 0.0.
    """

    RECORD_ROWS = 10

    def __init__(self, rows: int, assets: int, device: torch.device | str = "cpu") -> None:
        super().__init__(rows, assets, device)

        def zeros(*shape: int) -> Tensor:
            return per_row(*shape, rows=rows, device=device)

        self.short = zeros(assets)
        self.charges, self.gross, self.bankrupt = zeros(3)
        self._debt = zeros()  # value of the short positions at the last close
        self._part = zeros(assets)
        self._sum_part = AssetSum(self._part)
        self._sum_worth = AssetSum(self.worth)

    def plan(
        self, total: Tensor, close: Tensor, rules: Rules, *, count: bool = False
    ) -> Tensor | None:
        """See `Ledger.plan`."""
        self._take_sides(rules)
        restart = super().plan(total, close, rules, count=count)
        # A short sale is an order of units: rounded down to increments, like every sale.
        units = self.buy / close
        if rules.increment is not None:
            step = torch.where(rules.increment > 0, rules.increment, 1.0)
            steps = torch.floor(units / step + ROUNDING_NOISE) * step
            units = torch.where(rules.increment > 0, steps, units)
        torch.where(self.short > 0, units, self.buy, out=self.buy)
        return restart

    def _take_sides(self, rules: Rules) -> None:
        """Turn wishes and positions of the short side, so that rules see sizes."""
        flat_sale = (self.units == 0) & (self.wish < 0) & (rules.short_allowed > 0)
        self.short.copy_((self.units < 0) | flat_sale)
        self._sum_short_worth()
        side = 1.0 - 2.0 * self.short
        self.wish.mul_(side)
        self.worth.abs_()

    def _sum_short_worth(self) -> None:
        torch.neg(self.worth, out=self._part).clamp_min_(0.0)
        self._debt.copy_(self._sum_part())

    def _limit_buys(self, total: Tensor, rules: Rules) -> None:
        """Scale orders that increase positions.

        Long ones first, to the cash above the reserve; what short positions owe is not available.
        Then all of them, so that the positions' sizes together stay within the leverage.
        """
        self._part.copy_(self.buy.masked_fill(self.short > 0, 0.0))
        money = self.cash - self._debt - self._reserve
        factor = money.div_(self._sum_part().clamp_min_(TINY)).clamp_(0.0, 1.0)
        torch.where(self.short > 0, self.buy, self.buy * factor, out=self.buy)
        room = rules.leverage * total - self._sum_worth()
        room.mul_(total > rules.bankrupt_value)  # a bankrupt account has none
        self.buy.mul_(room.div_(self._sum_bought().clamp_min_(TINY)).clamp_(0.0, 1.0))

    def _stopped(self, close: Tensor, rules: Rules) -> Tensor:
        """See `Ledger._stopped`; a short position is stopped above its lowest close."""
        above = (close > self.high * rules.cover_level).double()
        stopped = super()._stopped(close, rules)
        return torch.where(self.units < 0, above, stopped, out=stopped)

    def _round_down(self, increment: Tensor) -> None:
        """See `Ledger._round_down`; short sales are rounded by `plan`."""
        opened, units = self.buy.clone(), self.units
        self.units = units.abs()
        super()._round_down(increment)
        self.units = units
        torch.where(self.short > 0, opened, self.buy, out=self.buy)

    def fill(
        self,
        restart: Tensor | None,
        open_: Tensor,
        tradable: Tensor | None,
        rules: Rules,
        *,
        count: bool = False,
    ) -> None:
        """See `Ledger.fill`."""
        buy, sell = self.buy, self.sell
        self._expire(tradable, count=count)
        short = self.short > 0
        keep = torch.sub(self._one, sell, out=self._keep)
        reduced = sell * self.units * open_  # negative on the short side
        proceeds = buy * open_  # of short sales, before slippage and fee
        torch.where(short, -buy, buy / open_ * rules.buy_rate, out=self._bought)
        # Units and cost of the position fall by the same fraction, then grow by the new ones.
        self._book.mul_(keep)
        still_open = torch.ne(self.units, 0.0, out=keep)
        self.units.add_(self._bought)
        self.paid.add_(torch.where(short, -(proceeds * rules.sell_rate), buy))
        # Buying back takes as many quote units as a buy that brings these units.
        torch.where(short, -reduced / rules.buy_rate, buy, out=buy)
        torch.where(short, proceeds, reduced, out=sell)
        self._advance(still_open, restart, tradable, rules)

    def raise_highs(self, close: Tensor) -> None:
        """See `Ledger.raise_highs`; of short positions, the lowest closes."""
        # `fill` sets it to 0 where the position is new.
        lowest = torch.where(self.high > 0, torch.minimum(self.high, close), close)
        highest = torch.maximum(self.high, close)
        torch.where(self.units < 0, lowest, highest, out=self.high)

    def settle(self, rules: Rules) -> Tensor:
        """See `Ledger.settle`. Cash may fall below 0 where shorts are allowed."""
        self._sums()
        cash = self.cash.sub_(self._spent)
        torch.where(rules.short_allowed > 0, cash, cash.clamp_min(0.0), out=cash)
        cash.add_(torch.mul(self._sold, rules.sell_rate, out=self._money))
        self._total.add_(cash)
        return self._totals

    def charge(self, rules: Rules, tradable: Tensor | None) -> None:
        """Charge the bar's borrow fee at the marked close, then check the margin.

        Call it after `settle`, whose result it corrects. Positions without a bar, in a hole, cannot
        be liquidated; the check repeats at every close.

        Args:
            rules: order parameters.
            tradable: as for `fill`.
        """
        self._sum_short_worth()
        borrowed = self._debt + torch.neg(self.cash).clamp_min_(0.0)
        fee = borrowed * rules.borrow_rate
        self.cash.sub_(fee)
        self._sum_worth()
        total = self._sum_worth.total + self.cash
        sizes = self._sum_worth.total + (self._debt + self._debt)
        self._liquidate((total < rules.maintenance * sizes).double(), rules, tradable)
        total = self._sum_worth() + self.cash
        # A bankrupt account has no positions, not even in a hole; the venue bears what it owes.
        bankrupt = total < rules.bankrupt_value
        self.bankrupt.copy_(bankrupt)
        self._liquidate(self.bankrupt, rules, None)
        total = self._sum_worth() + self.cash
        torch.sub(fee, torch.where(bankrupt, rules.bankrupt_value - total, 0.0), out=self.charges)
        torch.where(bankrupt, rules.bankrupt_value, self.cash, out=self.cash)
        torch.where(bankrupt, rules.bankrupt_value, total, out=self._total)
        torch.abs(self.worth, out=self._part)
        self.gross.copy_(self._sum_part())

    def _liquidate(self, call: Tensor, rules: Rules, tradable: Tensor | None) -> None:
        """Close all positions of the rows where `call` (R,) is 1.0, at the marked close."""
        closing = (self.worth != 0).double().mul_(call)
        if tradable is not None:
            closing.mul_(tradable)
        torch.mul(torch.neg(self.worth).clamp_min_(0.0), closing, out=self._part)
        spent = self._sum_part() / rules.buy_rate
        torch.mul(self.worth.clamp_min(0.0), closing, out=self._part)
        sold = self._sum_part()
        self.cash.add_(sold * rules.sell_rate).sub_(spent)
        self._spent.add_(spent)
        self._sold.add_(sold)
        self._trades.add_(closing.sum(0))
        self._close(closing)

    def _close(self, closing: Tensor) -> None:
        """Remove positions where `closing`, (N, R) or (R,), is 1.0."""
        kept = 1.0 - closing
        for state in (self._book, self.held, self.high, self.worth):
            state.mul_(kept)

    def record(self, out: Tensor) -> None:
        """See `Ledger.record`; after `charge`. Two more rows: charges, and the sizes' sum."""
        super().record(out)
        out[8], out[9] = self.charges, self.gross

    def native_state(self) -> tuple[dict[str, int], dict[str, Tensor | None]]:
        """Return the tensors of `sweepd.envs.crypto.native`."""
        sizes, tensors = super().native_state()
        return sizes, tensors | {"bankrupt": self.bankrupt}

    def observe(self, total: Tensor, inverse_held_scale: Tensor) -> Tensor:
        """See `Ledger.observe`. Weights of short positions are negative."""
        columns = super().observe(total, inverse_held_scale)
        base = self.paid.abs().clamp_min_(TINY)
        torch.sub(self.worth, self.paid, out=self._gain).div_(base)
        return columns
