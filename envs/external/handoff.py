"""How driver and worker hand work to each other: a word in shared memory, looked at for a moment, then slept on.

Where a processor keeps writes in order (x86), whoever waits looks at the word for a bounded time, and only sleeps,
and needs to be woken through a socket, when that was in vain. Elsewhere every hand-off goes through the socket, since
only the kernel puts the writes in order there.
"""

from __future__ import annotations

import contextlib
import os
import platform
import select
import socket
import time

from envs.external.buffers import LINE

IDLE, STEP, CALL, FAILED = range(4)  # what the word may say
DRIVER_SLEEPS, WORKER_SLEEPS = LINE // 4, 2 * LINE // 4
ORDERED = platform.machine().lower() in ("x86_64", "amd64")
_GLANCES = 16  # looks at the word between two at the clock
_NAP = (
    50  # milliseconds of sleep between two looks at the word, should being woken have been missed
)


class GoneError(Exception):
    """The other side has ended."""


class Side:
    """One end of a hand-off. words: the worker's; word 0 says whose turn it is. spin: seconds to look at it. driver:
    which end. ordered: whether the processor keeps writes in order; the same at both ends.
    """

    def __init__(
        self, words: memoryview, wake: socket.socket, spin: float, *, driver: bool, ordered: bool
    ) -> None:
        self._words, self._wake, self._ordered = words, wake, ordered
        self._spin = spin if ordered else 0.0
        self._mine, self._theirs = (
            (DRIVER_SLEEPS, WORKER_SLEEPS) if driver else (WORKER_SLEEPS, DRIVER_SLEEPS)
        )
        wake.setblocking(False)
        self._poll = select.poll()
        self._poll.register(wake, select.POLLIN)

    @property
    def word(self) -> int:
        """What it says now."""
        return self._words[0]

    def tell(self, word: int) -> None:
        """Hand over. What was written before is there for the other side."""
        self._words[0] = word
        if not self._ordered or self._words[self._theirs]:
            with contextlib.suppress(
                OSError
            ):  # that it is gone, or has been woken enough, is seen when waiting
                self._wake.send(b".")

    def wait_while(self, word: int, seconds: float) -> bool:
        """Wait until the word is another one; False where it still isn't after so many seconds.

        Raises GoneError where the other side has ended without.
        """
        words = self._words
        now = time.monotonic()
        deadline, spun = now + seconds, now + self._spin
        while now < spun:
            for _ in range(_GLANCES):
                if words[0] != word:
                    return True
            os.sched_yield()  # where somebody else wants this core, it's theirs
            now = time.monotonic()
        words[self._mine] = 1
        try:
            while not self._ordered or words[0] == word:
                woken = self._sleep(min(_NAP / 1000, max(0.0, deadline - time.monotonic())))
                if words[0] != word and (woken is not None or self._ordered):
                    return True
                if woken is False:
                    raise GoneError
                if time.monotonic() >= deadline:
                    return False
            return True
        finally:
            words[self._mine] = 0

    def _sleep(self, seconds: float) -> bool | None:
        """Until woken, at most so long. Returns None where not woken, False where the other side has ended."""
        if not self._poll.poll(seconds * 1000):
            return None
        try:
            return bool(self._wake.recv(4096))
        except OSError:
            return False
