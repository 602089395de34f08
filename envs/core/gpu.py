"""Random numbers on GPUs: a launch for all members, to the bit those of `philox`."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from sweepd.envs.core import philox
from sweepd.envs.native.build import SHARED
from sweepd.envs.native.gpu import GpuKernels, KernelSource

_SOURCE = Path(__file__).with_name("src") / "philox.cu"


class GpuNumbers:
    """The kernels of `philox.cu`; streams and results are on the device (see `philox`)."""

    def __init__(self, kernels: GpuKernels) -> None:
        self._kernels = kernels

    def uniform(self, streams: Tensor, out: Tensor) -> None:
        """See `philox.uniform`."""
        double = out.dtype == torch.float64
        self._write("random_uniform_double" if double else "random_uniform", streams, out)

    def normal(self, streams: Tensor, out: Tensor) -> None:
        """See `philox.normal`."""
        self._write("random_normal", streams, out, philox.normal_table(out.device))

    def permutations(self, streams: Tensor, out: Tensor) -> None:
        """See `philox.permutations`."""
        keys = torch.empty_like(out)
        count, size = out[0].numel(), out.shape[-1]
        self._run("random_keys", streams, count, out.dtype, keys, count, size)
        torch.bitwise_and(keys.sort(-1).values, 2**philox.INDEX_BITS - 1, out=out)

    def _write(self, name: str, streams: Tensor, out: Tensor, *before: Tensor) -> None:
        steps, members, columns = out.shape
        count = steps * columns
        self._run(name, streams, count, out.dtype, *before, out, count, members, columns)

    def _run(
        self, name: str, streams: Tensor, count: int, dtype: torch.dtype, *arguments: Tensor | int
    ) -> None:
        threads = philox.groups_of(count, dtype) * philox.BLOCKS
        self._kernels.run(name, threads, streams, *arguments, rows=len(streams))


def agrees(kernels: GpuKernels, device: torch.device) -> bool:
    """Test the kernels on the device."""
    streams = torch.tensor([[3, 0, 1], [-5, 2**40, 1], [7, 1, 0]], device=device)
    return same(GpuNumbers(kernels), streams, 11, 37)


def same(numbers: philox.Numbers, streams: Tensor, steps: int, columns: int) -> bool:
    """Return whether numbers of all kinds are those of `philox`."""
    many, equal = (steps, len(streams), columns), True
    for name, shape, dtype in (
        ("uniform", many, torch.float32),
        ("uniform", many, torch.float64),
        ("normal", many, torch.float32),
        ("permutations", (len(streams), steps, columns), torch.int64),
    ):
        one, two = torch.full((2, *shape), -1, dtype=dtype, device=streams.device)
        getattr(numbers, name)(streams, one)
        getattr(philox, name)(streams, two)
        equal &= torch.equal(one, two)
    return equal


KERNELS = KernelSource(
    "random numbers",
    _SOURCE,
    ("random_uniform", "random_uniform_double", "random_normal", "random_keys"),
    agrees,
    folders=(_SOURCE.parent, SHARED),
    exact=True,
)


def numbers_on(device: torch.device) -> GpuNumbers | None:
    """Return the kernels of a device; None where torch's operations are used."""
    kernels = KERNELS.on(device)
    return None if kernels is None else GpuNumbers(kernels)
