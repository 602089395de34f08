"""Something that is done again and again beside the work, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Ticking:
    """Calls `tick` every `interval` seconds from `start` to `stop`, and then `end`, all in one thread."""

    def __init__(
        self,
        tick: Callable[[], None],
        interval: float,
        name: str,
        *,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._tick, self._interval, self._end = tick, interval, end
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; the first call comes after the first interval."""
        self._thread.start()

    def stop(self) -> None:
        """End, once a call that is under way has come to its end."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._interval):
            self._tick()
        self._end()
