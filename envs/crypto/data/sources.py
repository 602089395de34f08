"""Sources of bars: exchanges through ccxt, and Alpaca's public crypto history, with retries."""

from __future__ import annotations

import json
import time as clock
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Protocol

import numpy as np
import requests

from sweepd.envs.crypto.data.retrying import Busy, retrying
from sweepd.envs.crypto.data.timeframe import bar_seconds
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.invocation import install_extra

ALPACA_URL = "https://data.alpaca.markets"
PAGE_BARS = 10_000  # the most that Alpaca returns at once
LATE_SECONDS = 30.0  # after the end of a longer bar, during which its last hour may be missing

_BUSY = (408, 425, 429, 500, 502, 503, 504)  # HTTP status codes that are retried


class Source(Protocol):
    """A source of bars.

    Attributes:
        name: stored in the files, so that bars of two sources are never mixed.
        quote: default quote currency.
    """

    name: str
    quote: str

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


def _ignore(_: str) -> None:
    pass


class AlpacaSource:
    """Alpaca's crypto history over HTTPS, without a key.

    Bars longer than an hour are aggregated from hours, because Alpaca's daily bars began at
    midnight in Chicago until 2025, off the UTC grid. Until `LATE_SECONDS` after its end, such a bar
    is left out if its last hour is missing.
    """

    quote = "USD"

    def __init__(
        self,
        url: str = ALPACA_URL,
        *,
        sleep: Callable[[float], None] = clock.sleep,
        notice: Callable[[str], None] = _ignore,
        now: Callable[[], float] = clock.time,
    ) -> None:
        if not url.startswith(("https://", "http://")):
            raise InputError(
                f"--url {url}: must begin with https:// (or http:// for a server of your own)"
            )
        self.url = url.rstrip("/")
        self.name = "alpaca" if self.url == ALPACA_URL else f"alpaca:{self.url}"
        self.sleep = sleep
        self.notice = notice
        self.now = now
        self.session = requests.Session()
        self._skew: float | None = None

    def check(self, tickers: Sequence[str], timeframe: str) -> None:
        """Check the timeframe. Unknown tickers are reported by Alpaca when bars are requested."""
        bar_seconds(timeframe)
        del tickers

    def pages(self, ticker: str, timeframe: str, start: int, end: int) -> Iterator[np.ndarray]:
        """See `Source.pages`."""
        step = bar_seconds(timeframe)
        base = min(step, 3600)
        pages = self._pages(
            ticker, f"{base // 60}Min" if base < 3600 else "1Hour", start, end - base
        )
        return pages if base == step else aggregate(pages, step, base, self.now() - LATE_SECONDS)

    def clock_skew(self) -> float | None:
        """See `Source.clock_skew`: what the date of the last answer proves."""
        return self._skew

    def _pages(self, ticker: str, timeframe: str, start: int, last: int) -> Iterator[np.ndarray]:
        asked: dict[str, str] = {
            "symbols": ticker,
            "timeframe": timeframe,
            "start": _rfc3339(start),
            "end": _rfc3339(last),  # inclusive
            "limit": str(PAGE_BARS),
            "sort": "asc",
        }
        seen: set[str] = set()  # page tokens: a server that repeats one would loop forever
        while True:
            answer = retrying(
                lambda: self._get(ticker, asked), f"{self.url}: {ticker}", self.sleep, self.notice
            )
            try:
                bars = (answer["bars"] or {}).get(ticker) or []
                rows = [
                    [_epoch(bar["t"]), bar["o"], bar["h"], bar["l"], bar["c"], bar["v"]]
                    for bar in bars
                ]
                token = answer.get("next_page_token")
                page = np.array(rows, dtype=np.float64).reshape(-1, 6)
            # An answer in another format fails somewhere in the lines above.
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise RunError(
                    f"{self.url}: the answer for {ticker} has an unknown format ({error!r})"
                ) from None
            yield page
            if not token:
                return
            if token in seen:
                raise RunError(
                    f"{self.url}: {ticker}: the same page was offered twice; try again later"
                )
            seen.add(token)
            asked["page_token"] = token

    def _get(self, ticker: str, asked: Mapping[str, str]) -> dict[str, Any]:
        asked_at = self.now()
        try:
            response = self.session.get(
                f"{self.url}/v1beta3/crypto/us/bars", params=asked, timeout=(10, 60)
            )
            self._skew = _skew_of(response.headers, asked_at, self.now())
            code = response.status_code
            if code in _BUSY:
                raise Busy(f"HTTP {code}", _retry_after(response.headers.get("Retry-After")))
            answer: Any = (
                response.json()
                if code == 200 or "json" in response.headers.get("Content-Type", "")
                else None
            )
        except requests.exceptions.InvalidURL:
            raise InputError(
                f"--url {self.url}: not a web address; the default is {ALPACA_URL}"
            ) from None
        except requests.exceptions.SSLError as error:
            raise RunError(f"{self.url}: no trusted connection ({error})") from None
        except requests.exceptions.JSONDecodeError:
            raise Busy("the answer is cut off or not JSON") from None
        except requests.exceptions.RequestException as error:
            raise Busy(f"no answer ({type(error).__name__})") from None
        if code == 200 and isinstance(answer, dict):
            return answer
        message = str(answer.get("message", "")) if isinstance(answer, dict) else ""
        if code in (400, 404, 422):
            raise InputError(
                f"--tickers {ticker}: refused by {self.url} (HTTP {code} {message}); write BTC/USD"
            )
        raise RunError(f"{self.url}: HTTP {code} {message} for {ticker}")


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

    def __init__(
        self,
        exchange_id: str,
        exchange: Any = None,
        *,
        sleep: Callable[[float], None] = clock.sleep,
        notice: Callable[[str], None] = _ignore,
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


def aggregate(
    pages: Iterator[np.ndarray], step: int, base: int, past: float
) -> Iterator[np.ndarray]:
    """Aggregate bars of `base` seconds to bars of `step` seconds on the UTC grid, across pages.

    Args:
        pages: of `base` bars.
        step: seconds.
        base: seconds.
        past: seconds since the epoch. A newest bar that ends later is left out if its last part is
            missing, because it may still arrive.
    """
    rest = np.empty((0, 6))
    for page in pages:
        rows = np.concatenate([rest, page])
        if not len(rows):
            continue
        # The last group may continue on the next page, so it is kept back.
        group = rows[:, 0] // step
        complete = int(np.searchsorted(group, group[-1]))
        rest = rows[complete:]
        if complete:
            yield _merge(rows[:complete], step)
    if len(rest):
        last = rest[-1, 0]
        end = (last // step + 1) * step
        if last + base >= end or end <= past:
            yield _merge(rest, step)


def _merge(rows: np.ndarray, step: int) -> np.ndarray:
    # Rows are sorted, so each group is a run of rows.
    group = rows[:, 0] // step
    first = np.flatnonzero(np.diff(group, prepend=group[0] - 1))
    last = np.append(first[1:], len(rows)) - 1
    return np.stack(
        [
            group[first] * step,
            rows[first, 1],
            np.maximum.reduceat(rows[:, 2], first),
            np.minimum.reduceat(rows[:, 3], first),
            rows[last, 4],
            np.add.reduceat(rows[:, 5], first),
        ],
        axis=1,
    )


def _rfc3339(seconds: int) -> str:
    return str(np.datetime64(seconds, "s")) + "Z"


def _epoch(text: str) -> float:
    """Return the seconds of "2024-01-01T05:00:00Z". A fraction is kept; it is off the grid."""
    return float(np.datetime64(text.removesuffix("Z"), "ns").astype(np.int64)) / 1e9


def least_skew(first: float, last: float, asked: float, answered: float) -> float:
    """Return the least difference between another clock and this machine's, seconds; 0 if none.

    Args:
        first: earliest time that the other clock may have shown when it answered.
        last: latest such time.
        asked: this machine's time before the request.
        answered: the same after the answer.
    """
    return first - answered if first > answered else min(last - asked, 0.0)


def _skew_of(headers: Mapping[str, str], asked: float, answered: float) -> float | None:
    """Return what an answer's date tells of its clock (`least_skew`); None without a date."""
    if "Age" in headers:  # the date is that of a stored answer
        return None
    try:
        date = parsedate_to_datetime(headers["Date"]).timestamp()
    except (KeyError, ValueError):
        return None
    return least_skew(date, date + 1.0, asked, answered)  # whole seconds


def _retry_after(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:
        return None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
