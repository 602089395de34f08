"""A broker of your own for the paper trader: here, one that trades in office hours only.

PYTHONPATH=examples sweepd trade --broker 'own_broker:OfficeHoursBroker {"closes": 17}'
"""

from load_bundle import BUNDLE

from sweepd.deploy.market.bundle import load_bundle
from sweepd.deploy.trading.paper_trader import PaperTrader
from sweepd.envs.crypto.data.demo_market import make_demo_market
from sweepd.parts import ClosedBar, Fill, SimBroker

HOUR = 3600


class OfficeHoursBroker(SimBroker):
    """Virtual money; an order that would fill at another time is reported as unfilled."""

    def __init__(self, tickers, cash, params, instruments, *, timeframe, opens=8, closes=18):
        super().__init__(tickers, cash, params, instruments, timeframe=timeframe)
        self.hours, self.refused = range(opens, closes), []

    def submit(self, orders):
        """Send orders; they fill at the open of the next bar."""
        accepted = [order for order in orders if self.fills_at(order) // HOUR % 24 in self.hours]
        super().submit(accepted)
        for order in orders:
            if order not in accepted:
                why = "the venue is closed"
                self.refused.append(Fill(order, "unfilled", self.fills_at(order), reason=why))

    def fills_at(self, order):
        """Return when an order is filled, in seconds since the epoch, with bars of an hour."""
        return order.decided + HOUR

    def fills(self):
        """Return the results since the last call."""
        refused, self.refused = self.refused, []
        return super().fills() + refused


def main() -> None:
    """Trade the example bundle over 100 bars of the demo market, bar by bar."""
    bundle, bars = load_bundle(BUNDLE), make_demo_market(assets=2, bars=4000)
    tickers, frame = bundle.manifest.tickers, bundle.manifest.timeframe
    broker = OfficeHoursBroker(tickers, 1e4, bundle.account, bundle.instruments, timeframe=frame)
    trader, first, fills = PaperTrader(bundle, slot="office-hours"), len(bars) - 100, []
    trader.start(bars.slice(first - trader.bars_needed, first), broker.account())
    for number in range(first, len(bars)):
        bar = ClosedBar.of(bars, number)
        broker.next_bar(bar.time, bar.open, bar.hole)
        new = broker.fills()
        fills += [fill.status for fill in new]
        entry = trader.on_bar(bar, new, broker.account())
        broker.submit(entry.orders)
    filled, refused = fills.count("filled"), fills.count("unfilled")
    print(f"{filled} orders filled, {refused} refused; account value {entry.value:,.2f}")


if __name__ == "__main__":
    main()
