"""When a checkpoint inside a rung is due, so that a kill costs little work, and writing takes little time."""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY = 30.0  # seconds of training that a kill may cost
FIRST = 3.0  # the first interval of a process: workers that are evicted often live for minutes only
SHARE = 0.01  # the largest share of the time that writing checkpoints may take


class CheckpointPace:
    """Decides by the clock. No result depends on it: checkpoints only say where to resume.

    The interval to the next checkpoint is the time for which the process had trained at the last one, at least `FIRST`
    and at most `EVERY` seconds. Where checkpoints take long to write, it is longer, so that writing takes at most
    `SHARE` of the time.

    busy: whether the last checkpoint is still being written; then the next one waits.
    """

    def __init__(
        self, busy: Callable[[], bool] = lambda: False, clock: Callable[[], float] = time.monotonic
    ) -> None:
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
        """Note that training or a checkpoint begins: work after this moment is not saved yet."""
        self._last = self._clock()
        self._began = self._last if self._began is None else self._began
        self._cost, self._spent = self._spent or self._cost, 0.0

    def spent(self, seconds: float) -> None:
        """Add the time that a thread spent on the newest checkpoint."""
        self._spent += seconds
        self._cost = max(self._cost, self._spent)
