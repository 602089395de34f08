"""One thread for work that training need not wait for: checkpoints, curves, pictures."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch


class Background:
    """Runs jobs one after the other, in the order in which they were submitted, in a thread of its own.

    A job that raises does not stop the others; the next `wait` raises its error.
    """

    def __init__(self, name: str) -> None:
        # The initializer below also sets the default of every thread that has not computed yet. This call ends that for
        # the calling thread: its number stays as it is now.
        torch.get_num_threads()
        # Where torch computed on several cores in this thread, OpenMP would start a second team of threads. With more
        # threads than cores, libgomp lets all of them sleep instead of spin, and training would lose a third of its
        # speed for the rest of the process.
        self._pool = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix=name, initializer=torch.set_num_threads, initargs=(1,)
        )
        self._pending: deque[Future[None]] = deque()

    def submit(self, job: Callable[[], None]) -> None:
        """Run this job after those that were submitted before."""
        self._pending.append(self._pool.submit(job))

    @property
    def busy(self) -> bool:
        """Whether a job is waiting or running."""
        return any(not future.done() for future in self._pending)

    def wait(self) -> None:
        """Return once all jobs submitted so far are done. Raises the first error of a job since the last `wait`."""
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
