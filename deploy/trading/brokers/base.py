"""What a paper trader needs of a broker: an account, a way to send orders, and reports of what became of them.

Orders are market orders that the broker fills at the next bar's open. A sell names units, a buy names the quote
currency to spend. Every order has a client id derived from slot, bar and ticker, so sending it again can be recognised.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Side = Literal["buy", "sell"]
Status = Literal["filled", "unfilled"]


@dataclass(frozen=True)
class Order:
    """An order decided at the close of the bar that opened at `decided` (seconds since the epoch).

    units: for a sell, how much of the asset. notional: for a buy, how much of the quote currency.
    restart_clock: this sell is the holding rule's, whose clock restarts when it fills.
    """

    client_id: str
    ticker: str
    side: Side
    decided: int
    units: float = 0.0
    notional: float = 0.0
    whole: bool = False
    restart_clock: bool = False


@dataclass(frozen=True)
class Fill:
    """What became of an order. An unfilled one is gone: it is not carried over to a later bar.

    units: bought (after the fee, which is taken from what is received) or sold. notional: quote currency paid, or
    received before the fee. fee: in quote currency. price: per unit, slippage included, fee not. reason: why it is
    unfilled, or filled in part, where the broker says so.
    """

    order: Order
    status: Status
    at: int
    units: float = 0.0
    notional: float = 0.0
    fee: float = 0.0
    price: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class AccountState:
    """Cash in quote currency, and units held by ticker (tickers not held may be absent).

    late_fees: whether the venue may charge fees later than with a fill, or other ones than the fill names.
    """

    cash: float
    units: Mapping[str, float]
    late_fees: bool = False


class Broker(ABC):
    """A broker that trades on paper. No implementation may place an order with real money.

    immediate: whether it fills orders as soon as they are sent, and not only at the next bar. venue_account: the venue's
    name of the account, by which two slots on one account are detected; None for virtual money. untradable: why a
    ticker cannot be traded; orders for it are reported as unfilled.
    """

    immediate: bool
    venue_account: str | None = None
    untradable: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def account(self) -> AccountState:
        """What the account holds now."""

    @abstractmethod
    def submit(self, orders: Sequence[Order]) -> None:
        """Send the orders of one bar. Raises ValueError for a client id that was sent before."""

    @abstractmethod
    def adopt(self, orders: Sequence[Order], *, final: bool = False) -> list[Order]:
        """Take over orders that an earlier process may have sent; `fills` reports them. Returns those that never
        arrived. final: those will not be sent again.
        """

    @abstractmethod
    def fills(self) -> list[Fill]:
        """The results of the orders since the last call, one for each order that is final."""
