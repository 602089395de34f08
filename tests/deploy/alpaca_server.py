"""A loopback server for the part of Alpaca's trading REST API that a market-order trader needs.

It can inject faults. Money is decimal, so the account's holdings are exact.

    python tests/deploy/alpaca_server.py [PORT]  # for `--broker alpaca --url http://127.0.0.1:PORT`
"""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import ROUND_DOWN, Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse

Answer = tuple[int, Any]
NINE = Decimal("0.000000001")
LARGEST = Decimal(200_000)  # USD; larger orders are refused
OPEN = {"new", "partially_filled", "accepted", "pending_new"}


@dataclass
class Fault:
    """A fault of one request: the first one with this method and start of its path.

    Attributes:
        kind: an HTTP status to answer without doing anything; or "lost" (done, but the connection
            closes without an answer), "refused" (the connection closes before anything is done),
            "slow" (done, answered after `seconds`), "text" (the answer is not JSON), "odd" (JSON of
            another form).
    """

    kind: int | str
    method: str = "POST"
    path: str = "/v2/orders"
    seconds: float = 0.0


def class_of(symbol: str) -> str:
    """Return Alpaca's name of an asset's class."""
    return "crypto" if "/" in symbol else "us_equity"


def too_large(cost: Decimal) -> dict[str, Any]:
    """Return the content of the answer to an order above Alpaca's limit."""
    message = f"cost basis {cost:.2f} is greater than maximal amount of order {LARGEST}"
    return {"code": 40310000, "message": message}


@dataclass
class Exchange:
    """The account and the market behind the server.

    Attributes:
        prices: by symbol, BTC/USD for coins and AAPL for shares; half of `spread` is paid on either
            side.
        fee: share of what is received for coins; shares cost none.
        fill_share: share of an order that is filled; the rest of an ioc order is cancelled.
        settle_after: number of requests for an order before it is filled.
        lag: number of 404 answers for an order before it is listed.
        skew: seconds by which the server's clock is ahead.
        untradable: symbols that are listed as inactive.
        unlisted: symbols that are not listed.
        whole_only: symbols of which no fractions are traded.
        is_open: whether the exchanges of shares are; coins are traded always.
        denied: status with which every request is refused, as with wrong keys.
        asked: (method, path) of every request.
    """

    prices: dict[str, Decimal]
    cash: Decimal = Decimal(10_000)
    fee: Decimal = Decimal("0.0025")
    spread: Decimal = Decimal(0)
    minimum: Decimal = Decimal("0.000000001")
    increment: Decimal = NINE
    fill_share: Decimal = Decimal(1)
    settle_after: int = 0
    lag: int = 0
    skew: float = 0.0
    untradable: set[str] = field(default_factory=set)
    unlisted: set[str] = field(default_factory=set)
    whole_only: set[str] = field(default_factory=set)
    is_open: bool = True
    denied: int | None = None
    blocked: bool = False
    units: dict[str, Decimal] = field(default_factory=dict)
    orders: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # by client id, in the order of arrival
    faults: list[Fault] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""

    def __post_init__(self) -> None:
        self.lock = threading.Lock()

    def value(self) -> Decimal:
        """Of the account, in USD."""
        return self.cash + sum((n * self.prices[s] for s, n in self.units.items()), Decimal(0))

    @property
    def waiting(self) -> list[dict[str, Any]]:
        """The orders that wait for the opening."""
        return [order for order in self.orders.values() if order["status"] == "accepted"]

    def open_market(self) -> None:
        """Open the exchanges of shares, and fill what waited for that at the present prices."""
        self.is_open = True
        for order in self.waiting:
            self._fill(order)

    def fault_of(self, method: str, path: str) -> Fault | None:
        """Return and remove the fault of this request, if it has one."""
        for index, fault in enumerate(self.faults):
            if fault.method == method and path.startswith(fault.path):
                return self.faults.pop(index)
        return None

    # ---- answers ----

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Answer:
        """Return status and content for one request."""
        if method == "POST" and path == "/v2/orders":
            return self._submit(body)
        if method == "GET" and path == "/v2/orders:by_client_order_id":
            return self._shown(self.orders.get(query["client_order_id"]))
        if method == "GET" and path.startswith("/v2/orders/"):
            known = (
                order for order in self.orders.values() if order["id"] == path.rpartition("/")[2]
            )
            return self._shown(next(known, None))
        if method == "GET" and path == "/v2/account":
            return 200, self._account()
        if method == "GET" and path == "/v2/positions":
            return 200, [
                self._position(symbol, units) for symbol, units in self.units.items() if units > 0
            ]
        if method == "GET" and path == "/v2/assets":
            wanted = query.get("asset_class", "us_equity")
            return 200, [
                self._asset(symbol)
                for symbol in self.prices
                if symbol not in self.unlisted and class_of(symbol) == wanted
            ]
        if method == "GET" and path == "/v2/clock":
            now = self._now()
            return 200, {
                "timestamp": now,
                "is_open": self.is_open,
                "next_open": now,
                "next_close": now,
            }
        if method == "DELETE" and path.startswith("/v2/orders/"):
            for order in self.orders.values():
                if order["id"] == path.rpartition("/")[2]:
                    if order["status"] not in OPEN:
                        return 422, {
                            "code": 42210000,
                            "message": f"order is already in {order['status']!r} state",
                        }
                    order["status"] = "canceled"
                    return 204, None
            return 404, {"code": 40410000, "message": "order not found"}
        return 404, {"code": 40410000, "message": f"endpoint not found: {method} {path}"}

    def _submit(self, body: dict[str, Any]) -> Answer:
        symbol, side, client = body["symbol"], body["side"], body["client_order_id"]
        if client in self.orders:
            return 422, {"code": 40010001, "message": "client_order_id must be unique"}
        if len(client) > 128:
            return 422, {
                "code": 40010001,
                "message": "client_order_id must be no more than 128 characters",
            }
        if self.blocked:
            return 403, {"code": 40310000, "message": "account is restricted to liquidation only"}
        if symbol not in self.prices or symbol in self.untradable | self.unlisted:
            return 422, {
                "code": 42210000,
                "message": f"asset {symbol!r} is not active or not found",
            }
        share = class_of(symbol) == "us_equity"
        if not share and (body["time_in_force"] not in ("gtc", "ioc") or body["type"] != "market"):
            return 422, {"code": 42210000, "message": "invalid crypto time_in_force"}
        quantity = Decimal(str(body["qty"])) if body.get("qty") is not None else None
        notional = Decimal(str(body["notional"])) if body.get("notional") is not None else None
        if share and (notional is not None or (quantity or Decimal(0)) % 1):
            if body["time_in_force"] != "day" or body["type"] != "market":
                return 422, {"code": 42210000, "message": "fractional orders must be DAY orders"}
            if symbol in self.whole_only:
                message = f'requested asset "{symbol}" is not fractionable'
                return 403, {"code": 40310000, "message": message}
        price = self._price(symbol, side)
        if (quantity is None) == (notional is None):
            return 422, {"code": 42210000, "message": "one of qty or notional is required"}
        if (
            not share
            and quantity is not None
            and (quantity < self.minimum or quantity % self.increment)
        ):
            return 422, {
                "code": 42210000,
                "message": f"qty must be >= {self.minimum} and a multiple of its increment",
            }
        if side == "buy":
            cost = notional if notional is not None else (quantity or Decimal(0)) * price
            least = 1 if share else 10
            if cost < least:
                return 403, {
                    "code": 40310000,
                    "message": f"cost basis must be >= minimal amount of order {least}",
                }
            if cost > LARGEST and not share:
                return 403, too_large(cost)
            if cost > self.cash:
                return 403, {
                    "code": 40310000,
                    "message": f"insufficient balance for USD (requested: {cost}, "
                    f"available: {self.cash})",
                }
        else:
            wanted = quantity if quantity is not None else (notional or Decimal(0)) / price
            held = self.units.get(symbol, Decimal(0))
            if share:  # what waits to be sold cannot be sold again
                held -= sum(
                    Decimal(one["qty"])
                    for one in self.waiting
                    if (one["symbol"], one["side"]) == (symbol, "sell")
                )
            if wanted * price > LARGEST and not share:
                return 403, too_large(wanted * price)
            if wanted > held:
                return 403, {
                    "code": 40310000,
                    "message": f"insufficient balance for {symbol.removesuffix('/USD')} "
                    f"(requested: {wanted}, available: {held})",
                }
        order = {
            "id": str(uuid.uuid4()),
            "client_order_id": client,
            "created_at": self._now(),
            "updated_at": self._now(),
            "submitted_at": self._now(),
            "filled_at": None,
            "asset_id": str(uuid.uuid5(uuid.NAMESPACE_DNS, symbol)),
            "symbol": symbol,
            "asset_class": class_of(symbol),
            "qty": None if quantity is None else str(quantity),
            "notional": None if notional is None else str(notional),
            "filled_qty": "0",
            "filled_avg_price": None,
            "order_class": "",
            "order_type": "market",
            "type": "market",
            "side": side,
            "time_in_force": body["time_in_force"],
            "status": "accepted" if share and not self.is_open else "pending_new",
            "extended_hours": False,
            "asked": 0,
            "hidden": self.lag,
        }
        self.orders[client] = order
        taken = _public(
            order
        )  # the answer to an order says that it was taken, and not yet what became of it
        if self.settle_after == 0 and order["status"] == "pending_new":
            self._fill(order)
        return 200, taken

    def _shown(self, order: dict[str, Any] | None) -> Answer:
        if order is None or order["hidden"] > 0:
            if order is not None:
                order["hidden"] -= 1
            return 404, {"code": 40410000, "message": "order not found"}
        order["asked"] += 1
        if order["status"] == "pending_new" and order["asked"] > self.settle_after:
            self._fill(order)
        return 200, _public(order)

    def _fill(self, order: dict[str, Any]) -> None:
        symbol, side = order["symbol"], order["side"]
        price = self._price(symbol, side)
        wanted = Decimal(order["qty"]) if order["qty"] else (Decimal(order["notional"]) / price)
        filled = (wanted * self.fill_share).quantize(NINE, ROUND_DOWN)
        held = self.units.get(symbol, Decimal(0))
        kept = 1 - (Decimal(0) if order["asset_class"] == "us_equity" else self.fee)
        if side == "buy":
            self.cash -= filled * price
            self.units[symbol] = held + filled * kept
        else:
            self.units[symbol] = held - filled
            self.cash += filled * price * kept
        whole = self.fill_share == 1
        order.update(
            filled_qty=str(filled),
            filled_avg_price=str(price) if filled else None,
            updated_at=self._now(),
            filled_at=self._now() if filled else None,
            status="filled" if whole else "canceled",
        )

    def _price(self, symbol: str, side: str) -> Decimal:
        half = self.spread / 2
        return self.prices[symbol] * (1 + half if side == "buy" else 1 - half)

    def _now(self) -> str:
        return (datetime.now(UTC) + timedelta(seconds=self.skew)).isoformat()

    def _account(self) -> dict[str, Any]:
        return {
            "id": str(uuid.UUID(int=1)),
            "account_number": "PA0000000001",
            "status": "ACTIVE",
            "currency": "USD",
            "crypto_status": "ACTIVE",
            "cash": str(self.cash),
            "equity": str(self.value()),
            "buying_power": str(self.cash),
            "non_marginable_buying_power": str(self.cash),
            "portfolio_value": str(self.value()),
            "trading_blocked": self.blocked,
            "transfers_blocked": False,
            "account_blocked": self.blocked,
            "trade_suspended_by_user": False,
            "shorting_enabled": False,
            "multiplier": "1",
            "created_at": self._now(),
        }

    def _position(self, symbol: str, units: Decimal) -> dict[str, Any]:
        price = self.prices[symbol]
        return {
            "asset_id": str(uuid.uuid5(uuid.NAMESPACE_DNS, symbol)),
            "symbol": symbol.replace("/", ""),
            "exchange": "NASDAQ" if class_of(symbol) == "us_equity" else "CRYPTO",
            "asset_class": class_of(symbol),
            "avg_entry_price": str(price),
            "qty": str(units),
            "qty_available": str(units),
            "side": "long",
            "market_value": str(units * price),
            "cost_basis": str(units * price),
            "unrealized_pl": "0",
            "unrealized_plpc": "0",
            "unrealized_intraday_pl": "0",
            "unrealized_intraday_plpc": "0",
            "current_price": str(price),
            "lastday_price": str(price),
            "change_today": "0",
            "asset_marginable": False,
        }

    def _asset(self, symbol: str) -> dict[str, Any]:
        share = class_of(symbol) == "us_equity"
        common = {
            "id": str(uuid.uuid5(uuid.NAMESPACE_DNS, symbol)),
            "class": class_of(symbol),
            "exchange": "NASDAQ" if share else "CRYPTO",
            "symbol": symbol,
            "name": symbol,
            "status": "inactive" if symbol in self.untradable else "active",
            "tradable": symbol not in self.untradable,
            "marginable": share,
            "shortable": share,
            "easy_to_borrow": share,
            "fractionable": symbol not in self.whole_only,
        }
        if share:  # without sizes and increments
            return common | {"maintenance_margin_requirement": 30, "attributes": []}
        return common | {
            "min_order_size": str(self.minimum),
            "min_trade_increment": str(self.increment),
            "price_increment": "0.01",
        }


def _public(order: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in order.items() if name not in ("asked", "hidden")}


class _Handler(BaseHTTPRequestHandler):
    exchange: Exchange

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_DELETE(self) -> None:
        self._serve("DELETE")

    def _serve(self, method: str) -> None:
        exchange, parsed = self.exchange, urlparse(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        query = {name: values[0] for name, values in parse_qs(parsed.query).items()}
        with exchange.lock:
            exchange.asked.append((method, parsed.path))
            fault = exchange.fault_of(method, parsed.path)
            if fault and fault.kind == "refused":
                self.close_connection = True
                return None
            if fault and isinstance(fault.kind, int):
                return self._send(
                    fault.kind, {"code": fault.kind * 100_000, "message": "told to fail"}
                )
            right = (
                self.headers.get("APCA-API-KEY-ID"),
                self.headers.get("APCA-API-SECRET-KEY"),
            ) == ("key", "secret")
            if exchange.denied == 403:
                return self._send(403, {"code": 40310000, "message": "forbidden."})
            if exchange.denied or not right:
                return self._send(401, {"code": 40110000, "message": "request is not authorized."})
            status, content = exchange.answer(method, parsed.path, query, body)
        if fault and fault.kind == "lost":
            self.close_connection = True
            return None
        if fault and fault.kind == "slow":
            time.sleep(fault.seconds)
        if fault and fault.kind == "odd":
            return self._send(status, {"unheard": "of"})
        return self._send(status, content, text=bool(fault and fault.kind == "text"))

    def _send(self, status: int, content: Any, *, text: bool = False) -> None:
        data = (
            b"<html>gateway</html>"
            if text
            else b""
            if content is None
            else json.dumps(content).encode()
        )
        try:
            self.send_response(status)
            self.send_header("Content-Type", "text/html" if text else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):  # the client has closed the connection
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def serving(exchange: Exchange, port: int = 0) -> Iterator[Exchange]:
    """Serve it on a port, by default a free one; its address is `exchange.url`."""
    handler = type("Handler", (_Handler,), {"exchange": exchange})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    exchange.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield exchange
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    market = {"BTC/USD": Decimal(60_000), "ETH/USD": Decimal(3_000), "LINK/USD": Decimal(15)}
    with serving(Exchange(market), int(sys.argv[1]) if len(sys.argv) > 1 else 0) as made:
        print(made.url, flush=True)
        threading.Event().wait()
