"""When a checkpoint within a rung is due."""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY = 30.0  # longest interval in seconds: the training time that a kill may cost
FIRST = 3.0  # first interval in seconds: workers that are evicted often run for minutes only
SHARE = 0.01  # largest share of time spent on writing checkpoints


class CheckpointPace:
    """Decides by the clock when to write checkpoints. No result depends on them.

    The interval to the next checkpoint equals the training time of the process up to the last one,
    at least `FIRST` and at most `EVERY` seconds. It is longer if writing would take more than
    `SHARE` of the time.

    Args:
        busy: returns whether the last checkpoint is still being written; the next one then waits.
        clock: monotonic time in seconds.
    """

    def __init__(
        self, busy: Callable[[], bool] = lambda: False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._busy, self._clock = busy, clock
        self._began: float | None = None
        self._last = self._cost = self._spent = 0.0

    @property
    def interval(self) -> float:
        """Return the seconds from the last checkpoint to the next."""
        # A process that has trained for t seconds may lose t seconds: half of its work at most.
        age = self._last - (self._last if self._began is None else self._began)
        return max(min(EVERY, max(FIRST, age)), self._cost / SHARE)

    def due(self) -> bool:
        """Return whether to write a checkpoint now."""
        return self._clock() - self._last >= self.interval and not self._busy()

    def begun(self) -> None:
        """Note that training or a checkpoint begins: later work is not saved yet."""
        self._last = self._clock()
        self._began = self._last if self._began is None else self._began
        # Files are written in the background, so the newest checkpoint may have no cost yet.
        self._cost, self._spent = self._spent or self._cost, 0.0

    def spent(self, seconds: float) -> None:
        """Add CPU time spent on the newest checkpoint."""
        self._spent += seconds
        self._cost = max(self._cost, self._spent)
