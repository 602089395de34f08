"""A lane: a bundle that trades bar by bar through a broker, and what it is in the database.

The slot's account, its shadow and its challengers are all lanes and run the same code; they differ in the broker.
"""

from __future__ import annotations

from collections.abc import Sequence

from deploy.market.bundle import Bundle
from deploy.trading.brokers.base import Broker, Fill, Order
from deploy.trading.brokers.sim import SimBroker, sim_broker
from deploy.trading.flows import Flow
from deploy.trading.live.risk import RiskLimits
from deploy.trading.live.store import ACCOUNT, Changes, Lane, LaneBar, LaneKind, OrderLine
from deploy.trading.paper_trader import ClosedBar, Conditions, Entry, PaperTrader
from envs.crypto.bars import Bars

NOTHING = Flow()


class TradingLane:
    """A bundle with its trader and its broker.

    since: open of the first bar that it acts on, None before `start`. settled: results of orders that the next bar will
    book. counted: fills that are booked already and will be listed in the next bar's line.
    """

    def __init__(
        self, slot: str, name: str, kind: LaneKind, trader: PaperTrader, broker: Broker
    ) -> None:
        self.slot, self.name, self.kind = slot, name, kind
        self.trader, self.broker = trader, broker
        self.since: int | None = None
        self.settled: list[Fill] = []
        self.counted: list[Fill] = []
        self._booked: set[str] = set()

    @property
    def bundle(self) -> Bundle:
        """What it trades."""
        return self.trader.bundle

    def close_bar(
        self,
        bar: ClosedBar,
        changes: Changes,
        conditions: Conditions,
        *,
        decide: bool,
        transfer: Flow = NOTHING,
    ) -> Entry:
        """Book what became of the last bar's orders, and act on a closed bar; `note` says what is to be written.

        transfer: the slot's account had it in this bar; a simulated account that shadows it repeats it.
        """
        if isinstance(self.broker, SimBroker):
            self.broker.next_bar(bar.time, bar.open, bar.hole)
            self.broker.transfer(transfer)
        news = self.broker.fills()
        changes.fills += news
        booked, counted = [*self.settled, *news], self.counted
        self.settled, self.counted = [], []
        account = self.broker.account()
        self.since = bar.time if self.since is None else self.since
        return self.trader.on_bar(
            bar, booked, account, counted=counted, decide=decide, conditions=conditions
        )

    def hand_over(self, bundle: Bundle, history: Bars, limits: RiskLimits) -> None:
        """Trade another bundle from now on, with the present positions. Only after a bar without a decision."""
        heir = lane_trader(self.slot, self.name, bundle, any_account=True, limits=limits)
        heir.take_over(history, self.trader)
        if isinstance(self.broker, SimBroker):
            broker = sim_broker(bundle)
            broker.restore(self.broker.state())
            self.broker = broker
        self.trader = heir

    def note(self, bar: ClosedBar, entry: Entry, changes: Changes) -> None:
        """Put the bar's line, the intended orders and the lane's state into `changes`."""
        tickers = self.bundle.manifest.tickers
        action = (
            None
            if entry.action is None
            else dict(zip(tickers, map(float, entry.action), strict=True))
        )
        changes.bars.append(
            LaneBar(
                lane=self.name,
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

    def selling_all(self, bar: int, now: float) -> list[Order]:
        """Orders that sell whatever the account holds, between two bars. bar: the last one acted on."""
        held = self.broker.account().units
        return [
            Order(
                f"{self.trader.slot}-{bar}-{ticker}-halt{now:.0f}",
                ticker,
                "sell",
                bar,
                units=units,
                whole=True,
            )
            for ticker, units in held.items()
            if units > 0.0 and ticker in self.bundle.manifest.tickers
        ]

    def sold_out(self) -> None:
        """All was sold between two bars: nothing that was sent is left to be booked."""
        fills, self.settled = self.settled, []
        self.counted = [*self.counted, *fills]
        self.trader.sold_out(self.broker.account(), fills)

    def recover(self, lines: Sequence[OrderLine], *, late: str | None) -> list[Fill]:
        """Find out what became of the last bar's orders after a restart, and send those that never arrived.

        late: why they may not be sent any more, None where they may. Returns what was not known before.
        """
        known = [line.fill for line in lines if line.fill is not None]
        self.counted = [fill for fill in known if fill.order.client_id in self._booked]
        self.settled = [fill for fill in known if fill.order.client_id not in self._booked]
        unknown = [line.order for line in lines if line.fill is None]
        missing = self.broker.adopt(unknown, final=late is not None and self.broker.immediate)
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
        assert self.since is not None
        broker = self.broker.state() if isinstance(self.broker, SimBroker) else None
        booked = [fill.order.client_id for fill in self.counted]
        state = {"trader": self.trader.state(), "broker": broker, "booked": booked}
        return Lane(self.name, self.kind, self.bundle.hash, self.since, retired, state)

    def start(self, history: Bars) -> None:
        """Begin after the bars of `history`."""
        self.trader.start(history, self.broker.account())

    def go_on(self, history: Bars, kept: Lane) -> None:
        """Go on where `row` was taken. history: bars up to the last one acted on."""
        if isinstance(self.broker, SimBroker):
            self.broker.restore(kept.state["broker"])
        self.trader.go_on(history, kept.state["trader"])
        self.since, self._booked = kept.since, set(kept.state["booked"])


def lane_trader(
    slot: str, name: str, bundle: Bundle, *, any_account: bool, limits: RiskLimits
) -> PaperTrader:
    """The trader of a lane, whose orders carry the lane's name unless it is the account."""
    prefix = slot if name == ACCOUNT else f"{slot}.{name}"
    return PaperTrader(bundle, slot=prefix, any_account=any_account, limits=limits)
