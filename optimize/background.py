"""One thread for work that training need not wait for: checkpoints, curves, pictures."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """Does jobs one after the other, in the order in which they were given, beside whoever gives them.

    A job that raises ends none of the others; its error is raised by the next `wait`.
    """

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._pending: deque[Future[None]] = deque()

    def submit(self, job: Callable[[], None]) -> None:
        """Do this when its turn comes."""
        self._pending.append(self._pool.submit(job))

    @property
    def busy(self) -> bool:
        """Whether a job is waiting or under way."""
        return any(not future.done() for future in self._pending)

    def wait(self) -> None:
        """Return once everything given so far is done. Raises the first error of a job since the last `wait`."""
        errors = [error for future in self._take() if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Wait as `wait` does, and end the thread."""
        try:
            self.wait()
        finally:
            self._pool.shutdown()

    def _take(self) -> list[Future[None]]:
        taken = list(self._pending)
        self._pending.clear()
        return taken
