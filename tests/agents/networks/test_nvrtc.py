"""The fused kernels' source, compiled by NVRTC for all kinds of cards; no card is needed.

NVRTC comes with torch's builds for CUDA, or by itself as the wheel `nvidia-cuda-nvrtc`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from sweepd.agents.networks.gpu_kernels import NAMES, SOURCE

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
# Registers per thread, at most: a multiprocessor, which has 65,536, then holds 1,024 threads.
REGISTERS = 64


def _nvrtc() -> Any:
    found = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (found.submodule_search_locations or ())] if found else []
    files = sorted(file for root in roots for file in root.glob("*/lib/libnvrtc.so.*"))
    if not files:
        pytest.skip("there is no NVRTC: pip install nvidia-cuda-nvrtc")
    return ctypes.CDLL(str(files[-1]))


def compiled(source: bytes, *options: str) -> tuple[bool, str]:
    """Compile as `torch.cuda._compile_kernel` does. Returns whether it succeeded, and the log."""
    nvrtc, program, size = _nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    assert not nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source, b"gpu_kernels.cu", 0, None, None
    )
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = nvrtc.nvrtcCompileProgram(program, len(options), given)
    assert not nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    assert not nvrtc.nvrtcGetProgramLog(program, log)
    assert not nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return not failed, log.value.decode()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_fused_kernels_compile_without_spills(architecture: int) -> None:
    target = f"--gpu-architecture=sm_{architecture}"
    for more in ((), ("--fmad=false",)):
        done, log = compiled(SOURCE.read_bytes(), target, "--ptxas-options=-v", *more)
        assert done, log
        assert "warning" not in log
        names = re.findall(r"Compiling entry function '(\w+)'", log)
        registers = [int(number) for number in re.findall(r"Used (\d+) registers", log)]
        spills = [int(number) for number in re.findall(r"(\d+) bytes spill", log)]
        print(dict(zip(names, registers, strict=True)))
        assert sorted(names) == sorted(NAMES)
        assert max(registers) <= REGISTERS
        assert len(spills) == 2 * len(NAMES)  # stores and loads
        assert not any(spills)


def test_an_error_in_the_source_is_found() -> None:
    done, log = compiled(SOURCE.read_bytes() + b"\nint f() { return missing; }", "-arch=sm_80")
    assert not done
    assert "missing" in log
