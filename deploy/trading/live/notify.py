"""Notifications about trading and nights: Discord, Telegram, e-mail and everything else that apprise supports.

Addresses are secrets, because they contain tokens and passwords: they come from the environment
only, and appear in no log, message or database. Every address has its own thread and a short queue,
so an address that hangs or fails delays neither trading nor other addresses: messages that do not
fit are dropped, which is reported once.

A message that asks for a decision names the page of the dashboard that offers it, if the
environment says where the dashboard is.
"""

from __future__ import annotations

import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlencode, urlsplit

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.invocation import install_extra

NoticeKind = Literal["trade", "promotion", "rollback", "alert", "daily", "night"]
KINDS: tuple[NoticeKind, ...] = get_args(NoticeKind)
ADDRESSES_VARIABLE, KINDS_VARIABLE = "SWEEPD_NOTIFY", "SWEEPD_NOTIFY_KINDS"
DASHBOARD_VARIABLE = "SWEEPD_DASHBOARD_URL"
# Kinds whose messages name a page of the slot: to act, or the night's.
LINKED: Mapping[NoticeKind, str] = {
    "promotion": "/",
    "rollback": "/",
    "alert": "/",
    "night": "/night",
}
MOST_WAITING = 100  # messages per address
_COLOURS = {"promotion": "success", "rollback": "warning", "alert": "warning"}


@dataclass(frozen=True)
class Message:
    """What is sent to an address.

    colour: apprise's type. html: the text for services of HTML, such as mail; "": they get `text`.
    attach: paths of files, for services that take files.
    """

    title: str
    text: str
    colour: str
    html: str = ""
    attach: Sequence[Path] = ()


class Notifier:
    """Sends messages to all addresses."""

    def __init__(
        self,
        channels: Sequence[_Channel],
        kinds: Sequence[str],
        say: Callable[[str], None],
        dashboard: str = "",
    ) -> None:
        self._channels, self._kinds, self._say = tuple(channels), frozenset(kinds), say
        self._dashboard = dashboard

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], say: Callable[[str], None]) -> Notifier:
        """Return a notifier for the environment's variables.

        SWEEPD_NOTIFY has addresses, separated by commas or spaces; SWEEPD_NOTIFY_KINDS has the
        kinds of messages, by default all; SWEEPD_DASHBOARD_URL has the dashboard's address.

        Args:
            environ: the environment.
            say: receives one message per failing address.

        Raises:
            InputError: an address or a kind is unknown, the dashboard's address is not valid, or
                apprise is not installed.
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
        # An address may contain commas; the next one begins with a scheme.
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
        return cls(channels, kinds, say, _dashboard(environ.get(DASHBOARD_VARIABLE, "").strip()))

    @property
    def words(self) -> str:
        """What is sent, without secrets; empty if nothing is."""
        chosen = ", ".join(kind for kind in KINDS if kind in self._kinds)
        return (
            f"{len(self._channels)} address(es) are told about {chosen}" if self._channels else ""
        )

    def notify(
        self,
        kind: NoticeKind,
        title: str,
        text: str,
        slot: str,
        *,
        html: str = "",
        attach: Sequence[Path] = (),
    ) -> None:
        """Queue a message about a slot if its kind is wanted. Returns at once; raises nothing.

        Args:
            kind: of the message.
            title: its first line.
            text: the rest.
            slot: the slot.
            html: see `Message`.
            attach: see `Message`.
        """
        if self._dashboard and kind in LINKED:
            text += f"\n{self._dashboard}{LINKED[kind]}?{urlencode({'slot': slot})}"
        if kind in self._kinds:
            message = Message(title, text, _COLOURS.get(kind, "info"), html, tuple(attach))
            for channel in self._channels:
                channel.put(message)

    def close(self, timeout: float = 5.0) -> None:
        """Wait at most `timeout` seconds for pending messages; later ones are lost."""
        until = time.monotonic() + timeout
        for channel in self._channels:
            channel.finish()
        for channel in self._channels:
            channel.join(until - time.monotonic())


class _Channel:
    """One address. name: how messages refer to it."""

    def __init__(self, name: str, service: Any, say: Callable[[str], None]) -> None:
        self._name, self._service, self._say = f"notifications to address {name}", service, say
        self._waiting: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._complained = False
        # A daemon thread: the process does not wait for a server when it ends.
        self._thread = threading.Thread(target=self._send_all, name="notify", daemon=True)
        self._thread.start()

    def put(self, message: Message) -> None:
        """Queue a message, or drop it if too many are waiting."""
        if self._waiting.qsize() < MOST_WAITING:
            self._waiting.put(message)
        else:
            self._complain(f"are too slow: {MOST_WAITING} wait, and further ones are dropped")

    def finish(self) -> None:
        """Accept no more messages."""
        self._waiting.put(None)

    def join(self, timeout: float) -> None:
        """Wait until all messages are sent, at most `timeout` seconds."""
        self._thread.join(max(0.0, timeout))

    def _send_all(self) -> None:
        while (message := self._waiting.get()) is not None:
            try:
                arrived = self._send(message)
            except Exception:  # trading continues; the error's text may contain the address
                arrived = False
            if not arrived:
                self._complain("fail")

    def _send(self, message: Message) -> bool:
        """Send a message; return whether it arrived."""
        of_html = str(getattr(self._service.notify_format, "value", self._service.notify_format))
        given: dict[str, Any] = {"body": message.text}
        if message.html and of_html == "html":
            given = {"body": message.html, "body_format": "html"}
        if message.attach and self._service.attachment_support:
            given["attach"] = list(map(str, message.attach))
        sent = self._service.notify(title=message.title, notify_type=message.colour, **given)
        return bool(sent)

    def _complain(self, what: str) -> None:
        if not self._complained:
            self._complained = True
            self._say(f"{self._name} {what}; trading continues, and this is not repeated")


def _dashboard(address: str) -> str:
    """Return the dashboard's address without its last slash; "" if there is none."""
    if not address:
        return ""
    try:
        parts = urlsplit(address)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        valid = False
    # A token or a password would be sent to the service that delivers the messages.
    if not valid or parts.query or parts.fragment or parts.username:
        raise InputError(
            f"{DASHBOARD_VARIABLE} must be the dashboard's address without its token, such as "
            "http://127.0.0.1:8080"
        )
    return address.rstrip("/")


def _service(address: str, name: str) -> Any:
    """Return apprise's object for an address; silence logs that contain addresses."""
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
    except Exception:  # its text may contain the address
        service = None
    if service is None:
        raise InputError(
            f"{ADDRESSES_VARIABLE}: address {name} is unknown to apprise "
            "(https://github.com/caronc/apprise lists the services)"
        )
    return service
