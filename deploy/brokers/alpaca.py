"""Alpaca's paper account (https://docs.alpaca.markets): market orders for crypto, through alpaca-py.

An order's client id makes sending it safe to repeat. Whenever it is unknown whether an order arrived (the line was cut,
the server answered 5xx), Alpaca is asked for that id before anything is sent again, and Alpaca itself takes an id only
once. Orders are immediate-or-cancel: what can't be filled at once is cancelled, nothing lies in wait for a later bar.

Paper only: any host but Alpaca's paper one, or this machine, is refused.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import ROUND_DOWN, Decimal
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter

from deploy.brokers.base import AccountState, Broker, Fill, Order
from envs.crypto.params import Instruments
from envs.errors import InputError, TryAgainLater
from envs.invocation import install_extra

PAPER_URL = "https://paper-api.alpaca.markets"
SMALLEST_BUY = Decimal(10)  # USD; Alpaca rejects crypto buys below
CENT = Decimal("0.01")
FINAL = frozenset({"filled", "canceled", "expired", "rejected", "done_for_day", "replaced"})
LONGEST_PAUSE = 15.0
Result = TypeVar("Result")


class Refused(Exception):
    """Alpaca answered no: status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class AlpacaBroker(Broker):
    """The paper account that the keys belong to.

    symbols: Alpaca's symbol (BTC/USD) of every ticker that may be traded. fee: share taken from what is received.
    patience: seconds that a request is repeated, with growing pauses, before `TryAgainLater`; and that an order may
    take to be done before it is cancelled. timeout: seconds to wait for one answer.
    """

    immediate = True

    def __init__(
        self,
        symbols: Mapping[str, str],
        *,
        key: str,
        secret: str,
        fee: float = 0.0025,
        url: str = PAPER_URL,
        patience: float = 60.0,
        timeout: float = 10.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        check_url(url)
        try:
            from alpaca.trading.client import TradingClient
        except ImportError:
            raise InputError(f"--broker alpaca needs alpaca-py: {install_extra('alpaca')}") from None
        self._symbols = dict(symbols)
        self._fee = Decimal(str(fee))
        self._patience, self._sleep = patience, sleep
        self._client = TradingClient(key, secret, paper=True, raw_data=True, url_override=url.rstrip("/"))
        # alpaca-py has no timeouts, and repeats a POST by itself: here every request ends, and repeating is `_ask`'s.
        self._client._retry = 0
        for scheme in ("https://", "http://"):
            self._client._session.mount(scheme, _Timely(timeout))
        self.account_name = str(self._ask("the account", lambda: self._client.get_account())["account_number"])
        self._assets = self._read_assets()
        self._open: dict[str, Order] = {}
        self._settled: list[Fill] = []

    def account(self) -> AccountState:
        """Cash in USD, and units by ticker. Less than the smallest step of a quantity, which fees leave and nobody can
        sell, is nothing.
        """
        cash = self._ask("the account", lambda: self._client.get_account())["cash"]
        units = self._positions()
        sellable = {ticker: self._in_steps(symbol, units[symbol]) for ticker, symbol in self._symbols.items()}
        return AccountState(float(cash), {ticker: float(amount) for ticker, amount in sellable.items()})

    def submit(self, orders: Sequence[Order]) -> None:
        """Send the orders of one bar, sells first. Raises ValueError for an id that is out already, TryAgainLater where
        Alpaca is not to be reached: what was not sent then, `adopt` tells.
        """
        for order in orders:
            if order.client_id in self._open:
                raise ValueError(f"order {order.client_id} was sent before")
        held = self._positions() if any(order.side == "sell" for order in orders) else {}
        for order in sorted(orders, key=lambda order: order.side, reverse=True):
            size, why = self._size(order, held)
            if size is None:
                self._settled.append(Fill(order, "unfilled", int(time.time()), reason=why))
            else:
                self._send(order, size)

    def adopt(self, orders: Sequence[Order]) -> list[Order]:
        """Take over orders that an earlier process may have sent: their fills are reported by `fills`. Returns those
        that never arrived.
        """
        missing = []
        for order in orders:
            if self._find(order) is None:
                missing.append(order)
            else:
                self._open[order.client_id] = order
        return missing

    def fills(self) -> list[Fill]:
        """What became of the orders since the last call. Waits for those that are not done, and cancels what takes
        longer than `patience`.
        """
        settled, self._settled = self._settled, []
        for client_id, order in list(self._open.items()):
            settled.append(self._settle(order))
            del self._open[client_id]
        return settled

    def instruments(self, tickers: Sequence[str]) -> Instruments:
        """Minimum orders (USD) and increments, as the account's asset records have them."""
        records = [self._assets[self._symbols[ticker]] for ticker in tickers]
        return Instruments(
            tuple(float(SMALLEST_BUY) for _ in records), tuple(float(r["min_trade_increment"]) for r in records)
        )

    def clock_skew(self) -> float:
        """Seconds that Alpaca's clock is ahead of this machine's, to within half of the time an answer takes."""
        before = time.time()
        text = self._ask("the clock", lambda: self._client.get_clock())["timestamp"]
        return _epoch(text) - (before + time.time()) / 2

    # ---- orders ----

    def _size(self, order: Order, held: Mapping[str, Decimal]) -> tuple[dict[str, float] | None, str]:
        """What to order, as Alpaca wants it; or None and why nothing can be."""
        symbol = self._symbols[order.ticker]
        if order.side == "buy":
            notional = Decimal(repr(order.notional)).quantize(CENT, ROUND_DOWN)
            if notional < SMALLEST_BUY:
                return None, f"a buy of {notional} USD is below the minimum of {SMALLEST_BUY}"
            return {"notional": float(notional)}, ""
        asset, have = self._assets[symbol], held.get(symbol, Decimal(0))
        # A whole position is sold to the last digit that Alpaca holds, which a float may miss.
        units = have if order.whole else min(have, Decimal(repr(order.units)))
        units = self._in_steps(symbol, units)
        if units < Decimal(str(asset["min_order_size"])) or units == 0:
            return None, f"a sell of {units} {symbol} is below the minimum of {asset['min_order_size']}"
        return {"qty": float(units)}, ""

    def _send(self, order: Order, size: Mapping[str, float]) -> None:
        from alpaca.trading.enums import OrderSide, TimeInForce
        from alpaca.trading.requests import MarketOrderRequest

        request = MarketOrderRequest(
            symbol=self._symbols[order.ticker],
            side=OrderSide.BUY if order.side == "buy" else OrderSide.SELL,
            time_in_force=TimeInForce.IOC,
            client_order_id=order.client_id,
            **size,
        )
        self._open[order.client_id] = order
        try:
            self._ask(
                f"order {order.client_id}",
                lambda: self._client.submit_order(request),
                arrived=lambda: self._find(order, patient=False) is not None,
            )
        except Refused as refused:
            if "client_order_id" in refused.message:  # it had arrived before
                return
            del self._open[order.client_id]
            self._settled.append(Fill(order, "unfilled", int(time.time()), reason=refused.message))

    def _find(self, order: Order, *, patient: bool = True) -> dict[str, Any] | None:
        """Alpaca's record of an order; None where it never arrived."""
        try:
            found: dict[str, Any] = self._ask(
                f"order {order.client_id}",
                lambda: self._client.get_order_by_client_id(order.client_id),
                patience=None if patient else 0.0,
            )
        except Refused as refused:
            if refused.status == 404:
                return None
            raise
        return found

    def _settle(self, order: Order) -> Fill:
        until, pause, cancelled = time.monotonic() + self._patience, 0.05, False
        while True:
            found = self._find(order)
            if found is None:
                return Fill(order, "unfilled", int(time.time()), reason="Alpaca does not know it any more")
            if found["status"] in FINAL:
                return self._fill(order, found)
            if time.monotonic() > until and not cancelled:
                self._cancel(found["id"])
                cancelled = True
            elif time.monotonic() > until + self._patience:
                raise TryAgainLater(f"order {order.client_id} stays {found['status']}, though it was cancelled")
            self._sleep(pause)
            pause = min(2 * pause, 2.0)

    def _cancel(self, order_id: str) -> None:
        with contextlib.suppress(Refused):  # it was done meanwhile: the next look says how
            self._ask("a cancellation", lambda: self._client.cancel_order_by_id(order_id))

    def _fill(self, order: Order, found: Mapping[str, Any]) -> Fill:
        filled = Decimal(found["filled_qty"] or "0")
        at = int(_epoch(found["filled_at"] or found["updated_at"] or found["submitted_at"]))
        if not filled:
            return Fill(order, "unfilled", at, reason=f"Alpaca's status: {found['status']}")
        price = Decimal(found["filled_avg_price"])
        notional = filled * price
        received = filled * (1 - self._fee) if order.side == "buy" else filled
        return Fill(
            order, "filled", at, float(received), float(notional), float(notional * self._fee), float(price),
            reason="" if found["status"] == "filled" else f"only a part of it: {found['status']}",
        )  # fmt: skip

    # ---- what Alpaca knows ----

    def _positions(self) -> dict[str, Decimal]:
        """Units by symbol. Positions are listed as BTCUSD, orders as BTC/USD."""
        listed = self._ask("the positions", lambda: self._client.get_all_positions())
        units = {position["symbol"].replace("/", ""): Decimal(position["qty"]) for position in listed}
        return {symbol: units.get(symbol.replace("/", ""), Decimal(0)) for symbol in self._symbols.values()}

    def _in_steps(self, symbol: str, units: Decimal) -> Decimal:
        """As much of it as the asset's smallest step allows."""
        step = Decimal(str(self._assets[symbol]["min_trade_increment"]))
        return units // step * step

    def _read_assets(self) -> dict[str, dict[str, Any]]:
        """The record of every symbol. Raises InputError for one that can't be traded."""
        from alpaca.trading.enums import AssetClass
        from alpaca.trading.requests import GetAssetsRequest

        listed = self._ask(
            "the assets", lambda: self._client.get_all_assets(GetAssetsRequest(asset_class=AssetClass.CRYPTO))
        )
        records = {record["symbol"]: record for record in listed}
        for ticker, symbol in self._symbols.items():
            if not records.get(symbol, {}).get("tradable"):
                raise InputError(f"{ticker}: Alpaca does not trade {symbol}")
        return {symbol: records[symbol] for symbol in self._symbols.values()}

    def _ask(
        self,
        what: str,
        call: Callable[[], Any],
        *,
        arrived: Callable[[], bool] | None = None,
        patience: float | None = None,
    ) -> Any:
        """The answer, asked for again while the server is busy or away.

        arrived: where repeating isn't harmless, whether the request was carried out although no answer came. Raises
        `Refused` for an answer that says no, TryAgainLater when patience is at its end.
        """
        patience = self._patience if patience is None else patience
        began, pause = time.monotonic(), 0.25
        while True:
            try:
                return _answer(call)
            except _Away as away:
                if time.monotonic() - began >= patience:
                    raise TryAgainLater(f"Alpaca does not answer about {what}: {away}") from None
                self._sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            with contextlib.suppress(TryAgainLater):  # still away: the loop counts the time
                if arrived is not None and arrived():
                    return None


class _Away(Exception):
    """No answer, or one that says to come back later."""


def _answer(call: Callable[[], Result]) -> Result:
    from alpaca.common.exceptions import APIError

    try:
        return call()
    except APIError as error:
        status = int(error.status_code or 0)
        try:
            message = str(json.loads(str(error))["message"])
        except (ValueError, KeyError, TypeError):
            message = f"status {status}"
        if status == 429 or status >= 500:
            raise _Away(message) from None
        if status in (401, 403) and "forbidden" in message.lower():
            raise InputError("Alpaca refuses the keys; set those of a paper account") from None
        raise Refused(status, message) from None
    except (requests.RequestException, ValueError) as error:  # ValueError: an answer that is no JSON
        raise _Away(type(error).__name__) from None


class _Timely(HTTPAdapter):
    """No request waits for ever."""

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self._timeout = timeout

    def send(self, request: requests.PreparedRequest, *arguments: Any, **keywords: Any) -> requests.Response:
        keywords["timeout"] = keywords.get("timeout") or self._timeout
        return super().send(request, *arguments, **keywords)


def check_url(url: str) -> None:
    """Raise InputError for any host but Alpaca's paper one over https, or this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        own = ipaddress.ip_address(host).is_loopback
    except ValueError:
        own = host == "localhost"
    paper = parts.scheme == "https" and host == urlsplit(PAPER_URL).hostname and parts.port in (None, 443)
    if parts.username or parts.password or not (paper or (own and parts.scheme in ("http", "https"))):
        raise InputError(f"--url {url!r} is refused: only {PAPER_URL} and this machine may be traded on")


def _epoch(text: str) -> float:
    """Seconds since the epoch of Alpaca's timestamps, which may have nanoseconds."""
    head, dot, rest = text.replace("Z", "+00:00").partition(".")
    if dot:
        digits = len(rest) - len(rest.lstrip("0123456789"))
        text = f"{head}.{rest[:digits][:6]:0<6}{rest[digits:]}"
    else:
        text = head
    return datetime.fromisoformat(text).timestamp()
