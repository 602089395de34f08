"""The number of threads of native code, and of torch's operations between it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class _Native(threading.local):
    count: int | None = None  # while torch has one thread


_native = _Native()


def count() -> int:
    """Return how many threads native code uses: as many as torch has, or had."""
    return _native.count or torch.get_num_threads()


@contextmanager
def torch_on_one(native: bool) -> Iterator[None]:
    """Let torch use one thread if work is native, and native code as many as torch did before.

    For programs whose products are native, and for native environments. The other operations are
    small, and torch's OpenMP threads wait for the next one in a loop, for milliseconds, on the
    cores that native code needs. On a busy machine, each operation would wait for a thread that has
    no core.
    """
    if not native:
        yield
        return
    before, outer = torch.get_num_threads(), _native.count
    _native.count = count()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _native.count = outer
