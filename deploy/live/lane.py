"""A lane: a bundle that trades bar by bar through a broker, and what it is in the database.

The slot's account, its shadow and its challengers are all lanes and run the same code; they differ in the broker.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from deploy.brokers.base import Broker, Fill, Order
from deploy.brokers.sim import SimBroker
from deploy.bundle import Bundle
from deploy.live.store import ACCOUNT, Changes, Lane, LaneBar, LaneKind, OrderLine
from deploy.paper_trader import ClosedBar, Entry, PaperTrader
from envs.crypto.bars import Bars
from envs.errors import RunError


class TradingLane:
    """A bundle with its trader and its broker.

    since: open of the bar at whose close it began. settled: what is known already of the orders that the next bar will
    book.
    """

    def __init__(self, slot: str, name: str, kind: LaneKind, trader: PaperTrader, broker: Broker, since: int) -> None:
        self.slot, self.name, self.kind, self.since = slot, name, kind, since
        self.trader, self.broker = trader, broker
        self.settled: list[Fill] = []

    @property
    def bundle(self) -> Bundle:
        """What it trades."""
        return self.trader.bundle

    def close_bar(self, bar: ClosedBar, changes: Changes, *, decide: bool) -> Entry:
        """Act on a closed bar and note in `changes` what is to be written before anything is sent."""
        if isinstance(self.broker, SimBroker):
            self.broker.next_bar(bar.time, bar.open, bar.hole)
        news = self.broker.fills()
        changes.fills += news
        booked, self.settled = [*self.settled, *news], []
        return self.trader.on_bar(bar, booked, self.broker.account(), decide=decide)

    def note(self, bar: ClosedBar, entry: Entry, changes: Changes) -> None:
        """Put the bar's line, the intended orders and the lane's state into `changes`."""
        tickers = self.bundle.manifest.tickers
        action = None if entry.action is None else dict(zip(tickers, map(float, entry.action), strict=True))
        changes.bars.append(
            LaneBar(
                lane=self.name,
                time=bar.time,
                bundle=self.bundle.hash,
                value=float(entry.value),
                cash=float(entry.cash),
                fees=float(entry.fees),
                notional=float(entry.notional),
                trades=entry.trades,
                unfilled=entry.unfilled,
                dropped=entry.dropped,
                crossed=float(entry.crossed),
                units=dict(zip(tickers, map(float, entry.units), strict=True)),
                action=action,
            )
        )
        changes.intents += [OrderLine(self.name, order) for order in entry.orders]
        changes.lanes.append(self.row())

    def send(self, orders: Sequence[Order]) -> list[Fill]:
        """Send what was noted. Returns what is known at once of what became of it."""
        self.broker.submit(orders)
        if not self.broker.immediate:
            return []
        fills = self.broker.fills()
        self.settled += fills
        return fills

    def recover(self, lines: Sequence[OrderLine], *, late: str | None) -> list[Fill]:
        """Find out what became of the last bar's orders after a restart, and send those that never arrived.

        late: why they may not be sent any more, None where they may. Returns what was not known before.
        """
        self.settled = [line.fill for line in lines if line.fill is not None]
        missing = self.broker.adopt([line.order for line in lines if line.fill is None])
        found: list[Fill] = []
        if late is not None and self.broker.immediate:
            found = [Fill(order, "unfilled", order.decided, reason=late) for order in missing]
            missing = []
        self.broker.submit(missing)
        if self.broker.immediate:
            found += self.broker.fills()
        self.settled += found
        return found

    def row(self, retired: str | None = None) -> Lane:
        """The lane as the database has it."""
        broker = self.broker.state() if isinstance(self.broker, SimBroker) else None
        state = {"trader": self.trader.state(), "broker": broker}
        return Lane(self.name, self.kind, self.bundle.hash, self.since, retired, state)

    def go_on(self, history: Bars, state: Mapping[str, Any]) -> None:
        """Go on where `row` was taken. history: bars up to the last one acted on."""
        if isinstance(self.broker, SimBroker):
            self.broker.restore(state["broker"])
        self.trader.go_on(history, state["trader"])


def virtual_lane(
    slot: str, name: str, kind: LaneKind, bundle: Bundle, since: int, *, cash: float | None = None
) -> TradingLane:
    """A lane with virtual money: cash, or the bundle's initial cash."""
    broker = SimBroker(
        bundle.manifest.tickers,
        bundle.account.initial_cash if cash is None else cash,
        bundle.account,
        bundle.instruments,
    )
    return TradingLane(slot, name, kind, lane_trader(slot, name, bundle, any_account=True), broker, since)


def lane_trader(slot: str, name: str, bundle: Bundle, *, any_account: bool) -> PaperTrader:
    """The trader of a lane, whose orders carry the lane's name unless it is the account."""
    prefix = slot if name == ACCOUNT else f"{slot}.{name}"
    return PaperTrader(bundle, slot=prefix, any_account=any_account)


def reordered(bar: ClosedBar, tickers: Sequence[str], wanted: Sequence[str]) -> ClosedBar:
    """The bar of `tickers` in the order `wanted`. Raises RunError where one is missing."""
    if tuple(tickers) == tuple(wanted):
        return bar
    missing = [ticker for ticker in wanted if ticker not in tickers]
    if missing:
        raise RunError(f"the feed has no bars of {', '.join(missing)}")
    order = [list(tickers).index(ticker) for ticker in wanted]
    columns = {name: getattr(bar, name)[order] for name in ("open", "high", "low", "close", "volume", "hole")}
    return dataclasses.replace(bar, **columns)
