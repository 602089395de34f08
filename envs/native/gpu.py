"""Kernels for GPUs: compiled at their first use, tested on the card, launched on torch's tensors.

NVRTC (on AMD cards hiprtc), which comes with torch, compiles them, so neither a toolkit nor a
compiler is needed. Where that or their test fails, torch's operations do the same, and a warning
says so once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from sweepd.envs.native.structs import CStruct
from sweepd.envs.support.upload import upload

THREADS = 128  # per block, unless a source says otherwise
# Runs a kernel on (blocks, rows of blocks), with tensors and numbers.
Launch = Callable[[tuple[int, int], Sequence[Tensor | int]], None]


class GpuKernels:
    """The kernels of a source by name. Their arguments are those of its functions.

    Attributes:
        threads: per block.
    """

    def __init__(self, launches: Mapping[str, Launch], threads: int = THREADS) -> None:
        self._launches, self.threads = launches, threads

    def run(self, name: str, threads: int, *arguments: Tensor | int, rows: int = 1) -> None:
        """Run a kernel.

        Args:
            name: its name.
            threads: number of threads, at least.
            arguments: contiguous tensors, or views whose strides the kernel is told, and numbers.
            rows: number of rows of threads.
        """
        self._launches[name]((-(-threads // self.threads), rows), arguments)


@dataclass(frozen=True)
class KernelSource:
    """A file of kernels.

    Attributes:
        of: what they compute, for messages.
        file: the source, in CUDA's and HIP's common language.
        names: of the kernels. A template's has its arguments, `name<true>`, and is `name` here.
        agrees: tests compiled kernels on a device.
        threads: per block.
        folders: of the headers.
        constants: that the source leaves open, with their values.
        exact: whether products and sums are rounded separately, as IEEE 754 says.
    """

    of: str
    file: Path
    names: tuple[str, ...]
    agrees: Callable[[GpuKernels, torch.device], bool] = field(compare=False)
    threads: int = THREADS
    folders: tuple[Path, ...] = ()
    constants: tuple[tuple[str, int], ...] = ()
    exact: bool = False

    def options(self, *, amd: bool) -> list[str]:
        """Return the compiler's options: hiprtc's (`amd`), or NVRTC's."""
        exact = ["-ffp-contract=off" if amd else "--fmad=false"] if self.exact else []
        return [*exact, *(f"-D{name}={value}" for name, value in self.constants)]

    def on(self, device: torch.device) -> GpuKernels | None:
        """Return the kernels of a device; None where torch's operations are used."""
        return _compiled(self, device) if device.type == "cuda" else None

    def compiled(self, device: torch.device) -> GpuKernels | None:
        """Compile the kernels for a device and test them; None, after a warning, if that fails."""
        # Anything may be missing: the compiler's library, torch's private function, the driver.
        try:
            with torch.cuda.device(device), _no_toolkit_needed():
                found = self.made_of(lambda name: self._launch_of(name, device))
                agrees = self.agrees(found, device)
        except Exception as error:
            self._warn(f"{type(error).__name__}: {error}")
            return None
        if not agrees:
            self._warn("they fail their test")
            return None
        return found

    def made_of(self, launch_of: Callable[[str], Launch]) -> GpuKernels:
        """Return the kernels, given what returns a kernel's launch by its name in the source."""
        launches = {name.partition("<")[0]: launch_of(name) for name in self.names}
        return GpuKernels(launches, self.threads)

    def _launch_of(self, name: str, device: torch.device) -> Launch:
        kernel = torch.cuda._compile_kernel(
            self.file.read_text(encoding="utf-8"),
            name,
            cuda_include_dirs=[*map(str, self.folders)],
            nvcc_options=self.options(amd=torch.version.hip is not None),
        )

        def launch(blocks: tuple[int, int], arguments: Sequence[Tensor | int]) -> None:
            with torch.cuda.device(device):  # torch launches on the current one
                kernel(grid=(*blocks, 1), block=(self.threads, 1, 1), args=[*arguments])

        return launch

    def _warn(self, why: str) -> None:
        logging.getLogger("sweepd").warning(
            "no fused kernels of %s on the GPU, torch's operations instead (more launches): %s",
            self.of,
            why,
        )


@cache
def _compiled(source: KernelSource, device: torch.device) -> GpuKernels | None:
    return source.compiled(device)


@contextmanager
def _no_toolkit_needed() -> Iterator[None]:
    """Let torch compile where the CUDA or ROCm toolkit, whose headers it offers, is missing."""
    from torch.utils import cpp_extension  # slow to import, and only needed on GPUs

    homes = {name: getattr(cpp_extension, name) for name in ("CUDA_HOME", "ROCM_HOME")}
    try:
        for name, home in homes.items():
            setattr(cpp_extension, name, home or "/usr")
        yield
    finally:
        for name, home in homes.items():
            setattr(cpp_extension, name, home)


def struct_on(struct: CStruct, device: torch.device) -> Tensor:
    """Return a copy of a struct on a device, for kernels: (8-byte words,) int64.

    Its fields are numbers, and addresses of tensors on that device, which the caller keeps.
    """
    return upload(torch.frombuffer(bytearray(struct), dtype=torch.int64), device)
