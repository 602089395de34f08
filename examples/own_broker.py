"""Write a broker of your own for the paper trader: here, one that trades in office hours only.

A broker implements four methods of `sweepd.deploy.trading.brokers.base.Broker`. No broker may place
an order with real money.
"""

from collections.abc import Sequence

from load_bundle import BUNDLE

from sweepd.deploy.market.bundle import load_bundle
from sweepd.deploy.trading.brokers.base import AccountState, Broker, Fill, Order
from sweepd.deploy.trading.brokers.sim import SimBroker, sim_broker
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.paper_trader import PaperTrader
from sweepd.envs.crypto.data.demo_market import make_demo_market

HOUR = 3600


class OfficeHoursBroker(Broker):
    """Virtual money, traded from 08:00 to 18:00 UTC only; other orders are reported as unfilled."""

    immediate = False

    def __init__(self, inner: SimBroker) -> None:
        self.inner = inner
        self.refused: list[Fill] = []

    def account(self) -> AccountState:
        return self.inner.account()

    def submit(self, orders: Sequence[Order]) -> None:
        for order in orders:
            opens = order.decided + HOUR  # the order would fill at the next bar's open
            if 8 <= opens // HOUR % 24 < 18:
                self.inner.submit([order])
            else:
                self.refused.append(Fill(order, "unfilled", opens, reason="the venue is closed"))

    def adopt(self, orders: Sequence[Order], *, final: bool = False) -> list[Order]:
        return self.inner.adopt(orders, final=final)

    def fills(self) -> list[Fill]:
        refused, self.refused = self.refused, []
        return self.inner.fills() + refused


def main() -> None:
    """Trade the example bundle over 100 bars of the demo market, bar by bar."""
    bundle, bars = load_bundle(BUNDLE), make_demo_market(assets=2, bars=4000)
    inner = sim_broker(bundle)
    broker, trader = OfficeHoursBroker(inner), PaperTrader(bundle, slot="office-hours")
    first = len(bars) - 100
    trader.start(bars.slice(first - trader.bars_needed, first), broker.account())
    filled = unfilled = 0
    for number in range(first, len(bars)):
        bar = ClosedBar.of(bars, number)
        inner.next_bar(bar.time, bar.open, bar.hole)
        fills = broker.fills()
        filled += sum(fill.status == "filled" for fill in fills)
        unfilled += sum(fill.status == "unfilled" for fill in fills)
        entry = trader.on_bar(bar, fills, broker.account())
        broker.submit(entry.orders)
    print(f"{filled} orders filled, {unfilled} refused; account value {entry.value:,.2f}")


if __name__ == "__main__":
    main()
