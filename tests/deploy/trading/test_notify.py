"""Notifications: sent to all addresses, without delays and without revealing an address."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sweepd.deploy.trading.live.notify import MOST_WAITING, Notifier
from sweepd.envs.support.errors import InputError

SECRET = "s3cret-t0ken"


class Receiver:
    """A web hook on this machine that records its messages. status: of its answers."""

    def __init__(self, status: int = 200) -> None:
        self.received: list[dict[str, str]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.received.append(json.loads(content))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        self.address = f"json://127.0.0.1:{self.server.server_port}/{SECRET}"


@contextmanager
def receiving(status: int = 200) -> Iterator[Receiver]:
    receiver = Receiver(status)
    yield receiver
    receiver.server.shutdown()


@pytest.fixture
def hanging() -> Iterator[str]:
    """Address of a server that accepts connections and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield f"json://127.0.0.1:{server.getsockname()[1]}/{SECRET}"


def notifier(said: list[str], addresses: str, **more: str) -> Notifier:
    return Notifier.from_environment({"SWEEPD_NOTIFY": addresses} | more, said.append)


def test_nothing_is_sent_without_configuration() -> None:
    said: list[str] = []
    off = Notifier.from_environment({}, said.append)
    off.notify("alert", "title", "text", "s")
    off.close(0.1)
    assert off.words == ""
    assert said == []


@pytest.mark.parametrize("separator", [",", " ", ", ", "\n"])
def test_every_address_gets_every_message_in_order(separator: str) -> None:
    said: list[str] = []
    with receiving() as one, receiving() as two:
        sender = notifier(said, separator.join([one.address, two.address]))
        for number in range(5):
            sender.notify("trade", f"title {number}", "bought 1 BTC/USDT\nsold 2 ETH/USDT", "s")
        sender.close(10.0)
        for receiver in (one, two):
            assert [message["title"] for message in receiver.received] == [
                f"title {number}" for number in range(5)
            ]
            assert receiver.received[0]["message"] == "bought 1 BTC/USDT\nsold 2 ETH/USDT"
    assert said == []
    assert (
        sender.words
        == "2 address(es) are told about trade, promotion, rollback, alert, daily, night"
    )


def test_only_configured_kinds_are_sent() -> None:
    with receiving() as receiver:
        sender = notifier([], receiver.address, SWEEPD_NOTIFY_KINDS="alert, rollback")
        for kind in ("trade", "promotion", "rollback", "alert", "daily"):
            sender.notify(kind, kind, "text", "s")  # type: ignore[arg-type]
        sender.close(10.0)
        assert [(message["title"], message["type"]) for message in receiver.received] == [
            ("rollback", "warning"),
            ("alert", "warning"),
        ]
    assert sender.words == "1 address(es) are told about rollback, alert"


def test_a_hanging_server_delays_neither_trading_nor_others(hanging: str) -> None:
    said: list[str] = []
    with receiving() as other:
        sender = notifier(said, f"{hanging},{other.address}")
        begun = time.monotonic()
        for number in range(2 * MOST_WAITING):
            sender.notify("trade", str(number), "text", "s")
        assert time.monotonic() - begun < 2.0  # one answer takes 4 s to be given up
        deadline = time.monotonic() + 20.0
        while len(other.received) < MOST_WAITING and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(other.received) >= MOST_WAITING  # while the first still hangs
        begun = time.monotonic()
        sender.close(0.3)
        assert time.monotonic() - begun < 3.0
    assert any("address 1 of 2 are too slow" in line for line in said)
    assert not any(SECRET in line for line in said)


def test_a_failure_is_reported_once_without_secrets(
    hanging: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    said: list[str] = []
    with receiving(500) as refusing, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # no server listens here
        addresses = [
            refusing.address,
            f"json://127.0.0.1:{closed.getsockname()[1]}/{SECRET}",
            f"{hanging}?rto=0.2",
        ]
        sender = notifier(said, " ".join(addresses))
        for number in range(3):
            sender.notify("alert", str(number), "text", "s")
        sender.close(20.0)
        assert len(refusing.received) == 3  # it is tried again with every message
    assert sorted(said) == [
        f"notifications to address {number} of 3 fail; trading continues, and this is not repeated"
        for number in (1, 2, 3)
    ]
    captured = capfd.readouterr()
    assert SECRET not in caplog.text + captured.out + captured.err + repr(sender) + repr(
        vars(sender)
    )


def test_exceptions_of_a_service_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with receiving() as receiver:
        sender = notifier(said, receiver.address)
        (channel,) = sender._channels

        def fail(**_: object) -> bool:
            raise RuntimeError(SECRET)

        monkeypatch.setattr(channel._service, "notify", fail)
        sender.notify("alert", "title", "text", "s")
        sender.close(5.0)
    assert len(said) == 1
    assert SECRET not in said[0]


@pytest.mark.parametrize("address", [f"nosuchthing://{SECRET}", f"discord://{SECRET}", "json://"])
def test_an_unknown_address_is_refused_without_being_printed(address: str) -> None:
    with pytest.raises(
        InputError, match="SWEEPD_NOTIFY: address 2 of 2 is unknown to apprise"
    ) as refusal:
        notifier([], f"json://127.0.0.1:9/x,{address}")
    assert SECRET not in str(refusal.value)
    assert refusal.value.__cause__ is None


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(
        InputError,
        match=r"names 'trades'; the kinds are trade, promotion, rollback, alert, daily, night",
    ):
        Notifier.from_environment({"SWEEPD_NOTIFY_KINDS": "alert,trades"}, print)


def test_a_missing_apprise_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(InputError, match=r"needs apprise: .* -m pip install 'sweepd\[notify\]'"):
        notifier([], "json://127.0.0.1:9/x")
    Notifier.from_environment({}, print)  # not needed if nothing is to be sent


def test_a_hanging_server_does_not_keep_the_process_alive(hanging: str) -> None:
    program = (
        "import os, time\n"
        "from sweepd.deploy.trading.live.notify import Notifier\n"
        "sender = Notifier.from_environment(os.environ, print)\n"
        "sender.notify('alert', 'title', 'text', 's')\n"
        "begun = time.monotonic()\n"
        "sender.close(0.2)\n"
        "print(begun)\n"
    )
    environment = {
        "SWEEPD_NOTIFY": f"{hanging}?rto=60",
        "PATH": "",
        "PYTHONPATH": ":".join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert time.monotonic() - float(done.stdout) < 20.0


def test_messages_that_ask_for_a_decision_name_the_page_to_act_on() -> None:
    said: list[str] = []
    with receiving() as one:
        sender = notifier(said, one.address, SWEEPD_DASHBOARD_URL="http://127.0.0.1:8080/")
        for kind in ("trade", "alert", "promotion", "rollback", "daily"):
            sender.notify(kind, "title", "text", "crypto 1h")  # type: ignore[arg-type]
        sender.close()
        linked = "text\nhttp://127.0.0.1:8080/?slot=crypto+1h"
        assert [found["message"] for found in one.received] == [
            "text",
            linked,
            linked,
            linked,
            "text",
        ]
    assert said == []


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:8080",
        "ftp://host",
        "http://",
        f"http://h/?token={SECRET}",
        f"http://u:{SECRET}@h",
    ],
)
def test_a_wrong_address_of_the_dashboard_is_refused(address: str) -> None:
    """One with a token, too, which the services that deliver messages would see."""
    with pytest.raises(InputError, match="SWEEPD_DASHBOARD_URL must be") as refused:
        notifier([], "", SWEEPD_DASHBOARD_URL=address)
    assert SECRET not in str(refused.value)
