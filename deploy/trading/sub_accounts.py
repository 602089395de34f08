"""The books of a bundle's trials, which together are the broker's account.

The broker has one account and fills net orders. Each trial keeps its own book, which receives its
part of every fill and of what was crossed between trials at a close. A single trial's book is the
account.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sweepd.deploy.trading.book import Book
from sweepd.deploy.trading.brokers.base import LIQUIDATED, AccountState, Fill
from sweepd.deploy.trading.flows import CostAllowance, Flow, less_costs, unexplained
from sweepd.envs.crypto.portfolio import Orders, Portfolio

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


class SubAccounts:
    """One book per trial.

    Args:
        tickers: all assets.
        shares: of the capital, one per trial.
        account: the broker's account, which is split by the shares.

    Attributes:
        held: (N,) units of the account as the broker reported them; no order may sell more of a
            long position.
        flow: transfers since `take_flow`.
        correction: largest relative difference so far between the account and the sum of its books,
            without transfers.
    """

    def __init__(
        self, tickers: Sequence[str], shares: Sequence[float], account: AccountState
    ) -> None:
        self._tickers = tuple(tickers)
        self._shares = tuple(shares)
        self.held = account.units_of(tickers)
        self.books = tuple(
            Book(tickers, AccountState.of(account.cash * share, tickers, self.held * share))
            for share in shares
        )
        self.flow = Flow()
        self._allowance = CostAllowance()
        self.correction = 0.0

    @classmethod
    def restored(
        cls, tickers: Sequence[str], shares: Sequence[float], state: Mapping[str, Any]
    ) -> SubAccounts:
        """Return the accounts of which `state` was taken."""
        accounts = cls(tickers, shares, AccountState(0.0, {}))
        accounts.books = tuple(Book.restored(tickers, book) for book in state["books"])
        accounts.held, accounts.correction = np.array(state["held"]), state["correction"]
        accounts.flow = Flow.restored(state["flow"])
        accounts._allowance = CostAllowance(state["allowance"])
        return accounts

    @classmethod
    def split(
        cls, tickers: Sequence[str], shares: Sequence[float], other: SubAccounts
    ) -> SubAccounts:
        """Merge other trials' accounts, and split the result by `shares`.

        For a position of several trials, the highest close and the longest holding time count.

        Args:
            tickers: the same ones, in any order.
            shares: of the capital, one per trial.
            other: the accounts to take over.
        """
        order = [other._tickers.index(ticker) for ticker in tickers]
        account = AccountState.of(other.cash, tickers, other.held[order])
        accounts = cls(tickers, shares, account)
        accounts._allowance, accounts.flow = CostAllowance(other._allowance.state()), other.flow
        for book, share in zip(accounts.books, shares, strict=True):
            book.basis = share * np.sum([one.basis for one in other.books], axis=0)[order]
            book.high = np.max([one.high for one in other.books], axis=0)[order]
            book.held = np.max([one.held for one in other.books], axis=0)[order]
        return accounts

    def state(self) -> dict[str, Any]:
        """Return what `restored` needs, for JSON."""
        books = [book.state() for book in self.books]
        return {
            "books": books,
            "held": self.held.tolist(),
            "correction": self.correction,
            "flow": self.flow.state(),
            "allowance": self._allowance.state(),
        }

    @property
    def cash(self) -> float:
        """Cash of the account, quote units."""
        return sum(book.cash for book in self.books)

    @property
    def units(self) -> Array:
        """Units of the account, (N,)."""
        return np.asarray(np.sum([book.units for book in self.books], axis=0))

    def value(self, close: Array) -> float:
        """Return the value of the account at `close`, quote units."""
        return sum(book.value(close) for book in self.books)

    def adopt(self, close: Array) -> None:
        """Treat positions that the account already holds as bought now, at `close`."""
        for book in self.books:
            book.adopt(close)

    def mark(self, close: Array) -> None:
        """Update the highest closes of open positions."""
        for book in self.books:
            book.mark(close)

    def adjust(self, factors: Array) -> None:
        """Follow a change of units: earlier prices were multiplied by `factors`, (N,)."""
        self.held = self.held / factors
        for book in self.books:
            book.adjust(factors)

    def portfolio(self) -> Portfolio:
        """Return the books as input of the order rules, one row each."""
        rows = [book.portfolio() for book in self.books]
        return Portfolio(*(torch.cat(column) for column in zip(*rows, strict=True)))

    def cross(self, portfolio: Portfolio) -> None:
        """Set the books to `portfolio`, one row each, after orders were crossed between them."""
        # The netting has moved cash and units between the rows at the close.
        units, high, held = (
            column.numpy() for column in (portfolio.units, portfolio.high, portfolio.held)
        )
        basis = (portfolio.cost * portfolio.units).numpy()
        for row, book in enumerate(self.books):
            book.cash, book.units = float(portfolio.cash[row]), units[row].copy()
            book.basis = basis[row].copy()
            book.high = np.where(units[row] != 0.0, high[row], 0.0)
            book.held = held[row].copy()

    def settle(
        self,
        time: int,
        fills: Sequence[Fill],
        account: AccountState,
        orders: Orders,
        hole: Mask,
        close: Array,
    ) -> None:
        """Book the fills of a bar's net orders, and advance the clocks by one bar.

        Transfers into the account are shared by the books' values. Transfers out of it reduce all
        books in proportion, and so does the remaining difference between the account and the sum of
        the books (rounding, costs that no fill reports).

        Args:
            time: open of the bar, seconds since the epoch.
            fills: results of the net orders.
            account: the broker's, after those fills.
            orders: each trial's part of the orders, one row each.
            hole: (N,) of the bar.
            close: (N,) of the bar.
        """
        # Each book gets its part of every fill, in proportion to its part of the net order.
        parts = [self._part(row, fills, orders) for row in range(len(self.books))]
        after = [book.after(part) for book, part in zip(self.books, parts, strict=True)]
        # Differences that no fill explains are transfers or costs; they must be known before the
        # books are scaled to the account.
        flow = self._note_flow(time, fills, account, close)
        self.held = account.units_of(self._tickers)
        shares = self._value_shares(close)
        came = np.array([flow.units.get(ticker, 0.0) for ticker in self._tickers])
        units = self._scaled(np.array([state.units for state in after]), came, self.held, shares)
        # Only an account with shorts may have cash below 0.
        least = min(0.0, account.cash)
        left = [
            max(least, state.cash - account.charges * own)
            for state, own in zip(after, shares, strict=True)
        ]
        cash = self._scaled(
            np.array(left)[:, None], np.array([flow.cash]), np.array([account.cash]), shares
        )
        for row, book in enumerate(self.books):
            own = AccountState.of(float(cash[row, 0]), self._tickers, units[row])
            book.settle(parts[row], own, orders.restart_clock[row].numpy(), hole, close)

    def take_flow(self) -> Flow:
        """Return the transfers since the last call."""
        flow, self.flow = self.flow, Flow()
        return flow

    def reset(self, time: int, account: AccountState, close: Array, fills: Sequence[Fill]) -> None:
        """Split the present account by the books' values; keep basis, highs and clocks.

        Args:
            time: open of the bar in progress, seconds since the epoch.
            account: the broker's account now.
            close: (N,) of the previous bar.
            fills: those since the books were settled.
        """
        # The last close's charges are booked already.
        self._note_flow(time, fills, dataclasses.replace(account, charges=0.0), close)
        shares = self._value_shares(close)
        self.held = account.units_of(self._tickers)
        for book, share in zip(self.books, shares, strict=True):
            # Cost per unit stays; it is the close for books that held none of the asset.
            cost = np.where(
                book.units != 0.0, book.basis / np.where(book.units != 0.0, book.units, 1.0), close
            )
            book.cash, book.units = account.cash * share, self.held * share
            book.basis = book.units * cost
            book.held, book.high = (
                np.where(book.units != 0.0, column, 0.0) for column in (book.held, book.high)
            )

    def _part(self, row: int, fills: Sequence[Fill], orders: Orders) -> list[Fill]:
        """Return a trial's part of the account's fills, in proportion to its part of the orders."""
        found = []
        for fill in fills:
            if fill.reason == LIQUIDATED:  # the venue's own order, of an account with one book
                found.append(fill)
                continue
            asset = self._tickers.index(fill.order.ticker)
            buys = orders.buy_notional if fill.order.notional > 0.0 else orders.cover_units
            wanted = (orders.sell_units if fill.order.side == "sell" else buys)[:, asset]
            if not wanted[row] > 0.0:
                continue
            # One fill per net order: trials on the same side share it in proportion.
            share = float(wanted[row] / wanted.sum())
            order = dataclasses.replace(fill.order, whole=bool(orders.whole[row, asset]))
            amounts = {name: getattr(fill, name) * share for name in ("units", "notional", "fee")}
            found.append(dataclasses.replace(fill, order=order, **amounts))
        return found

    def _note_flow(
        self, time: int, fills: Sequence[Fill], account: AccountState, close: Array
    ) -> Flow:
        """Return the transfers since the last `settle`: what neither fills nor costs explain."""
        before = AccountState.of(self.cash - account.charges, self._tickers, self.units)
        flow = unexplained(before, fills, account, self._tickers, close)
        if account.late_fees:  # otherwise fills have all fees, and other outflows are transfers
            self._allowance.earn(
                time, sum(fill.notional for fill in fills if fill.status == "filled")
            )
            flow = less_costs(flow, self._allowance, time, self._tickers, close)
        self.flow += flow
        return flow

    def _value_shares(self, close: Array) -> Array:
        """Return the books' shares, (R,), of the value, or of the capital if nothing is left."""
        values = np.array([book.value(close) for book in self.books])
        return values / values.sum() if values.sum() > 0.0 else np.array(self._shares)

    def _scaled(self, parts: Array, came: Array, total: Array, shares: Array) -> Array:
        """Scale the books' amounts so that they sum to the account's.

        Args:
            parts: (R, n) amounts of the books.
            came: (n,) transfers, shared by `shares`.
            total: (n,) amounts of the account.
            shares: (R,).

        Returns:
            (R, n); where all parts are 0, the total is shared like the capital.
        """
        parts = parts + np.maximum(came, 0.0) * shares[:, None]
        held = parts.sum(axis=0)
        # Withdrawals reduce all books by the same fraction, deposits are shared by value.
        gone = np.divide(np.minimum(came, 0.0), held, out=np.zeros_like(held), where=held > 0.0)
        parts = parts * np.maximum(1.0 + gone, 0.0)
        sums = parts.sum(axis=0)
        # The remaining difference is rounding, unless something is wrong: it is measured.
        worst = np.max(
            np.abs(sums - total) / np.maximum(np.maximum(np.abs(total), np.abs(sums)), 1e-9),
            initial=0.0,
        )
        self.correction = max(self.correction, float(worst))
        shares = np.where(
            sums > 0.0, parts / np.where(sums > 0.0, sums, 1.0), np.array(self._shares)[:, None]
        )
        return shares * total
