"""Alpaca's paper account (https://docs.alpaca.markets): market orders for crypto or US shares.

Every order has a client id, so sending it can be repeated safely. If it is unknown whether an order
arrived (the connection was cut, the server answered 5xx), the order is looked up by that id before
it is sent again, and Alpaca accepts an id only once. An order may be acknowledged some seconds
before it is listed, so the answer to an order is kept, and the lookup is repeated. Quantities are
exact decimals.

Orders for crypto are immediate-or-cancel: what cannot be filled at once is cancelled. Orders for
shares are fractional, which Alpaca allows for orders of the day only. While the market is open they
are filled at once, or cancelled after a while; those of a session's last bar wait at Alpaca for the
next opening, as the environment's wait for the next bar, and their results are known at that bar.

Paper only: every host except Alpaca's paper host and this machine is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import ROUND_DOWN, Decimal
from typing import Any

from sweepd.deploy.trading.brokers.alpaca_api import PAPER_URL, PaperApi, Refused
from sweepd.deploy.trading.brokers.base import AccountState, Broker, Fill, Order
from sweepd.envs.crypto.data.sources import least_skew
from sweepd.envs.crypto.params import Instruments
from sweepd.envs.support.errors import TryAgainLater

CENT = Decimal("0.01")
NINE_DIGITS = Decimal("1e-9")  # Alpaca's finest step; for assets that it does not trade
LONGEST_ID = 128  # characters of a client id; Alpaca rejects longer ones
FINAL = frozenset({"filled", "canceled", "expired", "rejected", "done_for_day", "replaced"})
LOOKS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # seconds before further lookups of an unlisted order


@dataclass(frozen=True)
class OrderRules:
    """Alpaca's rules for market orders of one class of assets.

    asset_class: Alpaca's name of it.
    time_in_force: of orders.
    smallest_buy: USD.
    largest_part: USD, of one order.
    has_hours: whether orders wait for the opening of the market.
    """

    asset_class: str
    time_in_force: str
    smallest_buy: Decimal
    largest_part: float
    has_hours: bool


# Alpaca rejects crypto orders above 200,000 USD, and a sell's price is known when it is filled.
COIN_ORDERS = OrderRules("crypto", "ioc", Decimal(10), 180_000.0, has_hours=False)
SHARE_ORDERS = OrderRules("us_equity", "day", Decimal(1), math.inf, has_hours=True)


@dataclass(frozen=True)
class Asset:
    """Alpaca's record of an asset.

    refusal: why it cannot be traded, empty if it can. step: of quantities. minimum: of an order, in
    units.
    """

    refusal: str = ""
    step: Decimal = NINE_DIGITS
    minimum: Decimal = NINE_DIGITS


@dataclass(frozen=True)
class Record:
    """Alpaca's record of an order.

    filled: units. price: per unit, on average. at: seconds since the epoch.
    """

    id: str
    status: str
    filled: Decimal
    price: Decimal
    at: int

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Record:
        """Parse Alpaca's JSON.

        Raises:
            KeyError, TypeError, ValueError: it is not a record of an order.
        """
        moment = found.get("filled_at") or found.get("updated_at") or found["submitted_at"]
        filled = Decimal(found.get("filled_qty") or "0")
        price = Decimal(found["filled_avg_price"]) if filled else Decimal(0)
        return cls(str(found["id"]), str(found["status"]), filled, price, int(_seconds(moment)))


@dataclass
class _Sent:
    """An order that was sent, and its newest record, None before the first one."""

    order: Order
    record: Record | None = None


class AlpacaBroker(Broker):
    """The paper account of the keys.

    Args:
        symbols: Alpaca's symbol (BTC/USD, AAPL) of every ticker that may be traded.
        rules: `COIN_ORDERS` or `SHARE_ORDERS`.
        key: API key of the account.
        secret: its secret.
        fee: fraction taken from what is received.
        url: address of the API.
        patience: seconds for which a request is repeated, with growing pauses, before
            `TryAgainLater` is raised, and after which an unfinished order is cancelled.
        timeout: seconds to wait for one answer.
        sleep: waits that many seconds.
    """

    paper = "Alpaca's paper API, the only host besides this machine that it connects to"
    immediate = True

    def __init__(
        self,
        symbols: Mapping[str, str],
        rules: OrderRules = COIN_ORDERS,
        *,
        key: str,
        secret: str,
        fee: float = 0.0025,
        url: str = PAPER_URL,
        patience: float = 60.0,
        timeout: float = 10.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        api = PaperApi(key, secret, url=url, patience=patience, timeout=timeout, sleep=sleep)
        self._client, self._ask = api.client, api.ask
        self._symbols, self._rules = dict(symbols), rules
        self._fee = Decimal(str(fee))
        self._patience, self._sleep = patience, sleep
        self.venue_account = self._ask(
            "the account", lambda: str(self._client.get_account()["account_number"])
        )
        self._assets = self._read_assets()
        self.untradable = {
            ticker: self._assets[symbol].refusal
            for ticker, symbol in self._symbols.items()
            if self._assets[symbol].refusal
        }
        self._open: dict[str, _Sent] = {}
        self._settled: list[Fill] = []

    def account(self) -> AccountState:
        """Return cash in USD and units by ticker, rounded down to the step that can be sold."""
        cash = self._ask("the account", lambda: Decimal(self._client.get_account()["cash"]))
        units = self._positions()
        sellable = {
            ticker: self._in_steps(symbol, units[symbol])
            for ticker, symbol in self._symbols.items()
        }
        units_held = {ticker: float(amount) for ticker, amount in sellable.items()}
        return AccountState(float(cash), units_held, late_fees=True)

    def parts(self, order: Order, price: float) -> Sequence[Order]:
        """See `Broker.parts`: equal orders of at most `OrderRules.largest_part`.

        The last part of a sell that closes a position closes what is left of it.
        """
        worth = order.notional or order.units * price
        count = math.ceil(worth / self._rules.largest_part)
        if count <= 1:
            return (order,)
        return tuple(
            replace(
                order,
                client_id=f"{order.client_id}-{number}",
                units=order.units / count,
                notional=order.notional / count,
                whole=order.whole and number == count,
            )
            for number in range(1, count + 1)
        )

    def submit(self, orders: Sequence[Order]) -> None:
        """Send the orders of one bar, sells first.

        Raises:
            ValueError: a client id was sent before.
            TryAgainLater: Alpaca is out of reach; `adopt` then finds out which orders arrived.
        """
        for order in orders:
            if order.client_id in self._open:
                raise ValueError(f"order {order.client_id} was sent before")
        # Quantities of sells are checked against exact positions; buys need none.
        sells = any(order.side == "sell" for order in orders)
        held = self._positions() if sells else {}
        # "sell" > "buy": sells first, so that their proceeds can be spent.
        for order in sorted(orders, key=lambda order: order.side, reverse=True):
            size, why = self._size(order, held)
            if size is None:
                self._settled.append(Fill(order, "unfilled", int(time.time()), reason=why))
            else:
                if order.side == "sell":  # the next part of the same position sells the rest
                    held[self._symbols[order.ticker]] -= Decimal(size["qty"])
                self._send(order, size)

    def adopt(self, orders: Sequence[Order], *, final: bool = False) -> list[Order]:
        """Take over orders that an earlier process may have sent; `fills` reports them.

        Args:
            orders: orders with unknown results.
            final: missing orders will not be sent again, so the lookup is repeated before an order
                counts as missing. (Sending an order twice is harmless: Alpaca accepts an id once.)

        Returns:
            The orders that never arrived.
        """
        missing = list(orders)
        for pause in (0.0, *(LOOKS if final else ())):
            if missing and pause:
                self._sleep(pause)
            found = {order.client_id: self._look(_Sent(order)) for order in missing}
            self._open |= {
                order.client_id: _Sent(order, record)
                for order in missing
                if (record := found[order.client_id])
            }
            missing = [order for order in missing if found[order.client_id] is None]
        return missing

    def fills(self) -> list[Fill]:
        """Return the results since the last call.

        Waits for unfinished orders, and cancels them after `patience` seconds. While the market is
        closed, unfinished orders wait for its opening.
        """
        settled, self._settled = self._settled, []
        waiting = bool(self._open) and not self.fills_now()
        for client_id, sent in list(self._open.items()):
            fill = self._result(sent) if waiting else self._settle(sent)
            if fill is not None:
                settled.append(fill)
                del self._open[client_id]
        return settled

    def fills_now(self) -> bool:
        """See `Broker.fills_now`."""
        if not self._rules.has_hours:
            return True
        return self._ask("the market's hours", lambda: bool(self._client.get_clock()["is_open"]))

    def instruments(self, tickers: Sequence[str]) -> Instruments:
        """Return minimum orders (USD) and increments of the account's assets."""
        records = [self._assets[self._symbols[ticker]] for ticker in tickers]
        return Instruments(
            tuple(float(self._rules.smallest_buy) for _ in records),
            tuple(float(record.step) for record in records),
        )

    def clock_skew(self) -> float:
        """See `Broker.clock_skew`. The request is not repeated: a slow answer proves little."""
        before = time.time()
        moment = self._ask(
            "the clock", lambda: _seconds(self._client.get_clock()["timestamp"]), patience=0.0
        )
        return least_skew(moment, moment, before, time.time())

    # ---- orders ----

    def _size(self, order: Order, held: Mapping[str, Decimal]) -> tuple[dict[str, str] | None, str]:
        """Return the order's size as fields of a request, or None and why it cannot be sent."""
        symbol = self._symbols[order.ticker]
        if order.ticker in self.untradable:
            return None, self.untradable[order.ticker]
        if order.side == "buy":
            notional = Decimal(repr(order.notional)).quantize(CENT, ROUND_DOWN)
            smallest = self._rules.smallest_buy
            if notional < smallest:
                return None, f"a buy of {notional} USD is below the minimum of {smallest}"
            return {"notional": f"{notional:f}"}, ""
        asset, have = self._assets[symbol], held.get(symbol, Decimal(0))
        # A complete position is sold to Alpaca's last digit, which a float may miss.
        units = have if order.whole else min(have, Decimal(repr(order.units)))
        units = self._in_steps(symbol, units)
        if units < asset.minimum or units == 0:
            return None, f"a sell of {units:f} {symbol} is below the minimum of {asset.minimum:f}"
        return {"qty": f"{units:f}"}, ""

    def _send(self, order: Order, size: Mapping[str, str]) -> None:
        fields = {
            "symbol": self._symbols[order.ticker],
            "side": order.side,
            "type": "market",
            "time_in_force": self._rules.time_in_force,
            "client_order_id": venue_id(order.client_id),
            **size,  # text: alpaca-py's own requests convert to floats, which have too few digits
        }
        sent = self._open[order.client_id] = _Sent(order)
        try:
            sent.record = self._ask(
                f"order {order.client_id}",
                lambda: Record.of(self._client.post("/orders", fields)),
                arrived=lambda: self._look(sent, patient=False),
            )
        except Refused as refused:
            if "unique" in refused.message:  # it has arrived before
                return
            del self._open[order.client_id]
            # An earlier attempt may have arrived, and what is refused be its repetition, in words
            # that cannot be read.
            if self.adopt([order], final=not refused.readable):
                reason = refused.message
                self._settled.append(Fill(order, "unfilled", int(time.time()), reason=reason))

    def _look(self, sent: _Sent, *, patient: bool = True) -> Record | None:
        """Return Alpaca's record of an order, None if it is not listed."""
        order, known = sent.order, sent.record

        def ask() -> Record:
            if known is not None:
                return Record.of(self._client.get_order_by_id(known.id))
            return Record.of(self._client.get_order_by_client_id(venue_id(order.client_id)))

        try:
            return self._ask(f"order {order.client_id}", ask, patience=None if patient else 0.0)
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def _result(self, sent: _Sent) -> Fill | None:
        """Return the result of an order, None if it has none yet."""
        sent.record = self._look(sent) or sent.record
        if sent.record is None or sent.record.status not in FINAL:
            return None
        return self._fill(sent.order, sent.record)

    def _settle(self, sent: _Sent) -> Fill:
        """Return the result of an order that Alpaca has accepted."""
        order, record = sent.order, sent.record
        until, pause, cancelled = time.monotonic() + self._patience, 0.05, False
        # An acknowledged order may be listed seconds later, so a 404 alone means nothing.
        looks = iter(LOOKS)
        while record is None or record.status not in FINAL:
            if time.monotonic() > until + self._patience:
                raise TryAgainLater(f"order {order.client_id} is still open after its cancellation")
            if record is not None and time.monotonic() > until and not cancelled:
                self._cancel(record.id)
                cancelled = True
            self._sleep(pause)
            pause = min(2 * pause, 2.0)
            record = self._look(sent)
            while record is None and (wait := next(looks, None)) is not None:
                self._sleep(wait)
                record = self._look(sent)
            if record is None:
                return Fill(order, "unfilled", int(time.time()), reason="Alpaca no longer lists it")
            sent.record = record
        return self._fill(order, record)

    def _cancel(self, order_id: str) -> None:
        with contextlib.suppress(Refused):  # it has finished; the next lookup has the result
            self._ask("a cancellation", lambda: self._client.cancel_order_by_id(order_id))

    def _fill(self, order: Order, found: Record) -> Fill:
        if not found.filled:
            return Fill(order, "unfilled", found.at, reason=f"Alpaca's status: {found.status}")
        notional = found.filled * found.price
        # Alpaca takes the fee from what is received: units of a buy, cash of a sell.
        received = found.filled * (1 - self._fee) if order.side == "buy" else found.filled
        return Fill(
            order,
            "filled",
            found.at,
            float(received),
            float(notional),
            float(notional * self._fee),
            float(found.price),
            reason="" if found.status == "filled" else f"filled in part, then {found.status}",
        )

    # ---- positions, assets, requests ----

    def _positions(self) -> dict[str, Decimal]:
        """Return units by symbol; positions are listed as BTCUSD, orders as BTC/USD."""
        units = self._ask(
            "the positions",
            lambda: {
                one["symbol"].replace("/", ""): Decimal(one["qty"])
                for one in self._client.get_all_positions()
            },
        )
        return {
            symbol: units.get(symbol.replace("/", ""), Decimal(0))
            for symbol in self._symbols.values()
        }

    def _in_steps(self, symbol: str, units: Decimal) -> Decimal:
        """Return `units` rounded down to the asset's step."""
        step = self._assets[symbol].step
        return units // step * step

    def _read_assets(self) -> dict[str, Asset]:
        """Return an asset for every symbol.

        Symbols that Alpaca does not list, or lists as inactive or not tradable, are not tradable;
        the increments of such records are not read, because they may be empty.
        """
        from alpaca.trading.enums import AssetClass
        from alpaca.trading.requests import GetAssetsRequest

        wanted = GetAssetsRequest(asset_class=AssetClass(self._rules.asset_class))

        def read() -> dict[str, Asset]:
            return {
                record["symbol"]: self._asset(record)
                for record in self._client.get_all_assets(wanted)
                if record["symbol"] in self._symbols.values()
                and record["tradable"]
                and record["status"] == "active"
            }

        found = self._ask("the assets", read)
        return {
            symbol: found.get(symbol, Asset(refusal=f"Alpaca does not trade {symbol}"))
            for symbol in self._symbols.values()
        }

    def _asset(self, record: Mapping[str, Any]) -> Asset:
        """Parse Alpaca's record of an asset that is traded."""
        if self._rules.has_hours:  # shares have one step, and no record of it
            symbol = record["symbol"]
            refusal = f"Alpaca trades only whole shares of {symbol}, and orders are in fractions"
            return Asset(refusal="" if record["fractionable"] else refusal)
        return Asset(
            step=Decimal(str(record["min_trade_increment"])),
            minimum=Decimal(str(record["min_order_size"])),
        )


def venue_id(client_id: str) -> str:
    """Return the client id for Alpaca: the same, or a prefix with a hash if it is too long."""
    if len(client_id) <= LONGEST_ID:
        return client_id
    digest = hashlib.sha256(client_id.encode()).hexdigest()[:32]
    return f"{client_id[: LONGEST_ID - len(digest) - 1]}-{digest}"


def _seconds(text: str) -> float:
    """Return a timestamp of Alpaca as seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()
