"""Progress of the main thread, on which the heartbeats of its trials depend.

A separate thread sends the heartbeats, so that slow work does not lose the trials. Without a check,
a main thread that hangs would keep its trials forever. So the main thread marks each finished piece
of work (a rollout, a step of an evaluation, a measurement), and the heartbeats of the trials stop
when the last mark is too old.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

STALL_SECONDS = 1200.0  # the shortest time without a mark that counts as a stall
FACTOR = 3.0  # the limit is also at least this many times the longest piece of work so far


class Progress:
    """The marks of the main thread.

    Attributes:
        limit: seconds without a mark that count as a stall.
    """

    def __init__(
        self, shortest: float = STALL_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._last = clock()
        self.limit = shortest

    def mark(self) -> None:
        """Record that a piece of work is finished. A long one raises the limit."""
        now = self._clock()
        self.limit = max(self.limit, FACTOR * (now - self._last))
        self._last = now

    @property
    def age(self) -> float:
        """Seconds since the last mark."""
        return self._clock() - self._last

    @property
    def stalled(self) -> bool:
        """Whether the last mark is older than the limit."""
        return self.age > self.limit


def where_main_thread_is() -> str:
    """Return the line that the main thread executes, like "step (game.py:31)"."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return "an unknown place"
    return f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
