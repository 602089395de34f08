"""When a checkpoint inside a rung is due, so that a kill costs little work and the writing little time."""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY = 30.0  # seconds of training that a kill may cost
FIRST = 3.0  # a young process writes earlier, since workers that are evicted often never get old
SHARE = 0.01  # of the time may go into checkpoints


class CheckpointPace:
    """Decides by the clock. No result depends on it: checkpoints only say where to resume.

    The time between two checkpoints is as long as the process has trained by the first of them, at least `FIRST` and at
    most `EVERY` seconds. Where a checkpoint takes long to write, the time grows so that writing keeps to `SHARE`.

    busy: whether the last checkpoint is still being written; then the next one waits.
    """

    def __init__(self, busy: Callable[[], bool] = lambda: False, clock: Callable[[], float] = time.monotonic) -> None:
        self._busy, self._clock = busy, clock
        self._began: float | None = None
        self._last = self._cost = self._spent = 0.0

    @property
    def interval(self) -> float:
        """Seconds from the last checkpoint to the next."""
        age = self._last - (self._last if self._began is None else self._began)
        return max(min(EVERY, max(FIRST, age)), self._cost / SHARE)

    def due(self) -> bool:
        """Whether to write one now."""
        return self._clock() - self._last >= self.interval and not self._busy()

    def begun(self) -> None:
        """Training begins, or a checkpoint of it: from here on work may be lost."""
        self._last = self._clock()
        self._began = self._last if self._began is None else self._began
        self._cost, self._spent = self._spent or self._cost, 0.0

    def spent(self, seconds: float) -> None:
        """Count time that went into the checkpoint that was begun last, on whichever thread."""
        self._spent += seconds
        self._cost = max(self._cost, self._spent)
