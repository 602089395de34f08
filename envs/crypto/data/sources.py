"""Sources of bars, and one of them: exchanges through ccxt, with retries."""

from __future__ import annotations

import json
import time as clock
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, Protocol

import numpy as np

from sweepd.envs.crypto.data.retrying import Busy, retrying
from sweepd.envs.crypto.data.timeframe import bar_seconds, has_hours
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.invocation import install_extra


class Source(Protocol):
    """A source of bars.

    Attributes:
        name: stored in the files, so that bars of two sources are never mixed.
        quote: default quote currency.
        adjusts: whether earlier prices change after a split.
    """

    name: str
    quote: str
    adjusts: bool

    def check(self, tickers: Sequence[str], timeframe: str) -> None:
        """Raise InputError for a timeframe or ticker that the source does not have."""

    def pages(self, ticker: str, timeframe: str, start: int, end: int) -> Iterator[np.ndarray]:
        """Yield pages (n, 6) float64: time (s), open, high, low, close, volume; times ascending.

        Bars with start ≤ time < end.

        Raises:
            InputError: the ticker is unknown.
            RunError: the source cannot be reached.
        """

    def clock_skew(self) -> float | None:
        """Return the seconds by which its clock is ahead of this machine's, None if unknown.

        Negative if it is behind; the least difference that an answer proves (`least_skew`).
        """


def say_nothing(_: str) -> None:
    """Ignore a message."""


def ccxt_exchanges() -> Sequence[str]:
    """Return the names of the exchanges that ccxt supports; none where it is not installed."""
    try:
        import ccxt
    except ImportError:
        return ()
    names: Sequence[str] = ccxt.exchanges
    return names


class CcxtSource:
    """An exchange that ccxt supports. exchange: a ccxt object, for tests."""

    quote = "USDT"
    adjusts = False

    def __init__(
        self,
        exchange_id: str,
        exchange: Any = None,
        *,
        sleep: Callable[[float], None] = clock.sleep,
        notice: Callable[[str], None] = say_nothing,
    ) -> None:
        try:
            import ccxt
        except ImportError:
            raise InputError(
                f"--source ccxt needs the package ccxt: {install_extra('ccxt')}; or use --source "
                "alpaca"
            ) from None
        if exchange_id not in ccxt.exchanges:
            near = get_close_matches(exchange_id, ccxt.exchanges, 1)
            hint = (
                f"did you mean {near[0]}?"
                if near
                else "for instance binance, kraken, okx, coinbase"
            )
            raise InputError(f"--exchange {exchange_id!r}: ccxt has no such exchange; {hint}")
        self.errors = ccxt
        self.exchange = exchange or getattr(ccxt, exchange_id)(
            {"enableRateLimit": True, "timeout": 30_000}
        )
        self.name = f"ccxt:{exchange_id}"
        self.sleep = sleep
        self.notice = notice

    def check(self, tickers: Sequence[str], timeframe: str) -> None:
        """See `Source.check`. Requests the exchange's markets."""
        bar_seconds(timeframe)
        if has_hours(timeframe):
            raise InputError(
                f"--timeframe {timeframe}: exchanges of ccxt never close, and have no calendar"
            )
        if not self.exchange.has.get("fetchOHLCV"):
            raise InputError(
                f"--exchange {self.exchange.id}: it offers no bars; others do, for instance binance"
            )
        offered = self.exchange.timeframes or {}
        if timeframe not in offered:
            known = [name for name in offered if self.exchange.parse_timeframe(name) >= 60]
            raise InputError(
                f"--timeframe {timeframe}: {self.exchange.id} has only {', '.join(known)}"
            )
        markets = list(self._call(self.exchange.load_markets, "its markets"))
        for ticker in tickers:
            if ticker not in markets:
                near = get_close_matches(ticker, markets, 3)
                hint = (
                    f"did you mean {' or '.join(near)}?"
                    if near
                    else "look up its symbols on the exchange's site"
                )
                raise InputError(
                    f"--tickers {ticker}: {self.exchange.id} has no such market; {hint}"
                )

    def pages(self, ticker: str, timeframe: str, start: int, end: int) -> Iterator[np.ndarray]:
        """See `Source.pages`."""
        step = bar_seconds(timeframe)
        limit = self._page_size(ticker)
        cursor = start
        while cursor < end:
            ask = partial(self.exchange.fetch_ohlcv, ticker, timeframe, cursor * 1000, limit)
            # A skipped range is never requested again, so an empty answer must be confirmed.
            rows = self._call(ask, ticker) or self._call(ask, ticker)
            page = np.array([row[:6] for row in rows], dtype=np.float64).reshape(-1, 6)
            page[:, 0] //= 1000
            # Exchanges may ignore `since` or return more than was asked for.
            page = page[(page[:, 0] >= cursor) & (page[:, 0] < end)]
            page = page[np.argsort(page[:, 0], kind="stable")]
            yield page
            if len(page):
                cursor = int(page[-1, 0]) + step
            elif len(rows) and min(row[0] for row in rows) >= end * 1000:
                return  # the exchange's first bars lie beyond the range
            else:
                # Nothing in this window: before the listing, or in an outage longer than a page.
                cursor += limit * step

    def clock_skew(self) -> float | None:
        """See `Source.clock_skew`: asks the exchange, if ccxt knows how."""
        if not self.exchange.has.get("fetchTime"):
            return None
        before = clock.time()
        try:
            moment = float(self.exchange.fetch_time()) / 1000
            return least_skew(moment, moment, before, clock.time())
        # The bars will show whether the exchange is in reach.
        except (self.errors.BaseError, ValueError, TypeError, LookupError, AttributeError):
            return None

    def _page_size(self, ticker: str) -> int:
        """Return the exchange's page size. Too large a guess would skip bars; too small is slow."""
        try:
            limit = self.exchange.featureValue(ticker, "fetchOHLCV", "limit")
        except (AttributeError, KeyError, TypeError):
            limit = None
        return min(int(limit), 1000) if limit else 100

    def _call(self, call: Callable[[], Any], what: str) -> Any:
        def attempt() -> Any:
            try:
                result = call()
                # ccxt returns truncated answers as text, in which its parsers find no bars.
                json.loads(getattr(self.exchange, "last_http_response", None) or "null")
                return result
            except self.errors.BadSymbol as error:
                raise InputError(
                    f"--tickers {what}: refused by {self.exchange.id} ({error})"
                ) from None
            # Network errors, time-outs, rate limits and maintenance.
            except self.errors.OperationFailed as error:
                raise Busy(_first_line(error)) from None
            except self.errors.BaseError as error:
                raise RunError(f"{self.exchange.id}: {what}: {_first_line(error)}") from None
            except (ValueError, TypeError, LookupError, AttributeError):
                raise Busy("the answer is cut off or not what ccxt expects") from None

        return retrying(attempt, f"{self.exchange.id}: {what}", self.sleep, self.notice)


def least_skew(first: float, last: float, asked: float, answered: float) -> float:
    """Return the least difference between another clock and this machine's, seconds; 0 if none.

    Args:
        first: earliest time that the other clock may have shown when it answered.
        last: latest such time.
        asked: this machine's time before the request.
        answered: the same after the answer.
    """
    return first - answered if first > answered else min(last - asked, 0.0)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
