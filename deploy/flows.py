"""Transfers: cash and units that came into an account, or left it, and that no fill explains.

A transfer is neither a gain nor a loss. Returns are time-weighted: a bar's return is (value - flow) / value before,
where flow is what was transferred in that bar, valued at its close. Every record that a return is computed from keeps
its flows (`lane_bars.flow`), and every limit that compares the value with an earlier one rebases that one (`rebased`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.brokers.base import AccountState, Fill

Array = NDArray[np.float64]
CENT = 0.01  # quote units; smaller differences are rounding
ROUNDING = 1e-6  # of the account's value, the same
FEES = 0.003  # of what was traded: a venue's fee may differ by so much from the bundle's, and is a cost, not a transfer


@dataclass(frozen=True)
class Flow:
    """What was transferred: cash in quote units, and units by ticker; negative where it left the account."""

    cash: float = 0.0
    units: Mapping[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.cash != 0.0 or bool(self.units)

    def __add__(self, other: Flow) -> Flow:
        tickers = dict.fromkeys((*self.units, *other.units))
        units = {ticker: self.units.get(ticker, 0.0) + other.units.get(ticker, 0.0) for ticker in tickers}
        return Flow(self.cash + other.cash, units)

    def value(self, tickers: Sequence[str], close: Array) -> float:
        """In quote units, at `close` (N,) of `tickers`."""
        prices: dict[str, float] = dict(zip(tickers, close.tolist(), strict=True))
        return self.cash + sum(amount * prices[ticker] for ticker, amount in self.units.items())

    def text(self, tickers: Sequence[str], close: Array) -> str:
        """One sentence for a log."""
        prices = dict(zip(tickers, close.tolist(), strict=True))
        parts = [f"cash {self.cash:+,.2f}"] if self.cash else []
        parts += [
            f"{amount:+,.8g} {ticker} (worth {amount * prices[ticker]:+,.2f} at the close)"
            for ticker, amount in self.units.items()
        ]
        return f"the account changed by {', '.join(parts)}, which no order explains; this counts as no gain or loss"

    def state(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"cash": self.cash, "units": dict(self.units)}

    @classmethod
    def restored(cls, state: Mapping[str, Any] | None) -> Flow:
        """The inverse of `state`; nothing for None."""
        return cls() if state is None else cls(state["cash"], dict(state["units"]))


def unexplained(
    before: AccountState, fills: Sequence[Fill], after: AccountState, tickers: Sequence[str], close: Array
) -> Flow:
    """What the account differs by from what `fills` make of it, where that is more than rounding and fees.

    before, after: the account without and with the fills. close: (N,) prices of `tickers`, in quote units.
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
    prices = dict(zip(tickers, close.tolist(), strict=True))
    value = after.cash + sum(after.units.get(ticker, 0.0) * prices[ticker] for ticker in tickers)
    least = max(CENT, ROUNDING * value)
    moved = {ticker: after.units.get(ticker, 0.0) - units[ticker] for ticker in tickers}
    kept = {
        ticker: amount
        for ticker, amount in moved.items()
        if abs(amount) * prices[ticker] > max(least, FEES * traded[ticker])
    }
    came = after.cash - cash
    return Flow(came if abs(came) > max(least, FEES * sum(traded.values())) else 0.0, kept)


def rebased(base: float, value: float, flow: float) -> float:
    """An earlier value, moved along with a transfer of `flow` in a bar that closed at `value`: value / rebased is the
    growth since then without the transfer. What the value is now where the account was empty before.
    """
    if flow == 0.0:
        return base
    before = value - flow
    return value if before <= 0.0 else base * (value / before)


def growth(value: Array, flow: Array) -> Array:
    """(n,) time-weighted growth since the first of (n,) values, 1 there; `flow` (n,) is what was transferred in each
    bar. An empty account neither gains nor loses; one that lost all stays at 0.
    """
    before = value[:-1]
    steps = np.divide(value[1:] - flow[1:], before, out=np.ones_like(before), where=before > 0.0)
    return np.concatenate([np.ones_like(value[:1]), np.cumprod(np.maximum(steps, 0.0))])
