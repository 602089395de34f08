"""Requests to Alpaca's paper API through alpaca-py.

Requests time out and are repeated while the server is busy or out of reach. Every host except
Alpaca's paper host and this machine is refused.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from sweepd.envs.support.errors import InputError, RunError, TryAgainLater
from sweepd.envs.support.invocation import install_extra

PAPER_URL = "https://paper-api.alpaca.markets"
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 15.0  # seconds between two attempts
Result = TypeVar("Result")


class Refused(RunError):
    """Alpaca refused a request: status and message. readable: whether the answer has a message."""

    def __init__(self, status: int, message: str, *, readable: bool = True) -> None:
        super().__init__(f"Alpaca answers {status}: {message}")
        self.status, self.message, self.readable = status, message, readable


class PaperApi:
    """Alpaca's paper API with the keys of one account.

    Args:
        key: API key of the account.
        secret: its secret.
        url: address of the API.
        patience: seconds for which a request is repeated, with growing pauses.
        timeout: seconds to wait for one answer.
        sleep: waits that many seconds.

    Attributes:
        client: alpaca-py's client; its calls belong into `ask`.

    Raises:
        InputError: alpaca-py is not installed, or `check_url` refuses the address.
    """

    def __init__(
        self,
        key: str,
        secret: str,
        *,
        url: str,
        patience: float,
        timeout: float,
        sleep: Callable[[float], None],
    ) -> None:
        check_url(url)
        try:
            from alpaca.trading.client import TradingClient
        except ImportError:
            raise InputError(
                f"--broker alpaca needs alpaca-py: {install_extra('alpaca')}"
            ) from None
        self._patience, self._sleep = patience, sleep
        self.client: Any = TradingClient(
            key, secret, paper=True, raw_data=True, url_override=url.rstrip("/")
        )
        # alpaca-py repeats a POST without knowing whether the first one arrived: `ask` repeats.
        self.client._retry = 0
        for scheme in ("https://", "http://"):
            self.client._session.mount(scheme, _Timely(timeout))

    def ask(
        self,
        what: str,
        call: Callable[[], Result],
        *,
        arrived: Callable[[], Result | None] | None = None,
        patience: float | None = None,
    ) -> Result:
        """Return the answer to a request; repeat it while the server is busy or out of reach.

        Args:
            what: subject of the request, for messages.
            call: sends the request.
            arrived: for a request that must not be executed twice: its result if it was executed
                without an answer.
            patience: seconds; by default those of this object.

        Raises:
            Refused: the server refuses the request.
            TryAgainLater: no answer within `patience` seconds.
        """
        patience = self._patience if patience is None else patience
        retrying = Retrying(
            retry=retry_if_exception_type(_Away),
            wait=wait_exponential(FIRST_PAUSE, LONGEST_PAUSE),
            sleep=self._sleep,
            stop=stop_after_delay(patience),
            reraise=True,
        )

        def attempt() -> Result:
            if arrived is not None and retrying.statistics["attempt_number"] > 1:
                with contextlib.suppress(TryAgainLater):  # still out of reach: the call finds out
                    if (found := arrived()) is not None:
                        return found
            return _answer(call)

        try:
            return retrying(attempt)
        except _Away as away:
            raise TryAgainLater(f"Alpaca does not answer about {what}: {away}") from None


class _Away(Exception):
    """No answer, or one that asks to retry later."""


def _answer(call: Callable[[], Result]) -> Result:
    from alpaca.common.exceptions import APIError

    try:
        return call()
    except APIError as error:
        status, readable = int(error.status_code or 0), True
        try:
            message = str(json.loads(str(error))["message"])
        except (ValueError, KeyError, TypeError):
            message, readable = f"status {status}", False
        # Busy or failing: the request may or may not have been executed.
        if status == 429 or status >= 500:
            raise _Away(message) from None
        if status == 401 or (status == 403 and "forbidden" in message.lower()):
            raise InputError(
                f"Alpaca refuses the keys ({message.rstrip('.')}): APCA_API_KEY_ID and "
                "APCA_API_SECRET_KEY must be those of a paper account"
            ) from None
        raise Refused(status, message, readable=readable) from None
    except requests.RequestException as error:
        raise _Away(type(error).__name__) from None
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
        raise _Away(f"its answer cannot be read ({type(error).__name__})") from None


class _Timely(HTTPAdapter):
    """Sets a timeout for every request."""

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self._timeout = timeout

    def send(
        self, request: requests.PreparedRequest, *arguments: Any, **keywords: Any
    ) -> requests.Response:
        keywords["timeout"] = keywords.get("timeout") or self._timeout
        return super().send(request, *arguments, **keywords)


def check_url(url: str) -> None:
    """Raise InputError for every host except Alpaca's paper host (https) and this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        own = ipaddress.ip_address(host).is_loopback
    except ValueError:
        own = host == "localhost"
    paper = (
        parts.scheme == "https"
        and host == urlsplit(PAPER_URL).hostname
        and parts.port in (None, 443)
    )
    if (
        parts.username
        or parts.password
        or not (paper or (own and parts.scheme in ("http", "https")))
    ):
        raise InputError(
            f"--url {url!r} is refused: only {PAPER_URL} and this machine may be traded on"
        )
