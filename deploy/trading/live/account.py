"""An account of a slot: a bundle that trades bar by bar through a broker, and its database record.

The slot's own account, its shadow and its challengers run this code; they differ in the broker.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.trading.brokers.base import LIQUIDATED, Broker, Fill, Order
from sweepd.deploy.trading.brokers.sim import SimBroker, sim_broker
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.flows import Flow
from sweepd.deploy.trading.live.records import (
    SLOT_ACCOUNT,
    AccountBar,
    AccountKind,
    AccountRecord,
    Changes,
    OrderRecord,
)
from sweepd.deploy.trading.paper_trader import Entry, PaperTrader
from sweepd.deploy.trading.risk import Conditions
from sweepd.deploy.trading.risk_limits import RiskLimits
from sweepd.envs.crypto.data.bars import Bars


class TradingAccount:
    """A bundle with its paper trader and its broker.

    Args:
        slot: the slot.
        name: of the account.
        kind: of the account.
        bundle: what it trades.
        broker: where it trades.
        limits: risk rules.
        any_account: accept an account whose value is far from what the bundle was trained with.
        remake: makes a broker of virtual money for another bundle.

    Attributes:
        since: open of the first bar that it processed, None before that.
    """

    def __init__(
        self,
        slot: str,
        name: str,
        kind: AccountKind,
        bundle: Bundle,
        broker: Broker,
        *,
        limits: RiskLimits,
        any_account: bool,
        remake: Callable[[Bundle], Broker] = sim_broker,
    ) -> None:
        # Client ids of orders begin with the slot and, except for its own account, with the name.
        self._prefix = slot if name == SLOT_ACCOUNT else f"{slot}.{name}"
        self._limits, self._remake = limits, remake
        self.name, self.kind, self.broker = name, kind, broker
        self.trader = PaperTrader(bundle, slot=self._prefix, any_account=any_account, limits=limits)
        self.since: int | None = None
        self._settled: list[Fill] = []  # results that the next bar will book
        self._counted: list[Fill] = []  # booked already; listed in the next bar's line
        self._booked: set[str] = set()  # client ids of `_counted` as they were restored

    @property
    def bundle(self) -> Bundle:
        """The bundle that it trades."""
        return self.trader.bundle

    # ---- start ----

    def start(self, history: Bars) -> None:
        """Start after the bars of `history`."""
        self.trader.start(history, self.broker.account())

    def resume(
        self, history: Bars, kept: AccountRecord, tickers: Sequence[str] | None = None
    ) -> None:
        """Continue from a record.

        Args:
            history: bars up to the last processed one.
            kept: the record.
            tickers: those of the record's bundle, if that is another one; None if it is not.
        """
        if isinstance(self.broker, SimBroker):
            self.broker.restore(kept.state["broker"])
        if tickers is None:
            self.trader.resume(history, kept.state["trader"])
        else:
            self.trader.inherit(history, kept.state["trader"], tickers)
        self.since, self._booked = kept.since, set(kept.state["booked"])

    def recover(self, lines: Sequence[OrderRecord], *, late: str | None) -> list[Fill]:
        """Look up results of the last bar's orders after a restart, and send missing orders.

        Args:
            lines: the account's orders of the last bar.
            late: why orders may no longer be sent; None if they may.

        Returns:
            Results that the database does not have yet.
        """
        known = [line.fill for line in lines if line.fill is not None]
        # Fills that an operator's halt has booked already must not be booked twice.
        self._counted = [fill for fill in known if fill.order.client_id in self._booked]
        self._settled = [fill for fill in known if fill.order.client_id not in self._booked]
        unknown = [line.order for line in lines if line.fill is None]
        missing = self.broker.adopt(unknown, final=late is not None and self.broker.immediate)
        found: list[Fill] = []
        # The simulator fills at the next open, which is still to come: nothing is late there.
        if late is not None and self.broker.immediate:
            found = [Fill(order, "unfilled", order.decided, reason=late) for order in missing]
            missing = []
        self.broker.submit(missing)
        if self.broker.immediate:
            found += self.broker.fills()
        self._settled += found
        return found

    def adjust(self, history: Bars, factors: Mapping[str, float]) -> None:
        """Follow a change of units between two bars; values stay.

        Args:
            history: bars up to the last processed one, in the present units.
            factors: of earlier prices, by ticker.
        """
        by = np.array([factors.get(ticker, 1.0) for ticker in self.bundle.manifest.tickers])
        self.trader.adjust(history, by)
        if isinstance(self.broker, SimBroker):
            self.broker.adjust(by)
        self._settled, self._counted = (
            [fill.adjusted(factors.get(fill.order.ticker, 1.0)) for fill in fills]
            for fills in (self._settled, self._counted)
        )

    # ---- a bar ----

    def on_bar(
        self,
        bar: ClosedBar,
        history: Bars,
        conditions: Conditions,
        changes: Changes,
        *,
        decide: bool,
        heir: Bundle | None = None,
        transfer: Flow | None = None,
    ) -> Entry:
        """Process a closed bar: book fills, mark, judge risk, decide, and record everything.

        Args:
            bar: the bar, with the assets in the order of `history`.
            history: the newest bars; `bar` is the last of them.
            conditions: input of the risk rules.
            changes: receives results, the bar's line, the orders to send and the account's state.
            decide: whether the policy decides; False only keeps the ledger.
            heir: a bundle that takes over the positions at this bar, before the decision.
            transfer: for the shadow: what the slot's own account received in this bar.
        """
        own = bar.in_order(history.tickers, self.bundle.manifest.tickers)
        if isinstance(self.broker, SimBroker):
            self.broker.next_bar(own.time, own.open, own.hole)
            self.broker.close_bar(own.time, own.close, own.hole)
            self.broker.transfer(transfer or Flow())
        news = [self._named(fill) for fill in self.broker.fills()]
        changes.fills += news
        # Liquidations are orders of the venue's own, which nobody has recorded.
        liquidations = [fill.order for fill in news if fill.reason == LIQUIDATED]
        changes.intents += [OrderRecord.of(self.name, order) for order in liquidations]
        fills, counted = [*self._settled, *news], self._counted
        self._settled, self._counted = [], []
        self.since = own.time if self.since is None else self.since
        entry = self.trader.mark(
            own, fills, self.broker.account(), counted=counted, conditions=conditions
        )
        # After `mark`: the old bundle's orders are booked by the trader that planned them.
        if heir is not None:
            self._hand_over(heir, history)
            own = bar.in_order(history.tickers, heir.manifest.tickers)
        if decide:
            entry = self.trader.decide(own, entry, conditions)
            prices = dict(zip(self.bundle.manifest.tickers, own.close.tolist(), strict=True))
            entry = dataclasses.replace(entry, orders=self._parts(entry.orders, prices))
        changes.bars.append(self._line(own, entry))
        changes.intents += [OrderRecord.of(self.name, order) for order in entry.orders]
        changes.accounts.append(self.record())
        return entry

    def send(self, orders: Sequence[Order]) -> list[Fill]:
        """Send committed orders. Returns the results that are known at once."""
        self.broker.submit(orders)
        if not self.broker.immediate:
            return []
        fills = self.broker.fills()
        self._settled += fills
        return fills

    def record(self, retired: str | None = None) -> AccountRecord:
        """Return the account as the database stores it."""
        assert self.since is not None
        broker = self.broker.state() if isinstance(self.broker, SimBroker) else None
        booked = [fill.order.client_id for fill in self._counted]
        state = {"trader": self.trader.state(), "broker": broker, "booked": booked}
        return AccountRecord(self.name, self.kind, self.bundle.hash, self.since, retired, state)

    def owns(self, order: Order) -> bool:
        """Return whether the order was decided by this account."""
        return order.client_id.startswith(f"{self._prefix}-")

    def _hand_over(self, bundle: Bundle, history: Bars) -> None:
        """Trade another bundle from now on, with the present positions."""
        heir = PaperTrader(bundle, slot=self._prefix, any_account=True, limits=self._limits)
        heir.take_over(history, self.trader)
        # The simulator's fees and order of tickers are those of the bundle.
        if isinstance(self.broker, SimBroker):
            broker = self._remake(bundle)
            assert isinstance(broker, SimBroker)
            broker.restore(self.broker.state())
            self.broker = broker
        self.trader = heir

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

    def _parts(self, orders: Iterable[Order], prices: Mapping[str, float]) -> tuple[Order, ...]:
        """Return the orders in parts that the venue accepts, at the last closes by ticker."""
        return tuple(
            part
            for order in orders
            for part in self.broker.parts(order, prices.get(order.ticker, 0.0))
        )

    def _named(self, fill: Fill) -> Fill:
        """Return a fill; client ids of liquidations get the account's prefix."""
        if fill.reason != LIQUIDATED:
            return fill
        client_id = f"{self._prefix}-{fill.order.client_id}"
        return dataclasses.replace(fill, order=dataclasses.replace(fill.order, client_id=client_id))

    # ---- an operator's halt ----

    def orders_to_sell_all(
        self, bar: int, now: float, prices: Mapping[str, float]
    ) -> tuple[Order, ...]:
        """Return orders that close everything between two bars.

        Args:
            bar: open of the last processed one.
            now: seconds since the epoch.
            prices: its closes, by ticker.
        """
        held = self.broker.account().units
        orders = [
            Order(
                f"{self._prefix}-{bar}-{ticker}-halt{now:.0f}",
                ticker,
                "sell" if units > 0.0 else "buy",
                bar,
                units=abs(units),
                whole=True,
            )
            for ticker, units in held.items()
            if units != 0.0 and ticker in self.bundle.manifest.tickers
        ]
        return self._parts(orders, prices)

    def book_sales(self) -> None:
        """Book what `orders_to_sell_all` sold, so that no result remains for the next bar."""
        fills, self._settled = self._settled, []
        self._counted = [*self._counted, *fills]
        self.trader.reset_positions(self.broker.account(), fills)
