"""All kernels for GPUs, compiled by NVRTC for all kinds of cards; no card is needed.

NVRTC comes with torch's builds for CUDA, or by itself as the wheel `nvidia-cuda-nvrtc`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweepd.agents.networks.gpu_kernels import KERNELS
from sweepd.envs.core import gpu as random_numbers
from sweepd.envs.crypto.native.choice import SIZES, kernels_of
from sweepd.envs.games.native import cartpole
from sweepd.envs.native.gpu import KernelSource

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
SOURCES = {
    "networks": KERNELS,
    "random numbers": random_numbers.KERNELS,
    "cartpole": cartpole.KERNELS,
    "crypto": kernels_of(1, shorts=False),
    "crypto, shorts": kernels_of(1, shorts=True),
}
# Registers per thread, at most. With 64, a multiprocessor, which has 65,536, holds 1,024 threads.
REGISTERS = {
    "networks": 64,
    "random numbers": 32,
    "cartpole": 64,
    "crypto": 72,
    "crypto, shorts": 96,
}


def _nvrtc() -> Any:
    found = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (found.submodule_search_locations or ())] if found else []
    files = sorted(file for root in roots for file in root.glob("*/lib/libnvrtc.so.*"))
    if not files:
        pytest.skip("there is no NVRTC: pip install nvidia-cuda-nvrtc")
    return ctypes.CDLL(str(files[-1]))


def compiled(source: KernelSource, text: bytes, *options: str) -> tuple[bool, str, str]:
    """Compile as `torch.cuda._compile_kernel` does.

    Returns:
        Whether it succeeded, the log, and the PTX if the architecture is a virtual one.
    """
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    name = source.file.name.encode()
    assert not nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None)
    for kernel in source.names:
        assert not nvrtc.nvrtcAddNameExpression(program, kernel.encode())
    every = [*(f"-I{folder}" for folder in source.folders), *source.options(amd=False), *options]
    given = (ctypes.c_char_p * len(every))(*(option.encode() for option in every))
    failed = nvrtc.nvrtcCompileProgram(program, len(every), given)
    log, ptx = (_read(nvrtc, program, what) for what in ("ProgramLog", "PTX"))
    assert not nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return not failed, log, ptx


def _read(nvrtc: Any, program: ctypes.c_void_p, what: str) -> str:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, text)
    return text.value.decode()


def registers_of(source: KernelSource, *options: str) -> dict[str, int]:
    """Compile kernels, none of which may spill registers; return those of each."""
    done, log, _ = compiled(source, source.file.read_bytes(), "--ptxas-options=-v", *options)
    assert done, log
    assert "warning" not in log
    names = re.findall(r"Compiling entry function '(\w+)'", log)
    registers = [int(number) for number in re.findall(r"Used (\d+) registers", log)]
    spills = [int(number) for number in re.findall(r"(\d+) bytes spill", log)]
    assert len(names) == len(source.names)
    # Stores and loads; of functions that CUDA does not inline, too.
    assert len(spills) >= 2 * len(source.names)
    assert not any(spills)
    return dict(zip(names, registers, strict=True))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", SOURCES)
def test_kernels_compile_without_spills(name: str, architecture: int) -> None:
    source = SOURCES[name]
    target = f"--gpu-architecture=sm_{architecture}"
    for more in ((), ("--fmad=false",)) if not source.exact else ((),):
        registers = registers_of(source, target, *more)
        print(registers)
        assert max(registers.values()) <= REGISTERS[name]


@pytest.mark.parametrize("shorts", [False, True])
@pytest.mark.parametrize("assets", SIZES[1:])
def test_kernels_of_larger_markets_compile_without_spills(assets: int, shorts: bool) -> None:
    registers_of(kernels_of(assets, shorts=shorts), "--gpu-architecture=sm_90")


def test_an_error_in_the_source_is_found() -> None:
    text = KERNELS.file.read_bytes() + b"\nint f() { return missing; }"
    done, log, _ = compiled(KERNELS, text, "-arch=sm_80")
    assert not done
    assert "missing" in log


def test_products_and_sums_of_exact_kernels_are_rounded_separately() -> None:
    source, header = cartpole.KERNELS, cartpole.SOURCE.with_suffix(".h").read_text()
    fused = []
    for exact in (True, False):
        own = replace(source, exact=exact)
        done, log, ptx = compiled(own, own.file.read_bytes(), "--gpu-architecture=compute_80")
        assert done, log
        move = ptx.partition(".entry cartpole_move")[2].partition(".entry")[0]
        fused.append(move.count("fma.rn.f64"))
    # Those of the text, which declares the function once; and others.
    assert fused[0] == header.count("addcmul(") - 1
    assert fused[1] > fused[0]
