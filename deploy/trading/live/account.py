"""An account of a slot: a bundle that trades bar by bar, and its database record.

The slot's own account, its shadow and its challengers run this code. It knows no broker: at every
bar it receives what its venue says (`sweepd.deploy.trading.live.venue`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.registry.bundle_files import NAME_DIGITS
from sweepd.deploy.trading.brokers.base import LIQUIDATED, AccountState, Fill, Order
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.live.records import (
    SLOT_ACCOUNT,
    AccountBar,
    AccountKind,
    AccountRecord,
    Changes,
    OrderRecord,
)
from sweepd.deploy.trading.live.venue import Reading
from sweepd.deploy.trading.paper_trader import Entry, PaperTrader
from sweepd.deploy.trading.risk import Conditions
from sweepd.deploy.trading.risk_limits import RiskLimits
from sweepd.envs.crypto.data.bars import Bars

# Orders into which a venue divides one order, given a price; the result follows from both alone.
Parts = Callable[[Order, float], Sequence[Order]]

Act = Callable[[NDArray[np.float32]], NDArray[np.float64]]


def whole(order: Order, _price: float) -> Sequence[Order]:
    """Return an order undivided: virtual money takes orders of any size."""
    return (order,)


class TradingAccount:
    """A bundle with its paper trader.

    Args:
        slot: the slot.
        name: of the account.
        kind: of the account.
        bundle: what it trades.
        limits: risk rules.
        any_account: accept an account whose value is far from what the bundle was trained with.
        parts: divides an order into those that its venue accepts.
        act: replaces the bundle's policies.

    Attributes:
        since: open of the first bar that it processed, None before that.
        holdings: what its venue said last.
        open: orders that were committed and have no result yet.
    """

    def __init__(
        self,
        slot: str,
        name: str,
        kind: AccountKind,
        bundle: Bundle,
        *,
        limits: RiskLimits,
        any_account: bool,
        parts: Parts = whole,
        act: Act | None = None,
    ) -> None:
        # Client ids of orders begin with the slot and, except for its own account, with the name.
        self._prefix = slot if name == SLOT_ACCOUNT else f"{slot}.{name}"
        self._limits, self._parts = limits, parts
        self.name, self.kind = name, kind
        self.trader = PaperTrader(
            bundle, slot=self._prefix, act=act, any_account=any_account, limits=limits
        )
        self.since: int | None = None
        self.holdings = AccountState(0.0, {})
        self.open: list[Order] = []
        self._settled: list[Fill] = []  # results that the next bar will book
        self._counted: list[Fill] = []  # booked already; listed in the next bar's line

    @property
    def bundle(self) -> Bundle:
        """The bundle that it trades."""
        return self.trader.bundle

    # ---- start ----

    def start(self, history: Bars, holdings: AccountState) -> None:
        """Start after the bars of `history` with what the venue holds."""
        self.holdings = holdings
        self.trader.start(history, holdings)

    def resume(
        self, history: Bars, kept: AccountRecord, tickers: Sequence[str] | None = None
    ) -> None:
        """Continue from a record.

        Args:
            history: bars up to the last processed one.
            kept: the record.
            tickers: those of the record's bundle, if that is another one; None if it is not.
        """
        if tickers is None:
            self.trader.resume(history, kept.state["trader"])
        else:
            self.trader.inherit(history, kept.state["trader"], tickers)
        self.since, self.holdings = kept.since, AccountState(**kept.state["holdings"])
        self.open = [Order(**order) for order in kept.state["open"]]
        self._settled, self._counted = (
            [_restored(fill) for fill in kept.state[name]] for name in ("settled", "counted")
        )

    def adjust(self, history: Bars, factors: Mapping[str, float]) -> None:
        """Follow a change of units between two bars; values stay.

        Args:
            history: bars up to the last processed one, in the present units.
            factors: of earlier prices, by ticker.
        """
        tickers = self.bundle.manifest.tickers
        self.trader.adjust(history, np.array([factors.get(ticker, 1.0) for ticker in tickers]))
        units = self.holdings.units
        self.holdings = dataclasses.replace(
            self.holdings, units={name: units[name] / factors.get(name, 1.0) for name in units}
        )
        self.open = [order.adjusted(factors.get(order.ticker, 1.0)) for order in self.open]
        self._settled, self._counted = (
            [fill.adjusted(factors.get(fill.order.ticker, 1.0)) for fill in fills]
            for fills in (self._settled, self._counted)
        )

    # ---- a bar ----

    def on_bar(
        self,
        bar: ClosedBar,
        history: Bars,
        reading: Reading,
        conditions: Conditions,
        changes: Changes,
        *,
        decide: bool,
        heir: Bundle | None = None,
    ) -> Entry:
        """Process a closed bar: book fills, mark, judge risk, decide, and record everything.

        Args:
            bar: the bar, with the assets in the order of `history`.
            history: the newest bars; `bar` is the last of them.
            reading: what the venue says.
            conditions: input of the risk rules.
            changes: receives results, the bar's line, the orders to send and the account's state.
            decide: whether the policy decides; False only keeps the ledger.
            heir: a bundle that takes over the positions at this bar, before the decision.
        """
        own = bar.in_order(history.tickers, self.bundle.manifest.tickers)
        news = [self._named(fill) for fill in reading.fills]
        changes.fills += news
        # Liquidations are orders of the venue's own, which nobody has recorded.
        liquidations = [fill.order for fill in news if fill.reason == LIQUIDATED]
        changes.intents += [OrderRecord.of(self.name, order) for order in liquidations]
        self.hear(news)
        fills, counted = self._settled, self._counted
        self._settled, self._counted = [], []
        self.holdings = reading.holdings
        self.since = own.time if self.since is None else self.since
        entry = self.trader.mark(
            own, fills, reading.holdings, counted=counted, conditions=conditions
        )
        # After `mark`: the old bundle's orders are booked by the trader that planned them.
        if heir is not None:
            old = self.trader
            self.trader = PaperTrader(
                heir, slot=self._prefix, any_account=True, limits=self._limits
            )
            self.trader.take_over(history, old)
            own = bar.in_order(history.tickers, heir.manifest.tickers)
        if decide:
            entry = self.trader.decide(own, entry, conditions)
            prices = dict(zip(self.bundle.manifest.tickers, own.close.tolist(), strict=True))
            entry = dataclasses.replace(entry, orders=self._divided(entry.orders, prices))
        self.open += entry.orders
        changes.bars.append(self._line(own, entry))
        changes.intents += [OrderRecord.of(self.name, order) for order in entry.orders]
        changes.accounts.append(self.record())
        return entry

    def hear(self, fills: Sequence[Fill]) -> None:
        """Note results, which the next bar will book."""
        known = {fill.order.client_id for fill in fills}
        self.open = [order for order in self.open if order.client_id not in known]
        self._settled = [*self._settled, *fills]

    def record(self, retired: str | None = None) -> AccountRecord:
        """Return the account as the database stores it."""
        assert self.since is not None
        state = {
            "trader": self.trader.state(),
            "holdings": {"cash": self.holdings.cash, "units": dict(self.holdings.units)},
            "open": [vars(order) for order in self.open],
            "settled": [dataclasses.asdict(fill) for fill in self._settled],
            "counted": [dataclasses.asdict(fill) for fill in self._counted],
        }
        return AccountRecord(self.name, self.kind, self.bundle.hash, self.since, retired, state)

    def owns(self, order: Order) -> bool:
        """Return whether the order was decided by this account."""
        return order.client_id.startswith(f"{self._prefix}-")

    def _line(self, bar: ClosedBar, entry: Entry) -> AccountBar:
        """Return the bar's line for the database."""
        tickers = self.bundle.manifest.tickers

        def by_ticker(values: Iterable[float]) -> dict[str, float]:
            return dict(zip(tickers, map(float, values), strict=True))

        return AccountBar(
            account=self.name,
            time=bar.time,
            bundle=self.bundle.hash,
            value=float(entry.value),
            cash=float(entry.cash),
            flow=float(entry.flow.value(tickers, bar.close)),
            fees=float(entry.fees),
            notional=float(entry.notional),
            trades=entry.trades,
            unfilled=entry.unfilled,
            dropped=entry.dropped,
            crossed=float(entry.crossed),
            units=by_ticker(entry.units),
            action=None if entry.action is None else by_ticker(entry.action),
        )

    def _divided(self, orders: Iterable[Order], prices: Mapping[str, float]) -> tuple[Order, ...]:
        """Return the orders in parts that the venue accepts, at the last closes by ticker."""
        return tuple(
            part for order in orders for part in self._parts(order, prices.get(order.ticker, 0.0))
        )

    def _named(self, fill: Fill) -> Fill:
        """Return a fill; client ids of liquidations get the account's prefix."""
        if fill.reason != LIQUIDATED:
            return fill
        client_id = f"{self._prefix}-{fill.order.client_id}"
        return dataclasses.replace(fill, order=dataclasses.replace(fill.order, client_id=client_id))

    # ---- an operator's halt ----

    def sell_all(
        self, bar: int, now: float, holdings: AccountState, prices: Mapping[str, float]
    ) -> tuple[Order, ...]:
        """Return orders that close everything between two bars.

        Args:
            bar: open of the last processed one.
            now: seconds since the epoch.
            holdings: what the venue holds now.
            prices: closes of the bar, by ticker.
        """
        orders = [
            Order(
                f"{self._prefix}-{bar}-{ticker}-halt{now:.0f}",
                ticker,
                "sell" if units > 0.0 else "buy",
                bar,
                units=abs(units),
                whole=True,
            )
            for ticker, units in holdings.units.items()
            if units != 0.0 and ticker in self.bundle.manifest.tickers
        ]
        parts = self._divided(orders, prices)
        self.open += parts
        return parts

    def book_sales(self, holdings: AccountState) -> None:
        """Book what `sell_all` sold, so that no result remains for the next bar.

        Args:
            holdings: what the venue holds after it.
        """
        fills, self._settled = self._settled, []
        self._counted = [*self._counted, *fills]
        self.holdings = holdings
        self.trader.reset_positions(holdings, fills)


def challenger_name(hash_: str) -> str:
    """Return the name of the account that trades a challenger's bundle."""
    return hash_[:NAME_DIGITS]


def _restored(state: Mapping[str, Any]) -> Fill:
    """Return a fill from its JSON object."""
    fields = {name: value for name, value in state.items() if name != "order"}
    return Fill(Order(**state["order"]), **fields)
