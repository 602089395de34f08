"""Transfers: cash and units that enter or leave an account without a fill.

A transfer is neither a gain nor a loss. Returns are time-weighted: a bar's return is
(value - flow) / value before, where flow is the value of the bar's transfers at its close. Every
record from which returns are computed stores its flows (`AccountBar.flow`), and every limit that
compares the value with an earlier one adjusts the latter (`rebased`).

Fees can leave the account in the same way: a venue may post them later, or charge more than the
bundle assumes. They are losses, which a drawdown stop must see. So what leaves the account counts
as a cost up to an allowance that follows from recent trading (`CostAllowance`), and only the excess
is a transfer. What enters the account is a transfer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweepd.deploy.trading.brokers.base import AccountState, Fill

Array = NDArray[np.float64]
CENT = 0.01  # quote units; smaller differences are rounding
ROUNDING = 1e-6  # of the account's value; smaller differences are rounding
FEE_MARGIN = 0.005  # of the notional: unexpected fees; twice Alpaca's highest fee for crypto
HOUR = 3600
ALLOWANCE_HOURS = 48  # fees are posted within a day; the rest is a margin for late ones


@dataclass(frozen=True)
class Flow:
    """A transfer; negative amounts left the account.

    cash: quote units. units: by ticker.
    cost: quote units that also left the account without a fill, and count as a cost of trading.
    """

    cash: float = 0.0
    units: Mapping[str, float] = field(default_factory=dict)
    cost: float = 0.0

    def __bool__(self) -> bool:
        """Return whether there was a transfer."""
        return self.cash != 0.0 or bool(self.units)

    def __add__(self, other: Flow) -> Flow:
        tickers = dict.fromkeys((*self.units, *other.units))
        units = {
            ticker: self.units.get(ticker, 0.0) + other.units.get(ticker, 0.0) for ticker in tickers
        }
        return Flow(self.cash + other.cash, units, self.cost + other.cost)

    def value(self, tickers: Sequence[str], close: Array) -> float:
        """Return the transfer's value at `close` (N,) of `tickers`, quote units, without `cost`."""
        prices: dict[str, float] = dict(zip(tickers, close.tolist(), strict=True))
        return self.cash + sum(amount * prices[ticker] for ticker, amount in self.units.items())

    def text(self, tickers: Sequence[str], close: Array) -> str:
        """Return a sentence about transfer and cost."""
        cost = (
            f"{self.cost:,.2f} left the account without an order; this counts as a cost of trading"
        )
        if not self:
            return cost
        prices = dict(zip(tickers, close.tolist(), strict=True))
        parts = [f"cash {self.cash:+,.2f}"] if self.cash else []
        parts += [
            f"{amount:+,.8g} {ticker} (worth {amount * prices[ticker]:+,.2f} at the close)"
            for ticker, amount in self.units.items()
        ]
        moved = (
            f"the account changed by {', '.join(parts)} without an order; this counts as no gain "
            "or loss"
        )
        return f"{moved}. Another {cost}" if self.cost else moved

    def state(self) -> dict[str, Any]:
        """Return the flow for JSON."""
        return {"cash": self.cash, "units": dict(self.units), "cost": self.cost}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Flow:
        """Invert `state`."""
        return cls(state["cash"], dict(state["units"]), state["cost"])


class CostAllowance:
    """How much may leave an account without a fill and still count as a cost of trading.

    This is FEE_MARGIN of the notional of the last ALLOWANCE_HOURS, minus what was counted already.

    Args:
        left: pairs of an hour since the epoch and its trades' remaining allowance, quote units.
    """

    def __init__(self, left: Iterable[tuple[int, float]] = ()) -> None:
        self._left = {int(hour): float(amount) for hour, amount in left}

    def earn(self, time: int, notional: float) -> None:
        """Add `notional` (quote units) traded in the bar that opened at `time` (seconds)."""
        if notional > 0.0:
            self._left[time // HOUR] = self._left.get(time // HOUR, 0.0) + FEE_MARGIN * notional

    def spend(self, time: int, amount: float) -> float:
        """Return the part of `amount` that is a cost at `time`; the oldest is spent first."""
        self._left = {
            hour: left for hour, left in self._left.items() if hour > time // HOUR - ALLOWANCE_HOURS
        }
        rest = amount
        # The oldest allowance expires first.
        for hour in sorted(self._left):
            used = min(rest, self._left[hour])
            self._left[hour] -= used
            rest -= used
        return amount - rest

    def state(self) -> list[tuple[int, float]]:
        """Return `left` for JSON."""
        return [(hour, left) for hour, left in sorted(self._left.items()) if left > 0.0]


def unexplained(
    before: AccountState,
    fills: Sequence[Fill],
    after: AccountState,
    tickers: Sequence[str],
    close: Array,
) -> Flow:
    """Return the difference between the account and the effect of `fills`, without rounding errors.

    An excess of up to FEE_MARGIN of what these fills traded is also left out: the fee was lower, or
    is posted later.

    Args:
        before: the account without the fills.
        after: the account with the fills.
        fills: results of orders.
        tickers: all assets.
        close: (N,) prices of `tickers`, quote units.
    """
    cash, units = before.cash, {ticker: before.units.get(ticker, 0.0) for ticker in tickers}
    traded = dict.fromkeys(tickers, 0.0)
    for fill in fills:
        if fill.status != "filled":
            continue
        ticker, sold = fill.order.ticker, fill.order.side == "sell"
        cash += fill.notional - fill.fee if sold else -fill.notional
        units[ticker] += -fill.units if sold else fill.units
        traded[ticker] += fill.notional
    prices: dict[str, float] = dict(zip(tickers, close.tolist(), strict=True))
    value = after.cash + sum(after.units.get(ticker, 0.0) * prices[ticker] for ticker in tickers)
    # Venues round amounts: smaller differences than these are not transfers.
    least = max(CENT, ROUNDING * value)

    # Asymmetric: all losses count (they may be costs), gains only beyond a possible lower fee.
    def counts(worth: float, notional: float) -> bool:
        return worth < -least or worth > max(least, FEE_MARGIN * notional)

    moved = {ticker: after.units.get(ticker, 0.0) - units[ticker] for ticker in tickers}
    kept = {
        ticker: amount
        for ticker, amount in moved.items()
        if counts(amount * prices[ticker], traded[ticker])
    }
    came = after.cash - cash
    return Flow(came if counts(came, sum(traded.values())) else 0.0, kept)


def less_costs(
    flow: Flow, allowance: CostAllowance, time: int, tickers: Sequence[str], close: Array
) -> Flow:
    """Return `flow` without the part that counts as a cost; that is spent and stored in `cost`.

    Only a net loss of value is a cost: units bought by hand are paid for. Everything that left the
    account is reduced in the same proportion.

    Args:
        flow: a difference that no fill explains.
        allowance: what may count as a cost.
        time: open of the bar.
        tickers: all assets.
        close: (N,) of the bar.
    """
    cost = allowance.spend(time, max(0.0, -flow.value(tickers, close)))
    if cost == 0.0:
        return flow
    went = Flow(
        min(0.0, flow.cash), {ticker: min(0.0, amount) for ticker, amount in flow.units.items()}
    )
    # `went` has a negative value, so `kept` is the fraction that remains a transfer.
    kept = 1.0 + cost / went.value(tickers, close)
    parts = {
        ticker: amount * kept if amount < 0.0 else amount for ticker, amount in flow.units.items()
    }
    cash = flow.cash * kept if flow.cash < 0.0 else flow.cash
    return Flow(cash, {ticker: amount for ticker, amount in parts.items() if amount}, cost)


def rebased(base: float, value: float, flow: float) -> float:
    """Return an earlier value `base`, adjusted for a transfer in a bar that closed at `value`.

    `value` divided by the result is the growth since then without the transfer. For an account that
    was empty before the transfer, the result is `value`.
    """
    if flow == 0.0:
        return base
    # The transfer is assumed at the close, so the bar's gain was earned without it.
    before = value - flow
    return value if before <= 0.0 else base * (value / before)


def growth(value: Array, flow: Array) -> Array:
    """Return the time-weighted growth, (n,), which starts at 1.

    An empty account neither gains nor loses; an account that lost everything stays at 0.

    Args:
        value: (n,).
        flow: (n,), transfers of each bar.
    """
    before = value[:-1]
    # r_t = (V_t - F_t) / V_{t-1} - 1: time-weighted, so the amount of a transfer does not matter.
    steps = np.divide(value[1:] - flow[1:], before, out=np.ones_like(before), where=before > 0.0)
    return np.concatenate([np.ones_like(value[:1]), np.cumprod(np.maximum(steps, 0.0))])
