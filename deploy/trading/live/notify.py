"""Notifications about trading: to Discord, Telegram, e-mail and whatever else apprise knows, if so asked.

Addresses are secrets (they hold tokens and passwords): they come from the environment only, and stand in no log, no
message and no database. Every address has a thread and a short queue of its own, so whatever hangs or fails there
delays neither trading nor another address: what doesn't fit is dropped, and said once.
"""

from __future__ import annotations

import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from envs.support.errors import InputError
from envs.support.invocation import install_extra

Kind = Literal["trade", "promotion", "rollback", "alert", "daily"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ADDRESSES_VARIABLE, KINDS_VARIABLE = "SWEEPD_NOTIFY", "SWEEPD_NOTIFY_KINDS"
MOST_WAITING = 100  # messages per address
_COLOURS = {"promotion": "success", "rollback": "warning", "alert": "warning"}
Message = tuple[str, str, str]  # title, text, apprise's type


class Notifier:
    """Sends messages to addresses; to none of them, nothing happens."""

    def __init__(
        self, channels: Sequence[_Channel], kinds: Sequence[str], say: Callable[[str], None]
    ) -> None:
        self._channels, self._kinds, self._say = tuple(channels), frozenset(kinds), say

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], say: Callable[[str], None]) -> Notifier:
        """As SWEEPD_NOTIFY (addresses, separated by commas or spaces) and SWEEPD_NOTIFY_KINDS (default: all) say.

        say: told once per address that it fails. Raises InputError for an address or a kind that nobody knows, and
        where apprise is not installed.
        """
        kinds = (
            re.split(r"[,\s]+", environ.get(KINDS_VARIABLE, "").strip())
            if environ.get(KINDS_VARIABLE)
            else KINDS
        )
        for kind in kinds:
            if kind not in KINDS:
                raise InputError(
                    f"{KINDS_VARIABLE} names {kind!r}; the kinds are {', '.join(KINDS)}"
                )
        # An address may hold commas itself; the next one begins with a scheme.
        addresses = [
            address
            for address in re.split(
                r"[,\s]+(?=[A-Za-z][\w+.-]*://)", environ.get(ADDRESSES_VARIABLE, "").strip(" ,")
            )
            if address
        ]
        channels = [
            _Channel(
                f"{number} of {len(addresses)}",
                _service(address, f"{number} of {len(addresses)}"),
                say,
            )
            for number, address in enumerate(addresses, 1)
        ]
        return cls(channels, kinds, say)

    @property
    def words(self) -> str:
        """What is sent, in words that give nothing away; empty where nothing is."""
        chosen = ", ".join(kind for kind in KINDS if kind in self._kinds)
        return (
            f"{len(self._channels)} address(es) are told about {chosen}" if self._channels else ""
        )

    def notify(self, kind: Kind, title: str, text: str) -> None:
        """Send a message of that kind, if it is wanted. Returns at once, and raises nothing."""
        if kind in self._kinds:
            for channel in self._channels:
                channel.put((title, text, _COLOURS.get(kind, "info")))

    def close(self, timeout: float = 5.0) -> None:
        """Wait that many seconds at most for what is still to be sent. What is not sent then never will be."""
        until = time.monotonic() + timeout
        for channel in self._channels:
            channel.finish()
        for channel in self._channels:
            channel.join(until - time.monotonic())


class _Channel:
    """One address. name: that may be said of it."""

    def __init__(self, name: str, service: Any, say: Callable[[str], None]) -> None:
        self._name, self._service, self._say = f"notifications to address {name}", service, say
        self._waiting: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._complained = False
        # A daemon: a process that ends waits for nobody's server.
        self._thread = threading.Thread(target=self._send_all, name="notify", daemon=True)
        self._thread.start()

    def put(self, message: Message) -> None:
        """Queue a message, or drop it where too many wait already."""
        if self._waiting.qsize() < MOST_WAITING:
            self._waiting.put(message)
        else:
            self._complain(f"are too slow: {MOST_WAITING} wait, and further ones are dropped")

    def finish(self) -> None:
        """No more messages come."""
        self._waiting.put(None)

    def join(self, timeout: float) -> None:
        """Wait until all are sent, or for so long."""
        self._thread.join(max(0.0, timeout))

    def _send_all(self) -> None:
        while (message := self._waiting.get()) is not None:
            title, text, colour = message
            try:
                arrived = bool(self._service.notify(title=title, body=text, notify_type=colour))
            except (
                Exception
            ):  # whatever a service does: trading goes on (its text may hold the address)
                arrived = False
            if not arrived:
                self._complain("fail")

    def _complain(self, what: str) -> None:
        if not self._complained:
            self._complained = True
            self._say(f"{self._name} {what}; trading goes on, and this is not said again")


def _service(address: str, name: str) -> Any:
    """apprise's object for an address; its own log, and the HTTP client's, which hold addresses, are silenced."""
    try:
        from apprise import Apprise
    except ImportError:
        raise InputError(
            f"{ADDRESSES_VARIABLE} is set, which needs apprise: {install_extra('notify')}"
        ) from None
    logging.getLogger("apprise").disabled = True
    logging.getLogger("urllib3.connectionpool").setLevel(logging.WARNING)
    try:
        service = Apprise.instantiate(address)
    except Exception:  # its text may hold the address
        service = None
    if service is None:
        raise InputError(
            f"{ADDRESSES_VARIABLE}: address {name} is none that apprise knows (https://github.com/caronc/apprise lists "
            "them)"
        )
    return service
