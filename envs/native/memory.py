"""Memory of state that native code reads and writes together with torch."""

from __future__ import annotations

import torch
from torch import Tensor

_LINE = 8  # float64 in a cache line
_FEW = 64  # rows that need no gaps


def per_row(
    *shape: int, rows: int, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu"
) -> Tensor:
    """Return zeros (*shape, rows) whose last dimension is contiguous.

    On CPUs there are gaps between runs of `rows` numbers: `stride_of(rows)` from one to the next.
    Without them, the numbers of one row would be a power of two apart at the usual numbers of rows,
    and caches have only a few places for such addresses.
    """
    stride = stride_of(rows) if torch.device(device).type == "cpu" else rows
    return torch.zeros(*shape, stride, dtype=dtype, device=device)[..., :rows]


def takes_floats(out: Tensor | None, shape: torch.Size) -> bool:
    """Whether native code can write observations to `out`; None stands for a new tensor.

    It must have this shape and be float32, on the CPU, with contiguous rows.
    """
    return out is None or (
        out.shape == shape and out.dtype == torch.float32 and out.is_cpu and out.stride(-1) == 1
    )


def stride_of(rows: int) -> int:
    """Return the distance between runs of `rows` numbers: an odd number of cache lines."""
    return rows if rows < _FEW else (-(-rows // _LINE) | 1) * _LINE
