"""Memory shared by the parent process and its env workers, and how they hand work over in it.

One block holds the arrays that environments write into, and a few 32-bit words per worker. The
block has no name in any file system: it exists as long as some process has it open, so nothing is
left behind however a process ends.

Work is handed over by a state word. Where the processor keeps writes in order (x86), a waiting
process polls the word for a bounded time, and only then sleeps until it is woken through a socket.
On other processors every hand-over goes through the socket, since there only the kernel orders the
writes.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import select
import socket
import tempfile
import time
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweepd.envs.external.actions import ActionLayout
from sweepd.envs.external.observations import ObservationLayout

# Bytes of a cache line. No two arrays and no two processes' words share one.
LINE = 64
# 32-bit words per worker: the state, and two flags, each on a line of its own.
WORDS = 3 * LINE // 4
PARENT_SLEEPS, WORKER_SLEEPS = LINE // 4, 2 * LINE // 4  # indices of the flags

IDLE, STEP, CALL, FAILED = range(4)  # values of the state word
ORDERED = platform.machine().lower() in ("x86_64", "amd64")
_POLLS = 16  # reads of the word between two reads of the clock
_NAP = 0.05  # seconds of sleep between two reads of the word, in case a wake-up was missed


@dataclass(frozen=True)
class Buffers:
    """Arrays with one entry per row.

    Attributes:
        obs: (rows,) structured, as in `ObservationLayout`; the current observation.
        final: Likewise; the last observation of the row's most recently ended episode.
        action: (rows, width), as in `ActionLayout`.
        reward: (rows,) float32.
        terminated: (rows,) bool.
        truncated: (rows,) bool.
        present: (rows,) bool; False where the row has no agent at the moment.
    """

    obs: NDArray[Any]
    final: NDArray[Any]
    action: NDArray[Any]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    present: NDArray[np.bool_]

    def part(self, first: int, last: int) -> Buffers:
        """Return views of the rows `first` to `last` - 1."""
        return replace(
            self, **{field.name: getattr(self, field.name)[first:last] for field in fields(self)}
        )

    def copies(self) -> Buffers:
        """Return copies of all arrays."""
        return replace(
            self, **{field.name: getattr(self, field.name).copy() for field in fields(self)}
        )

    def copy_from(self, rows: NDArray[np.int64], other: Buffers, others: NDArray[np.int64]) -> None:
        """Copy all but the actions of the rows `others` of other arrays to the rows `rows`."""
        for field in fields(self):
            if field.name != "action":
                getattr(self, field.name)[rows] = getattr(other, field.name)[others]


class SharedMemory:
    """A block with the words of `workers` env workers and the buffers of `rows` rows.

    Attributes:
        handle: File descriptor by which other processes open the block.
        words: All workers' words, int32.
        buffers: The arrays.
    """

    def __init__(
        self,
        rows: int,
        observations: ObservationLayout,
        actions: ActionLayout,
        workers: int,
        handle: int | None = None,
    ) -> None:
        """Open the block `handle`, or create one if it is None."""
        formats: dict[str, tuple[tuple[int, ...], Any]] = {
            "obs": ((rows,), observations.dtype),
            "final": ((rows,), observations.dtype),
            "action": ((rows, actions.width), actions.dtype),
            "reward": ((rows,), np.dtype(np.float32)),
            **{
                name: ((rows,), np.dtype(np.bool_))
                for name in ("terminated", "truncated", "present")
            },
        }
        offsets, offset = {}, workers * WORDS * 4
        for name, (shape, dtype) in formats.items():
            offsets[name] = offset
            offset += -(-int(np.prod(shape)) * dtype.itemsize // LINE) * LINE
        self.handle = _unnamed_file(offset) if handle is None else handle
        block = mmap.mmap(self.handle, offset)
        self.words = memoryview(block)[: workers * WORDS * 4].cast("i")
        self.buffers = Buffers(
            **{
                name: np.ndarray(*formats[name], buffer=block, offset=start)
                for name, start in offsets.items()
            }
        )

    def worker_words(self, worker: int) -> memoryview:
        """Return the words of one worker."""
        return self.words[worker * WORDS : (worker + 1) * WORDS]


def _unnamed_file(size: int) -> int:
    """Create a file in memory, or one on disk whose name is already removed."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("sweepd-envs")
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    os.ftruncate(handle, size)
    return handle


class GoneError(Exception):
    """The process at the other end has ended."""


class HandOver:
    """One end of the hand-over between the parent process and one env worker."""

    def __init__(
        self, words: memoryview, wake: socket.socket, spin: float, *, parent: bool, ordered: bool
    ) -> None:
        """Set `wake` to non-blocking.

        Args:
            words: The worker's words; word 0 is the state.
            wake: This end of the socket that wakes a sleeping process.
            spin: Seconds to poll the state before sleeping.
            parent: Whether this is the parent's end.
            ordered: Whether the processor keeps writes in order; the same at both ends.
        """
        self._words, self._wake, self._ordered = words, wake, ordered
        self._spin = spin if ordered else 0.0
        self._own_flag, self._other_flag = (
            (PARENT_SLEEPS, WORKER_SLEEPS) if parent else (WORKER_SLEEPS, PARENT_SLEEPS)
        )
        wake.setblocking(False)
        self._poll = select.poll()
        self._poll.register(wake, select.POLLIN)

    @property
    def state(self) -> int:
        """The present state."""
        return self._words[0]

    def set_state(self, state: int) -> None:
        """Hand over. The other end sees all that was written before."""
        self._words[0] = state
        if not self._ordered or self._words[self._other_flag]:
            # A full or closed socket is no error: the other end is awake, or `wait_while` sees it.
            with contextlib.suppress(OSError):
                self._wake.send(b".")

    def wait_while(self, state: int, seconds: float) -> bool:
        """Wait until the state is another one.

        Returns:
            False if it still is the same after that many seconds.

        Raises:
            GoneError: The other end has closed without changing the state.
        """
        words = self._words
        now = time.monotonic()
        deadline, spun = now + seconds, now + self._spin
        while now < spun:
            for _ in range(_POLLS):
                if words[0] != state:
                    return True
            os.sched_yield()  # to other processes that are ready to run on this core
            now = time.monotonic()
        words[self._own_flag] = 1
        try:
            while not self._ordered or words[0] == state:
                woken = self._sleep(min(_NAP, max(0.0, deadline - time.monotonic())))
                if words[0] != state and (woken is not None or self._ordered):
                    return True
                if woken is False:
                    raise GoneError
                if time.monotonic() >= deadline:
                    return False
            return True
        finally:
            words[self._own_flag] = 0

    def _sleep(self, seconds: float) -> bool | None:
        """Sleep until woken; None after that many seconds, False if the other end has closed."""
        if not self._poll.poll(seconds * 1000):
            return None
        try:
            return bool(self._wake.recv(4096))
        except OSError:
            return False
