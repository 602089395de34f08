"""Memory of state that native code reads and writes together with torch."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache

import torch
from torch import Tensor

_LINE = 8  # float64 in a cache line
_FEW = 64  # rows that need no gaps

# glibc's malloc.h: bytes that stay at the end of the heap, and of the largest blocks in it.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT = 2**30
_LARGEST = (_KEPT, 2**25)  # the latter is the most that older versions of glibc take


def per_row(
    *shape: int, rows: int, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu"
) -> Tensor:
    """Return zeros (*shape, rows) whose last dimension is contiguous.

    On CPUs there are gaps between runs of `rows` numbers (`stride_of`). Without them, the numbers
    of one row would be a power of two apart at the usual numbers of rows, and caches have only a
    few places for such addresses.
    """
    return torch.zeros(*shape, stride_of(rows, device), dtype=dtype, device=device)[..., :rows]


def takes_floats(out: Tensor | None, shape: torch.Size, device: torch.device) -> bool:
    """Whether native code can write observations to `out`; None stands for a new tensor.

    It must have this shape and be float32, on the device, with contiguous rows.
    """
    return out is None or (
        out.shape == shape
        and out.dtype == torch.float32
        and out.device == device
        and out.stride(-1) == 1
    )


def stride_of(rows: int, device: torch.device | str = "cpu") -> int:
    """Return the distance between runs of `rows` numbers: on CPUs, an odd number of cache lines."""
    if rows < _FEW or torch.device(device).type != "cpu":
        return rows
    return (-(-rows // _LINE) | 1) * _LINE


@cache
def keep_freed_memory() -> None:
    """Have the C library keep what tensors free for the next ones, in this process.

    By default, glibc returns large blocks to the system, and every gradient step under autograd
    gets new pages, which the kernel clears: a quarter of its time in small networks. In exchange,
    the process keeps up to `_KEPT` bytes that nothing uses. Other C libraries are left as they are.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        # Alone, the second call would be worse than none: it fixes the first one's value, which
        # glibc otherwise adapts, at its small default.
        if any(mallopt(_MMAP_THRESHOLD, size) for size in _LARGEST):
            mallopt(_TRIM_THRESHOLD, _KEPT)
