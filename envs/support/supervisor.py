"""Status messages to systemd (units of Type=notify) or to a start script.

The protocol is sd_notify(3): datagrams of `NAME=value` lines to the Unix socket in NOTIFY_SOCKET.
A start script instead names a file in SWEEPD_READY_FILE and waits until it exists or the process
has ended.
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
    """Messages to the supervisor of this process (systemd or a script). Without one, no-ops.

    The watchdog is fed from the code that does the work, after each piece of it. A separate thread
    would keep feeding it while the work hangs.

    Args:
        environment: NOTIFY_SOCKET, and WATCHDOG_USEC and WATCHDOG_PID if a watchdog is active.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._ready_file = environment.get(READY_FILE, "")
        if self._address.startswith("@"):  # Linux's abstract namespace
            self._address = "\0" + self._address[1:]
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._watchdog = int(environment.get("WATCHDOG_USEC", "0")) / 1e6 if mine else 0.0
        # Status lines are also updated without a watchdog.
        self._every = min(self._watchdog / 4, 10.0) if self._watchdog else 10.0
        self._last = float("-inf")

    @property
    def present(self) -> bool:
        """Whether a service manager has started this process."""
        return bool(self._address)

    def ready(self, status: str) -> None:
        """Report that start-up is complete. status: the text that `systemctl status` shows."""
        if self._ready_file:
            with suppress(OSError):  # the script and its folder no longer exist
                Path(self._ready_file).touch()
        self._send(f"READY=1\nSTATUS={status}")

    def alive(self, status: Callable[[], str]) -> None:
        """Report progress. Cheap between messages, so call it after every piece of work."""
        now = time.monotonic()
        if not self._address or now - self._last < self._every:
            return
        self._last = now
        sign = "WATCHDOG=1\n" if self._watchdog else ""
        self._send(f"{sign}STATUS={status()}")

    def expect_silence(self, seconds: float) -> None:
        """Extend the watchdog's timeout to at least this many seconds."""
        if self._watchdog and seconds > self._watchdog:
            self._send(f"WATCHDOG_USEC={seconds * 1e6:.0f}\nWATCHDOG=1")

    def starting_again(self, status: str) -> None:
        """Report that this process is about to re-execute its command; `ready` follows."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now}\nWATCHDOG=1\nSTATUS={status}")

    def stopping(self, status: str) -> None:
        """Report that the process is shutting down."""
        self._send(f"STOPPING=1\nSTATUS={status}")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                # Never block on a supervisor that does not read.
                channel.setblocking(False)
                channel.sendto(message.replace("\r", " ").encode(), self._address)
        except OSError:
            pass  # the supervisor is gone: not an error of this process
