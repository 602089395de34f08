"""A stand-in for the end of NOTIFY_SOCKET that systemd holds."""

from __future__ import annotations

import socket
import threading
import time


class Listener:
    """Keeps every message with the time at which it came."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(0.1)
        self.messages: list[tuple[float, str]] = []
        self._open = True
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while self._open:
            try:
                text = self.socket.recv(65536).decode()
            except TimeoutError:
                continue
            self.messages.append((time.monotonic(), text))

    def heard(self, line: str) -> list[float]:
        """When this line came."""
        return [at for at, text in self.messages if line in text.splitlines()]

    def close(self) -> None:
        self._open = False
        self._thread.join()
        self.socket.close()
