"""A background thread for work that training does not wait for: checkpoints, curves, images."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch


class Background:
    """Runs jobs in one thread, in the order of submission.

    A job that raises does not stop the others; the next `wait` raises its error.
    """

    def __init__(self, name: str) -> None:
        # The pool's initializer also changes the default number of torch threads of every thread
        # that has not computed yet. Asking for the number here fixes it for the calling thread.
        torch.get_num_threads()
        # With several torch threads, this thread would start a second OpenMP team. With more
        # threads than cores, libgomp lets idle threads sleep instead of spin, which would slow
        # training down by a third for the rest of the process.
        self._pool = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix=name, initializer=torch.set_num_threads, initargs=(1,)
        )
        self._pending: list[Future[None]] = []  # submitted since the last `wait`

    def submit(self, job: Callable[[], None]) -> None:
        """Append a job to the queue."""
        self._pending.append(self._pool.submit(job))

    @property
    def busy(self) -> bool:
        """Whether a job is waiting or running."""
        return any(not future.done() for future in self._pending)

    def wait(self) -> None:
        """Wait for all jobs submitted so far.

        Raises:
            Exception: the first error of a job since the last call.
        """
        submitted, self._pending = self._pending, []
        errors = [error for future in submitted if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Wait for all jobs as `wait` does, then end the thread."""
        try:
            self.wait()
        finally:
            self._pool.shutdown()
