"""Random numbers in C++ for CPUs, called through ctypes: to the bit those of `philox`."""

from __future__ import annotations

import ctypes
import hashlib
from ctypes import c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from sweepd.envs.core import philox
from sweepd.envs.native import threads
from sweepd.envs.native.structs import c_struct
from sweepd.envs.native.use import NativeLibrary

SOURCE = Path(__file__).with_name("src") / "philox.cpp"
# After an intended change of the numbers: python -m sweepd.envs.core.native
DIGEST = "3d9a2e712f3f0be0"
STREAM = c_struct(SOURCE, "Stream")


class Library:
    """The functions of the compiled library.

    Streams are (M, 3) int64, contiguous: `Stream` in philox.h.
    """

    def __init__(self, path: Path) -> None:
        lib, at, number = ctypes.CDLL(str(path)), c_void_p, c_int64
        self._uniform, self._normal = lib.sweepd_random_uniform, lib.sweepd_random_normal
        self._uniform_double = lib.sweepd_random_uniform_double
        self._permutations = lib.sweepd_random_permutations
        for function in (self._uniform, self._uniform_double, self._permutations):
            function.argtypes = [at, number, at, number, number, number]
        self._normal.argtypes = [at, number, at, number, number, at, number]
        for function in (self._uniform, self._uniform_double, self._normal, self._permutations):
            function.restype = None

    def uniform(self, streams: Tensor, out: Tensor) -> None:
        """Write (steps, M, columns) numbers in [0, 1), float32 or float64, contiguous."""
        function = self._uniform if out.dtype == torch.float32 else self._uniform_double
        function(*_arguments(streams, out), out.shape[2], threads.count())

    def normal(self, streams: Tensor, out: Tensor) -> None:
        """Write (steps, M, columns) standard normal numbers, float32, contiguous."""
        table = philox.normal_table(out.device)
        self._normal(*_arguments(streams, out), out.shape[2], table.data_ptr(), threads.count())

    def permutations(self, streams: Tensor, out: Tensor) -> None:
        """Write (M, k, size) int64, k permutations of each stream, contiguous."""
        self._permutations(
            streams.data_ptr(), len(streams), out.data_ptr(), *out.shape[1:], threads.count()
        )


def _arguments(streams: Tensor, out: Tensor) -> tuple[int, int, int, int]:
    return streams.data_ptr(), len(streams), out.data_ptr(), len(out)


def digest(found: Library) -> str:
    """Return 16 hexadecimal digits of a hash of what the library computes, for its self-test."""
    streams = torch.tensor([[3, 0, 1], [-5, 2**40, 1], [7, 1, 0]])
    hashed = hashlib.sha256()
    for dtype in (torch.float32, torch.float64):
        for steps, columns in ((3, 5), (40, 300)):
            out = torch.empty(steps, 3, columns, dtype=dtype)
            found.uniform(streams, out)
            hashed.update(out.numpy().tobytes())
            if dtype == torch.float32:
                found.normal(streams, out)
                hashed.update(out.numpy().tobytes())
    for size in (1, 100, 3000):
        order = torch.empty(3, 2, size, dtype=torch.int64)
        found.permutations(streams, order)
        hashed.update(order.numpy().tobytes())
    return hashed.hexdigest()[:16]


RANDOM = NativeLibrary("random numbers", SOURCE, Library, digest, DIGEST)

if __name__ == "__main__":
    RANDOM.print_digest()
