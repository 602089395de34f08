"""What time it is for a trader, and how it waits: the real time, or that of a market that is replayed."""

from __future__ import annotations

import math
import threading
import time


class Clock:
    """The real time. stop: set by whoever wants the trader to end; no wait outlasts it. patience: how long one may go
    without looking whether anything has happened, seconds of the market's time.
    """

    def __init__(self, stop: threading.Event | None = None) -> None:
        self.stop = stop or threading.Event()
        self.patience = 5.0

    def now(self) -> float:
        """Seconds since the epoch, in the market's time."""
        return time.time()

    def wait(self, seconds: float) -> None:
        """Let that much of the market's time go by, or less where the trader is to end."""
        self.stop.wait(seconds)


class FastClock(Clock):
    """A market's time that began at `start` and goes `speed` times as fast as the real one. began: when, in real time;
    now, unless the market has been going on for longer.
    """

    def __init__(
        self,
        start: float,
        speed: float,
        stop: threading.Event | None = None,
        *,
        began: float | None = None,
    ) -> None:
        super().__init__(stop)
        self._start, self._speed = start, speed
        self._began = time.time() if began is None else began
        self.patience = max(5.0, 0.2 * speed)

    def now(self) -> float:
        """See `Clock.now`."""
        return self._start + (time.time() - self._began) * self._speed

    def wait(self, seconds: float) -> None:
        """See `Clock.wait`."""
        self.stop.wait(seconds / self._speed)


class LeapingClock(Clock):
    """A market's time that stands still while something is done, and leaps over every wait."""

    def __init__(self, start: float, stop: threading.Event | None = None) -> None:
        super().__init__(stop)
        self._now = start
        self.patience = math.inf

    def now(self) -> float:
        """See `Clock.now`."""
        return self._now

    def wait(self, seconds: float) -> None:
        """See `Clock.wait`."""
        self._now += seconds
