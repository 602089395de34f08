"""Clocks of a trader: real time, or the time of a replayed market."""

from __future__ import annotations

import math
import threading
import time


class Clock:
    """Real time.

    stop: ends the trader when set; no wait outlasts it.
    patience: longest time between two polls, seconds of the market's time.
    """

    def __init__(self, stop: threading.Event | None = None) -> None:
        self.stop = stop or threading.Event()
        self.patience = 5.0

    def now(self) -> float:
        """Return the market's time, seconds since the epoch."""
        return time.time()

    def wait(self, seconds: float) -> None:
        """Wait that many seconds of the market's time, or until `stop` is set."""
        self.stop.wait(seconds)


class FastClock(Clock):
    """A market's time that starts at `start` and runs `speed` times as fast as real time.

    Args:
        start: seconds since the epoch.
        speed: factor.
        stop: as in `Clock`.
        began: real time at which the market's time was `start`; default: now.
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
    """A market's time that only advances by waiting, without real waiting."""

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
