"""A thread that calls a function at regular intervals."""

from __future__ import annotations

import threading
from collections.abc import Callable


class PeriodicThread:
    """Calls `tick` every `interval` seconds until `stop`, then `end`; all calls in one thread."""

    def __init__(
        self,
        tick: Callable[[], None],
        interval: float,
        name: str,
        *,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._tick, self._interval, self._end = tick, interval, end
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. The first call follows after one interval."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for a running call to return."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        # Waits between two calls, not from start to start: a slow call delays the next one.
        while not self._stopped.wait(self._interval):
            self._tick()
        self._end()
