"""A local web server with Alpaca's and Binance's bar APIs that fails on request."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse

import numpy as np

Failure = int | str | tuple[int, dict[str, str]]


class Market:
    """State of the server.

    Attributes:
        base: (n, 6) rows of the shortest bars.
        failures: one is taken from the front per request: a status, a status with headers, "cut"
            (a truncated answer), "hang up" (no answer) or "text" (not JSON).
        now: the time at which Alpaca's bars are asked for; later ones are not there yet.
    """

    def __init__(
        self, rows: np.ndarray, base: int, symbols: tuple[str, ...] = ("BTC/USD", "ETH/USD")
    ) -> None:
        self.rows, self.base, self.symbols = rows, base, symbols
        self.failures: list[Failure] = []
        self.asked: list[dict[str, str]] = []
        self.url = ""
        self.page = 1000
        self.now: Callable[[], float] = lambda: math.inf

    def bars(self, step: int) -> np.ndarray:
        """Return bars of `step` seconds, by plain loops instead of the code under test."""
        merged: dict[int, list[float]] = {}
        for at, o, h, low, c, v in self.rows:
            key = int(at) // step * step
            if key not in merged:
                merged[key] = [o, h, low, c, v]
            else:
                bar = merged[key]
                merged[key] = [bar[0], max(bar[1], h), min(bar[2], low), c, bar[4] + v]
        return np.array([[key, *bar] for key, bar in merged.items()])

    def stocks(self, query: dict[str, str], keys: tuple[str | None, ...]) -> tuple[int, Any]:
        """Answer as Alpaca's history of shares, of which only closed bars of IEX are there."""
        if keys != ("key", "secret"):
            return 403, {"message": "forbidden."}
        if (query.get("feed"), query.get("adjustment")) != ("iex", "split"):
            return 403, {"message": "subscription does not permit querying recent SIP data"}
        return self.alpaca(query)

    def alpaca(self, query: dict[str, str]) -> tuple[int, Any]:
        if query["symbols"] not in self.symbols:
            return 400, {"message": f"invalid symbol: {query['symbols']}"}
        step = {"1Min": 60, "5Min": 300, "15Min": 900, "30Min": 1800, "1Hour": 3600}[
            query["timeframe"]
        ]
        first, last = (datetime.fromisoformat(query[name]).timestamp() for name in ("start", "end"))
        rows = self.bars(step)
        rows = rows[(rows[:, 0] >= first) & (rows[:, 0] <= last)]
        rows = rows[rows[:, 0] + step <= self.now()]
        offset = int(query.get("page_token", "p0")[1:])
        limit = min(int(query["limit"]), self.page)
        names = "tohlcv"
        bars = [
            {name: (_text(row[0]) if name == "t" else row[i]) for i, name in enumerate(names)}
            | {"n": 1, "vw": row[1]}
            for row in rows[offset : offset + limit].tolist()
        ]
        token = f"p{offset + limit}" if offset + limit < len(rows) else None
        return 200, {"bars": {query["symbols"]: bars} if bars else {}, "next_page_token": token}

    def klines(self, query: dict[str, str]) -> tuple[int, Any]:
        rows = self.bars({"5m": 300, "1h": 3600}[query["interval"]])
        rows = rows[rows[:, 0] * 1000 >= int(query["startTime"])][
            : min(int(query["limit"]), self.page)
        ]
        return 200, [
            [int(row[0]) * 1000, *(str(value) for value in row[1:])] for row in rows.tolist()
        ]

    def exchange_info(self) -> tuple[int, Any]:
        symbols = [
            {
                "symbol": name.replace("/", ""),
                "baseAsset": name.split("/")[0],
                "quoteAsset": name.split("/")[1],
                "status": "TRADING",
                "isSpotTradingAllowed": True,
                "filters": [],
                "permissions": ["SPOT"],
            }
            for name in self.symbols
        ]
        return 200, {"timezone": "UTC", "serverTime": 1, "rateLimits": [], "symbols": symbols}


def _text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def serving(market: Market) -> Iterator[Market]:
    """Serve on a free port of 127.0.0.1 and set `market.url`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parsed = urlparse(self.path)
            query = {name: values[0] for name, values in parse_qs(parsed.query).items()}
            market.asked.append({"path": parsed.path, **query})
            failure = market.failures.pop(0) if market.failures else None
            if failure == "hang up":
                self.close_connection = True
                return
            headers: dict[str, str] = {}
            if parsed.path.endswith("/v2/stocks/bars"):
                names = ("APCA-API-KEY-ID", "APCA-API-SECRET-KEY")
                code, answer = market.stocks(query, tuple(map(self.headers.get, names)))
            elif parsed.path.endswith("/crypto/us/bars"):
                code, answer = market.alpaca(query)
            elif parsed.path.endswith("/exchangeInfo"):
                code, answer = market.exchange_info()
            elif parsed.path.endswith("/klines"):
                code, answer = market.klines(query)
            else:
                code, answer = 404, {"message": "not here"}
            body = json.dumps(answer).encode()
            if isinstance(failure, int):
                code, body = failure, b'{"message": "told to fail"}'
            elif isinstance(failure, tuple):
                code, headers = failure
            elif failure == "cut":
                body = body[: min(2000, len(body) // 2)]
            elif failure == "text":
                body = b"<html>maintenance</html>"
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    market.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield market
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
