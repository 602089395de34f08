"""Books: what the trader knows about its positions beyond the broker, and its benchmark.

Cash and units come from the broker. Cost basis, highest close and holding time follow from the
reported fills, by the rules of `sweepd.envs.crypto.portfolio`. Units of a short position are
negative, and so is its basis: the proceeds of its sale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sweepd.deploy.trading.brokers.base import LIQUIDATED, AccountState, Fill
from sweepd.envs.crypto.portfolio import Portfolio

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
ROUNDING = 1e-9  # of a position, relative
POSITION = ("units", "basis", "held", "high")


class AfterFills(NamedTuple):
    """A book after fills; arrays are (N,).

    cash: quote units. left: rest of the units held before. units: all units. paid: basis of the
    others, negative for short sales.
    """

    cash: float
    left: Array
    units: Array
    paid: Array


class Book:
    """The positions of one trial. Arrays are (N,), in the order of `tickers`.

    units: held.
    basis: quote units paid for them, including fees.
    held: bars since the fill bar, or since the holding rule's clock restarted.
    high: highest close since the position was opened; of a short position, the lowest.
    """

    def __init__(self, tickers: Sequence[str], account: AccountState) -> None:
        count = len(tickers)
        self.tickers = tuple(tickers)
        self.cash = account.cash
        self.units = account.units_of(tickers)
        self.basis = np.zeros(count)
        self.held = np.zeros(count)
        self.high = np.zeros(count)

    @classmethod
    def restored(cls, tickers: Sequence[str], state: Mapping[str, Any]) -> Book:
        """Return the book of which `state` was taken."""
        book = cls(tickers, AccountState(state["cash"], {}))
        for name in POSITION:
            setattr(book, name, np.array(state[name], dtype=np.float64))
        return book

    def state(self) -> dict[str, Any]:
        """Return what `restored` needs, for JSON."""
        return {"cash": float(self.cash)} | {
            name: getattr(self, name).tolist() for name in POSITION
        }

    def adopt(self, close: Array) -> None:
        """Treat positions that the account already holds as bought now, at `close`."""
        self.basis = self.units * close
        self.high = np.where(self.units != 0.0, close, 0.0)

    def after(self, fills: Sequence[Fill]) -> AfterFills:
        """Return what the book holds after `fills`."""
        cash, left = self.cash, self.units.copy()
        new, paid = np.zeros_like(left), np.zeros_like(left)
        for fill in fills:
            if fill.status != "filled":
                continue
            asset = self.tickers.index(fill.order.ticker)
            sells = fill.order.side == "sell"
            received = fill.notional - fill.fee if sells else -fill.notional
            cash += received
            sign = -1.0 if sells else 1.0
            if fill.reason == LIQUIDATED:
                left[asset] = new[asset] = paid[asset] = 0.0
            elif sign * left[asset] < 0.0 or (sells and self.units[asset] > 0.0):
                # The fill reduces the position. No order crosses zero.
                size = abs(left[asset])
                rest = max(0.0, size - fill.units)
                gone = fill.order.whole and rest <= ROUNDING * size
                left[asset] = 0.0 if gone else -sign * rest
            else:
                new[asset] += sign * fill.units
                paid[asset] -= received
        return AfterFills(cash, left, left + new, paid)

    def settle(
        self, fills: Sequence[Fill], account: AccountState, restart: Mask, hole: Mask, close: Array
    ) -> None:
        """Book the fills of a bar, and advance the clocks by one bar.

        Units that no fill explains count as bought at the close. For units that disappeared without
        a fill, their cost is removed.

        Args:
            fills: results of the orders.
            account: the broker's, after those fills.
            restart: clocks that the holding rule restarts unless the bar is a hole.
            hole: (N,) of the bar.
            close: (N,) of the bar.
        """
        _, left, expected, paid = self.after(fills)
        units = account.units_of(self.tickers)
        # A position that was sold completely and bought again in one bar is a new one.
        still_open = (left != 0.0) & (units != 0.0)
        self.held = np.where(still_open, self.held + 1.0, 0.0)
        self.held[restart & ~hole] = 0.0
        self.high[~still_open] = 0.0
        # Average cost: a partial sale removes the same fraction of the cost.
        self.basis *= np.divide(left, self.units, out=np.zeros_like(left), where=self.units != 0.0)
        self.basis += paid
        # Units that disappeared without a fill lose their cost; extra ones cost the close.
        kept = np.where(units * expected > 0.0, np.minimum(np.abs(units), np.abs(expected)), 0.0)
        self.basis *= np.divide(
            kept, np.abs(expected), out=np.ones_like(left), where=expected != 0.0
        )
        self.basis += np.sign(units) * (np.abs(units) - kept) * close
        # A position of unknown cost counts as bought now; its return would be infinite otherwise.
        self.basis = np.where(
            units != 0.0, np.where(self.basis * units > 0.0, self.basis, units * close), 0.0
        )
        self.cash, self.units = account.cash, units

    def mark(self, close: Array) -> None:
        """Update the highest closes of open positions, and the lowest ones of short positions."""
        lowest = np.where(self.high > 0.0, np.minimum(self.high, close), close)
        short = np.where(self.units < 0.0, lowest, 0.0)
        self.high = np.where(self.units > 0.0, np.maximum(self.high, close), short)

    def adjust(self, factors: Array) -> None:
        """Follow a change of units: earlier prices were multiplied by `factors`, (N,).

        `basis` is money, which stays.
        """
        self.units, self.high = self.units / factors, self.high * factors

    def value(self, close: Array) -> float:
        """Return cash and positions at `close`, in quote units."""
        return self.cash + float(np.sum(self.units * close))

    def portfolio(self) -> Portfolio:
        """Return the book as one row of the order rules' input."""
        held = np.where(self.units != 0.0, self.units, 1.0)
        # By way of the cost per unit: stored decisions have this rounding. `held` avoids a division
        # by zero.
        paid = np.where(self.units != 0.0, self.basis / held, 0.0) * self.units
        columns = (
            torch.from_numpy(np.array(column, dtype=np.float64)).unsqueeze(0)
            for column in (self.units, paid, self.high, self.held)
        )
        return Portfolio(torch.tensor([[self.cash]], dtype=torch.float64), *columns)


class EqualWeight:
    """The benchmark: the same assets bought once in equal parts and held.

    They are bought like any order at the first open after the start (at an asset's first bar that
    is not a hole), with the same fee and slippage.
    """

    def __init__(self, value: float, assets: int, *, fee: float, slippage: float) -> None:
        self._part = value / assets
        # The fee is taken from the units received, slippage raises their price.
        self._rate = (1.0 - fee) / (1.0 + slippage)
        self._units = np.zeros(assets)
        self._waiting = np.ones(assets, dtype=bool)

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> EqualWeight:
        """Return the benchmark of which `state` was taken."""
        benchmark = cls(0.0, len(state["units"]), fee=0.0, slippage=0.0)
        benchmark._part, benchmark._rate = state["part"], state["rate"]
        benchmark._units, benchmark._waiting = np.array(state["units"]), np.array(state["waiting"])
        return benchmark

    def state(self) -> dict[str, Any]:
        """Return what `restored` needs, for JSON."""
        units, waiting = self._units.tolist(), self._waiting.tolist()
        return {
            "part": float(self._part),
            "rate": float(self._rate),
            "units": units,
            "waiting": waiting,
        }

    def reordered(self, order: Sequence[int]) -> EqualWeight:
        """Return the benchmark with reordered assets; `order` (N,) has their present places."""
        state = self.state()
        return EqualWeight.restored(
            state | {name: [state[name][place] for place in order] for name in ("units", "waiting")}
        )

    def adjust(self, factors: Array) -> None:
        """Follow a change of units: earlier prices were multiplied by `factors`, (N,)."""
        self._units = self._units / factors

    def next_bar(self, open_: Array, hole: Mask) -> None:
        """Buy what is not bought yet."""
        # An asset whose first bars are holes keeps its part in cash until it has a price.
        now = self._waiting & ~hole
        self._units[now] = self._part * self._rate / open_[now]
        self._waiting &= ~now

    def value(self, close: Array) -> float:
        """Return the value in quote units."""
        return float(np.sum(np.where(self._waiting, self._part, self._units * close)))
