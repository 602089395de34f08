"""The interface of brokers: an account, sending orders, and their results.

Orders are market orders that the broker fills at the next bar's open. A sell states units, a buy
states the quote currency to spend; a buy that covers a short position states units. A sell without a
long position is a short sale. Every order has a client id derived from slot, bar and ticker,
so that a repeated order can be recognised.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sweepd.envs.support.errors import InputError

Array = NDArray[np.float64]
Side = Literal["buy", "sell"]
Status = Literal["filled", "unfilled"]
# The `Fill.reason` of an order of the venue's own, which closes a position.
LIQUIDATED = "liquidated: the margin was too small"


@dataclass(frozen=True)
class Order:
    """An order decided at the close of the bar that opened at `decided` (seconds since the epoch).

    units: of a sell or a cover, amount of the asset.
    notional: of a buy, quote currency to spend.
    whole: closes the complete position.
    restart_clock: a sell of the holding rule, whose clock restarts when it is filled.
    """

    client_id: str
    ticker: str
    side: Side
    decided: int
    units: float = 0.0
    notional: float = 0.0
    whole: bool = False
    restart_clock: bool = False

    def adjusted(self, factor: float) -> Order:
        """Return the order after its asset's earlier prices were multiplied by `factor`."""
        return replace(self, units=self.units / factor)


@dataclass(frozen=True)
class Fill:
    """The result of an order. An unfilled order is gone: it is not carried over to a later bar.

    at: seconds since the epoch.
    units: bought (after the fee, which is taken from what is received) or sold.
    notional: quote currency paid, or received before the fee.
    fee: quote currency.
    price: per unit, including slippage, excluding the fee.
    reason: why it is unfilled or partly filled, if the broker says so, or `LIQUIDATED`.
    """

    order: Order
    status: Status
    at: int
    units: float = 0.0
    notional: float = 0.0
    fee: float = 0.0
    price: float = 0.0
    reason: str = ""

    def adjusted(self, factor: float) -> Fill:
        """Return the result after its asset's earlier prices were multiplied by `factor`."""
        order, units = self.order.adjusted(factor), self.units / factor
        return replace(self, order=order, units=units, price=self.price * factor)


@dataclass(frozen=True)
class AccountState:
    """Cash in quote currency, and units by ticker (tickers not held may be missing).

    Units of a short position are negative.
    charges: quote currency that the venue took at the last close without a fill: borrow fees, less
    a debt that it bears.
    late_fees: the venue may charge fees later than with a fill, or other fees than the fill
    reports.
    """

    cash: float
    units: Mapping[str, float]
    late_fees: bool = False
    charges: float = 0.0

    @classmethod
    def of(cls, cash: float, tickers: Sequence[str], units: Array) -> AccountState:
        """Return the state of an account that holds `units`, (N,), of `tickers`."""
        return cls(cash, dict(zip(tickers, units.tolist(), strict=True)))

    def units_of(self, tickers: Sequence[str]) -> Array:
        """Return the units of `tickers`, (N,) float64."""
        return np.array([self.units.get(ticker, 0.0) for ticker in tickers], dtype=np.float64)


class Broker(ABC):
    """A broker that trades on paper. No implementation may place an order with real money.

    paper: what makes its account a paper account, in words; a class that does not say is refused.
    shorts: the account has short positions.
    immediate: orders are filled when they are sent, or at the market's opening (`fills_now`), and
        not at the next bar that the trader processes.
    venue_account: the venue's name of the account, by which two slots on one account are detected;
        None for virtual money.
    untradable: by ticker, why it cannot be traded; its orders are reported as unfilled.
    """

    paper: str = ""
    shorts: bool = False
    immediate: bool
    venue_account: str | None = None
    untradable: Mapping[str, str] = MappingProxyType({})

    def clock_skew(self) -> float | None:
        """Return the seconds that the venue's clock is ahead of this machine's, None if unknown.

        Raises:
            RunError: the venue is out of reach.
        """
        return None

    def fills_now(self) -> bool:
        """Return whether an order would be filled when it is sent: not while a market is closed.

        Raises:
            RunError: the venue is out of reach.
        """
        return self.immediate

    @abstractmethod
    def account(self) -> AccountState:
        """Return what the account holds now."""

    def parts(self, order: Order, price: float) -> Sequence[Order]:
        """Return the order as the orders that the venue accepts, with client ids of their own.

        Args:
            order: of any size.
            price: the ticker's last close.
        """
        del price
        return (order,)

    @abstractmethod
    def submit(self, orders: Sequence[Order]) -> None:
        """Send the orders of one bar.

        Raises:
            ValueError: a client id was sent before.
        """

    @abstractmethod
    def adopt(self, orders: Sequence[Order], *, final: bool = False) -> list[Order]:
        """Take over orders that an earlier process may have sent; `fills` reports them.

        Args:
            orders: orders with unknown results.
            final: missing orders will not be sent again.

        Returns:
            The orders that never arrived.
        """

    @abstractmethod
    def fills(self) -> list[Fill]:
        """Return the results since the last call, one per order with a final result."""


def require_paper(name: str, broker: type[Broker]) -> None:
    """Refuse a class of brokers that does not say why its account is a paper account.

    Args:
        name: the value of --broker.
        broker: the class.

    Raises:
        InputError: its `paper` is empty.
    """
    if not isinstance(broker.paper, str) or not broker.paper.strip():
        raise InputError(
            f"--broker {name}: only paper accounts are traded, and {broker.__name__} does not say "
            'what makes its account one: set its attribute paper, such as paper = "virtual money"'
        )
