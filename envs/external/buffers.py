"""The arrays that environments write into, side by side in one block of memory that processes share.

The block has no name anywhere: it lives as long as some process holds it, and is gone when the last one is, however
that ended.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.external.actions import ActionLayout
from envs.external.observations import ObservationLayout

LINE = (
    64  # bytes: no two arrays, and no two processes' words, share a line of the processor's cache
)
WORDS = 3 * LINE // 4  # 32-bit words per worker (`envs.external.handoff`)


@dataclass(frozen=True)
class Buffers:
    """One entry per row.

    obs, final: structured rows of the observation's layout; the present one, and the last of the episode that the row
    ended last. action: (rows, width) as the action's layout says. reward: float32. terminated, truncated,
    present: bool.
    """

    obs: NDArray[Any]
    final: NDArray[Any]
    action: NDArray[Any]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    present: NDArray[np.bool_]

    def part(self, first: int, last: int) -> Buffers:
        """Views of the rows `first` … `last` - 1."""
        return replace(
            self, **{field.name: getattr(self, field.name)[first:last] for field in fields(self)}
        )


class Memory:
    """A block with the words of `workers` workers and the buffers of `rows` rows.

    handle: the file descriptor that other processes open it by; None makes a new one. words: int32.
    """

    def __init__(
        self,
        rows: int,
        observations: ObservationLayout,
        actions: ActionLayout,
        workers: int,
        handle: int | None = None,
    ) -> None:
        kinds: dict[str, tuple[tuple[int, ...], Any]] = {
            "obs": ((rows,), observations.dtype),
            "final": ((rows,), observations.dtype),
            "action": ((rows, actions.width), actions.dtype),
            "reward": ((rows,), np.dtype(np.float32)),
            **{
                name: ((rows,), np.dtype(np.bool_))
                for name in ("terminated", "truncated", "present")
            },
        }
        places, offset = {}, workers * WORDS * 4
        for name, (shape, dtype) in kinds.items():
            places[name] = offset
            offset += -(-int(np.prod(shape)) * dtype.itemsize // LINE) * LINE
        self.handle = _nameless(offset) if handle is None else handle
        block = mmap.mmap(self.handle, offset)
        self.words = memoryview(block)[: workers * WORDS * 4].cast("i")
        self.buffers = Buffers(
            **{
                name: np.ndarray(*kinds[name], buffer=block, offset=place)
                for name, place in places.items()
            }
        )

    def worker_words(self, worker: int) -> memoryview:
        """That worker's own."""
        return self.words[worker * WORDS : (worker + 1) * WORDS]


def _nameless(size: int) -> int:
    """A file in memory, or one on disk whose name is gone already."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("sweepd-envs")
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    os.ftruncate(handle, size)
    return handle
