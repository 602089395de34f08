"""Use of a GPU, as workers record it and `sweepd status` shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuUse:
    """Use of a GPU.

    Attributes:
        share: share of the last sampling period in which a kernel ran, 0 to 1.
        used: bytes of memory used by all processes.
        total: bytes of memory of the GPU.
    """

    share: float
    used: int
    total: int

    def __str__(self) -> str:
        return f"{self.share:.0%} · {self.used / 2**30:.1f}/{self.total / 2**30:.1f} GiB"
