"""An account at a broker, as a trader sees it: readings at a bar's close, and sent orders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.trading.brokers.base import AccountState, Broker, Fill, Order
from sweepd.deploy.trading.brokers.sim import SimBroker, sim_broker
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.flows import Flow


@dataclass(frozen=True)
class Reading:
    """What a venue says once a bar has closed.

    fills: results since the last reading.
    holdings: the account after them.
    """

    fills: tuple[Fill, ...]
    holdings: AccountState


class Venue:
    """A broker's account that trades a bundle.

    Args:
        broker: where it trades.
        bundle: what it trades.
        remake: makes a broker of virtual money for another bundle.
    """

    def __init__(
        self, broker: Broker, bundle: Bundle, remake: Callable[[Bundle], Broker] = sim_broker
    ) -> None:
        self.broker, self._bundle, self._remake = broker, bundle, remake

    @classmethod
    def virtual(cls, bundle: Bundle, cash: float | None = None) -> Venue:
        """Return an account of virtual money; `cash` is by default the bundle's initial cash."""
        return cls(sim_broker(bundle, cash), bundle)

    def reading(
        self, bar: ClosedBar, tickers: Sequence[str], transfer: Flow | None = None
    ) -> Reading:
        """Return what the account says at the close of a bar; virtual money is traded here.

        Args:
            bar: the closed bar, with the assets in the order of `tickers`.
            tickers: all assets.
            transfer: into an account of virtual money.
        """
        if isinstance(self.broker, SimBroker):
            own = bar.in_order(tickers, self._bundle.manifest.tickers)
            # Orders of the last close are filled at this open, before the trader sees the bar.
            self.broker.next_bar(own.time, own.open, own.hole)
            self.broker.close_bar(own.time, own.close, own.hole)
            self.broker.transfer(transfer or Flow())
        return Reading(tuple(self.broker.fills()), self.broker.account())

    def submit(self, orders: Sequence[Order]) -> tuple[Fill, ...]:
        """Send orders. Returns the results that are known at once."""
        self.broker.submit(orders)
        return tuple(self.broker.fills()) if self.broker.immediate else ()

    def follow(self, bundle: Bundle) -> None:
        """Trade another bundle: fees and order of tickers of virtual money are those of a bundle."""
        if bundle.hash != self._bundle.hash and isinstance(self.broker, SimBroker):
            holdings, broker = self.broker.account(), self._remake(bundle)
            assert isinstance(broker, SimBroker)
            self.broker = broker
            self.restore(holdings)
        self._bundle = bundle

    def restore(self, holdings: AccountState) -> None:
        """Set virtual money to what it was; a venue knows its own account."""
        if isinstance(self.broker, SimBroker):
            self.broker.restore({"cash": holdings.cash, "units": holdings.units})

    def adjust(self, factors: Mapping[str, float]) -> None:
        """Follow a change of units: `factors` of earlier prices, by ticker."""
        if isinstance(self.broker, SimBroker):
            tickers = self._bundle.manifest.tickers
            self.broker.adjust(np.array([factors.get(ticker, 1.0) for ticker in tickers]))
