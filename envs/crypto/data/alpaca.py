"""Alpaca's history of crypto and of US shares over HTTPS."""

from __future__ import annotations

import ipaddress
import os
import time as clock
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import requests

from sweepd.envs.crypto.data.retrying import Busy, retrying
from sweepd.envs.crypto.data.sources import least_skew, say_nothing
from sweepd.envs.crypto.data.timeframe import (
    Times,
    bar_end,
    bar_seconds,
    bars_at,
    calendar_of,
    has_hours,
)
from sweepd.envs.support.errors import InputError, RunError

ALPACA_URL = "https://data.alpaca.markets"
# Names of the calendar of the exchanges whose shares Alpaca has.
SHARE_CALENDARS = ("XNYS", "XNAS", "NYSE", "NASDAQ")
PAGE_BARS = 10_000  # the most that Alpaca returns at once
LATE_SECONDS = 30.0  # after the end of a longer bar, during which its last part may be missing
HALF_HOUR = 1800  # seconds; sessions in New York begin and end on half hours

_BUSY = (408, 425, 429, 500, 502, 503, 504)  # HTTP status codes that are retried
_KEY, _SECRET = "APCA_API_KEY_ID", "APCA_API_SECRET_KEY"


class Keys(NamedTuple):
    """API key and secret of an account at Alpaca."""

    key: str
    secret: str


def alpaca_keys(why: str) -> Keys:
    """Return the keys in the environment.

    Args:
        why: what needs them, for the message.

    Raises:
        InputError: there are none.
    """
    keys = Keys(os.environ.get(_KEY, ""), os.environ.get(_SECRET, ""))
    if not all(keys):
        raise InputError(f"{why} needs the keys of a paper account in {_KEY} and {_SECRET}")
    return keys


class AlpacaSource:
    """Alpaca's crypto history, without a key.

    Bars longer than an hour are aggregated from hours, because Alpaca's daily bars began at
    midnight in Chicago until 2025, off the UTC grid. Until `LATE_SECONDS` after its end, such a bar
    is left out if its last hour is missing.
    """

    quote = "USD"
    adjusts = False
    example = "BTC/USD"
    path = "/v1beta3/crypto/us/bars"

    def __init__(
        self,
        url: str = ALPACA_URL,
        *,
        sleep: Callable[[float], None] = clock.sleep,
        notice: Callable[[str], None] = say_nothing,
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
        if has_hours(timeframe):
            raise InputError(
                f"--timeframe {timeframe}: Alpaca's crypto never closes; bars have no calendar"
            )

    def pages(self, ticker: str, timeframe: str, start: int, end: int) -> Iterator[np.ndarray]:
        """See `Source.pages`."""
        step = bar_seconds(timeframe)
        base = min(step, 3600)
        pages = self._pages(ticker, base, start, end)
        if base == step:
            return pages
        return aggregate(pages, timeframe, base, self.now() - LATE_SECONDS)

    def clock_skew(self) -> float | None:
        """See `Source.clock_skew`: what the date of the last answer proves."""
        return self._skew

    def _extra(self) -> dict[str, str]:
        """Return further parameters of a request."""
        return {}

    def _headers(self) -> dict[str, str]:
        """Return a request's headers."""
        return {}

    def _pages(self, symbol: str, base: int, start: int, end: int) -> Iterator[np.ndarray]:
        """Yield bars of `base` seconds as Alpaca has them, start ≤ time < end."""
        asked: dict[str, str] = {
            "symbols": symbol,
            "timeframe": f"{base // 60}Min" if base < 3600 else "1Hour",
            "start": _rfc3339(start),
            "end": _rfc3339(end - base),  # inclusive
            "limit": str(PAGE_BARS),
            "sort": "asc",
            **self._extra(),
        }
        seen: set[str] = set()  # page tokens: a server that repeats one would loop forever
        while True:
            answer = retrying(
                lambda: self._get(symbol, asked), f"{self.url}: {symbol}", self.sleep, self.notice
            )
            try:
                bars = (answer["bars"] or {}).get(symbol) or []
                rows = [
                    [_epoch(bar["t"]), bar["o"], bar["h"], bar["l"], bar["c"], bar["v"]]
                    for bar in bars
                ]
                token = answer.get("next_page_token")
                page = np.array(rows, dtype=np.float64).reshape(-1, 6)
            # An answer in another format fails somewhere in the lines above.
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise RunError(
                    f"{self.url}: the answer for {symbol} has an unknown format ({error!r})"
                ) from None
            yield page
            if not token:
                return
            if token in seen:
                raise RunError(
                    f"{self.url}: {symbol}: the same page was offered twice; try again later"
                )
            seen.add(token)
            asked["page_token"] = token

    def _get(self, symbol: str, asked: Mapping[str, str]) -> dict[str, Any]:
        asked_at = self.now()
        try:
            response = self.session.get(
                f"{self.url}{self.path}",
                params=asked,
                headers=self._headers(),
                timeout=(10, 60),
                allow_redirects=False,  # which would take the keys elsewhere
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
                f"--tickers {symbol}: refused by {self.url} (HTTP {code} {message}); write "
                f"{self.example}"
            )
        if code in (401, 403) and self._headers():
            raise InputError(
                f"{self.url} refuses the keys (HTTP {code} {message}): {_KEY} and {_SECRET} must be "
                "those of an account at Alpaca"
            )
        raise RunError(f"{self.url}: HTTP {code} {message} for {symbol}")


class AlpacaShares(AlpacaSource):
    """Alpaca's history of US shares, with the keys of an account.

    The trades are those of IEX, the exchange whose prices every account gets at once, so that live
    bars and those of the past are of one kind. Prices and volumes are adjusted for splits, not for
    dividends, since a dividend does not change the number of shares that an account holds.

    Bars are aggregated from half hours, or shorter bars, of the exchange's sessions: trades before
    the opening and after the close do not count, and the bars begin with the session, not with the
    hour as Alpaca's do. Until `LATE_SECONDS` after its end, a bar is left out if its last part is
    missing.
    """

    adjusts = True
    example = "AAPL"
    path = "/v2/stocks/bars"

    def __init__(
        self,
        url: str = ALPACA_URL,
        *,
        sleep: Callable[[float], None] = clock.sleep,
        notice: Callable[[str], None] = say_nothing,
        now: Callable[[], float] = clock.time,
    ) -> None:
        super().__init__(url, sleep=sleep, notice=notice, now=now)
        self.name += ":iex"
        if self.url != ALPACA_URL and not _is_this_machine(self.url):
            raise InputError(
                f"--url {url}: keys are sent only to {ALPACA_URL} and to servers on this machine"
            )
        self._keys = alpaca_keys("Alpaca's history of shares")

    def check(self, tickers: Sequence[str], timeframe: str) -> None:
        """Check the timeframe. Unknown tickers are reported by Alpaca when bars are requested."""
        del tickers
        if calendar_of(timeframe) not in SHARE_CALENDARS:
            raise InputError(
                f"--timeframe {timeframe}: Alpaca has shares of New York's exchanges only: name "
                "the calendar XNYS, such as 1d-XNYS"
            )
        bar_end(timeframe, 0)  # raises InputError for bars that are longer than sessions

    def pages(self, ticker: str, timeframe: str, start: int, end: int) -> Iterator[np.ndarray]:
        """See `Source.pages`. ticker: AAPL, or AAPL/USD."""
        base = min(bar_seconds(timeframe), HALF_HOUR)
        pages = self._pages(ticker.partition("/")[0], base, start, end)
        return aggregate(pages, timeframe, base, self.now() - LATE_SECONDS)

    def _extra(self) -> dict[str, str]:
        return {"feed": "iex", "adjustment": "split"}

    def _headers(self) -> dict[str, str]:
        return {"APCA-API-KEY-ID": self._keys.key, "APCA-API-SECRET-KEY": self._keys.secret}


def alpaca_source(timeframe: str, url: str = ALPACA_URL, **options: Any) -> AlpacaSource:
    """Return Alpaca's shares for a timeframe with a calendar, and its crypto for others.

    Args:
        timeframe: of the bars that will be asked for.
        url: of the API.
        options: `sleep`, `notice` and `now` of the sources.

    Raises:
        InputError: the address is not one, or the keys are missing.
    """
    return (AlpacaShares if has_hours(timeframe) else AlpacaSource)(url, **options)


def aggregate(
    pages: Iterator[np.ndarray], timeframe: str, base: int, past: float
) -> Iterator[np.ndarray]:
    """Aggregate bars of `base` seconds to those of a timeframe, across pages.

    Args:
        pages: of `base` bars; those outside the market's hours are left out.
        timeframe: of the result.
        base: seconds, of which bars of the timeframe consist.
        past: seconds since the epoch. A newest bar that ends later is left out if its last part is
            missing, because it may still arrive.
    """
    rest = np.empty((0, 6))
    for page in pages:
        rows = np.concatenate([rest, page])
        bars = bars_at(timeframe, rows[:, 0].astype(np.int64))
        rows, bars = rows[bars >= 0], bars[bars >= 0]
        # The last bar may continue on the next page, so it is kept back.
        complete = int(np.searchsorted(bars, bars[-1])) if len(bars) else 0
        rest = rows[complete:]
        if complete:
            yield _merged(rows[:complete], bars[:complete])
    if len(rest):
        last = int(rest[-1, 0])
        bars = bars_at(timeframe, rest[:, 0].astype(np.int64))
        end = bar_end(timeframe, int(bars[-1]))
        if last + base >= end or end <= past:
            yield _merged(rest, bars)


def _merged(rows: np.ndarray, bars: Times) -> np.ndarray:
    """Merge sorted rows that are parts of the same bars."""
    first = np.flatnonzero(np.diff(bars, prepend=bars[0] - 1))
    last = np.append(first[1:], len(rows)) - 1
    return np.stack(
        [
            bars[first],
            rows[first, 1],
            np.maximum.reduceat(rows[:, 2], first),
            np.minimum.reduceat(rows[:, 3], first),
            rows[last, 4],
            np.add.reduceat(rows[:, 5], first),
        ],
        axis=1,
    )


def _is_this_machine(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _rfc3339(seconds: int) -> str:
    return str(np.datetime64(seconds, "s")) + "Z"


def _epoch(text: str) -> float:
    """Return the seconds of "2024-01-01T05:00:00Z". A fraction is kept; it is off the grid."""
    return float(np.datetime64(text.removesuffix("Z"), "ns").astype(np.int64)) / 1e9


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
