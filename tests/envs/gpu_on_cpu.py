"""Kernels for GPUs, compiled for the CPU: the same text with stand-ins for CUDA's words."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from sweepd.envs.crypto.native.step import _torch_log1p
from sweepd.envs.native.build import BuildError, compiler, vector_flags
from sweepd.envs.native.gpu import GpuKernels, KernelSource

# What a GPU's compiler has, and a C++ compiler has not. The logarithm is that of torch on the CPU,
# where it is known (`_torch_log1p`).
GPU = """
#include <cmath>
#define __global__
#define __device__
struct Place { int x, y; };
static Place blockIdx, threadIdx, blockDim;
[[maybe_unused]] static inline unsigned __umulhi(unsigned x, unsigned y) { return (unsigned long long)x * y >> 32; }
#if defined(__AVX512F__)
typedef double Wide __attribute__((vector_size(64)));
#else
typedef double Wide __attribute__((vector_size(32)));
#endif
extern "C" { Wide (*vector_log1p)(Wide) = nullptr; }
inline double torch_log1p(double x) {
    return vector_log1p ? vector_log1p(Wide{} + x)[0] : std::log1p(x);
}
#define log1p torch_log1p
"""
LOOP = """
extern "C" void run_{name}(int grid_x, int grid_y, int threads, {parameters}) {{
    blockDim = {{threads, 1}};
    for (blockIdx.y = 0; blockIdx.y < grid_y; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < grid_x; blockIdx.x++)
            for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) {kernel}({names});
}}
"""


def on_cpu(source: KernelSource, folder: Path) -> GpuKernels:
    """Compile kernels in an empty folder. Skips the test where there is no compiler."""
    try:
        made, vectors = compiler(), vector_flags()
    except BuildError as error:
        pytest.skip(str(error))
    own = source.file.read_text()
    text = GPU + own
    for kernel in source.names:
        name = kernel.partition("<")[0]
        found = re.search(rf"void {name}\((.*?)\)", own, re.DOTALL)
        assert found
        parameters = found[1]
        names = ", ".join(one.split()[-1].lstrip("*") for one in parameters.split(","))
        text += LOOP.format(name=name, kernel=kernel, parameters=parameters, names=names)
    (folder / "kernels.cpp").write_text(text)
    library = folder / "kernels.so"
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    # GCC's own AVX-512 header has a false positive of -Wmaybe-uninitialized.
    flags += ["-Wno-psabi", "-Wno-maybe-uninitialized", *vectors]
    flags += ["-ffp-contract=off"] if source.exact else []
    flags += [f"-D{name}={value}" for name, value in source.constants]
    flags += [f"-I{path}" for path in source.folders]
    subprocess.run([made, *flags, folder / "kernels.cpp", "-o", library], check=True)
    loaded = ctypes.CDLL(str(library))
    ctypes.c_void_p.in_dll(loaded, "vector_log1p").value = _torch_log1p()
    return source.made_of(lambda kernel: _launch_of(loaded, kernel.partition("<")[0], source))


def _launch_of(loaded: ctypes.CDLL, name: str, source: KernelSource) -> Any:
    function = loaded[f"run_{name}"]

    def launch(blocks: tuple[int, int], arguments: Sequence[Tensor | int]) -> None:
        given = [
            ctypes.c_void_p(one.data_ptr()) if isinstance(one, Tensor) else ctypes.c_int(one)
            for one in arguments
        ]
        function(*(ctypes.c_int(number) for number in (*blocks, source.threads)), *given)

    return launch
