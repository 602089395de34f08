"""Telling systemd (a unit of Type=notify), or a script, that this process is ready, alive, and what it is doing.

The protocol is sd_notify(3): datagrams of `NAME=value` lines to the Unix socket named by NOTIFY_SOCKET. A script that
starts a worker names a file in SWEEPD_READY_FILE instead, and waits until that exists or the process has ended.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

READY_FILE = "SWEEPD_READY_FILE"


class Supervisor:
    """Messages to the program that supervises this process (systemd or a script). Without one, nothing is sent.

    A sign of life is given from where the work is done, after a piece of it. A thread of its own would go on telling
    that all is well while the work hangs.

    environment: with NOTIFY_SOCKET, and WATCHDOG_USEC (and WATCHDOG_PID) where silence is answered by a restart.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._ready_file = environment.get(READY_FILE, "")
        if self._address.startswith("@"):  # Linux's abstract name space
            self._address = "\0" + self._address[1:]
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._watchdog = int(environment.get("WATCHDOG_USEC", "0")) / 1e6 if mine else 0.0
        # Status lines are worth an update now and then, also where nobody wants signs of life.
        self._every = min(self._watchdog / 4, 10.0) if self._watchdog else 10.0
        self._last = float("-inf")

    def ready(self, status: str) -> None:
        """The start is over. status: what `systemctl status` shows."""
        if self._ready_file:
            with suppress(OSError):  # the script is gone, and its folder with it
                Path(self._ready_file).touch()
        self._send(f"READY=1\nSTATUS={status}")

    def alive(self, status: Callable[[], str]) -> None:
        """Progress was made. Costs next to nothing between messages, so call it as often as it is true."""
        now = time.monotonic()
        if not self._address or now - self._last < self._every:
            return
        self._last = now
        sign = "WATCHDOG=1\n" if self._watchdog else ""
        self._send(f"{sign}STATUS={status()}")

    def expect_silence(self, seconds: float) -> None:
        """From now on, signs of life may be this far apart."""
        if self._watchdog and seconds > self._watchdog:
            self._send(f"WATCHDOG_USEC={seconds * 1e6:.0f}\nWATCHDOG=1")

    def starting_again(self, status: str) -> None:
        """This process is about to run its command anew; it will say that it is ready."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now}\nWATCHDOG=1\nSTATUS={status}")

    def stopping(self, status: str) -> None:
        """The end has begun."""
        self._send(f"STOPPING=1\nSTATUS={status}")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.setblocking(
                    False
                )  # a supervisor that does not listen must not hold up the work
                channel.sendto(message.replace("\r", " ").encode(), self._address)
        except OSError:
            pass  # and one that is gone must not end it
