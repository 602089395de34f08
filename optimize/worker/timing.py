"""Measuring where a worker spends its time."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Phases:
    """A stopwatch with named phases, for one thread.

    A nested phase interrupts the outer one, so every second counts once.

    Attributes:
        clock: returns the time in seconds.
        seconds: time spent so far, by phase.
    """

    def __init__(self) -> None:
        self.clock = time.perf_counter
        self.seconds: dict[str, float] = defaultdict(float)
        self._running: list[str] = []
        self._since = 0.0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Count the time within the block as `name`."""
        self._settle()
        self._running.append(name)
        try:
            yield
        finally:
            self._settle()
            self._running.pop()

    def _settle(self) -> None:
        now = self.clock()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now

    def shares(self, total: float) -> list[tuple[str, float, float]]:
        """Return (phase, seconds, share of `total` seconds), longest first; the rest as `other`."""
        rows = {**self.seconds, "other": max(0.0, total - sum(self.seconds.values()))}
        return [
            (name, spent, spent / max(total, 1e-9))
            for name, spent in sorted(rows.items(), key=lambda r: -r[1])
        ]
