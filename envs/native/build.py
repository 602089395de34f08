"""Compile the C++ sources at their first use, into sweepd's cache folder.

They are compiled on the machine that runs them, for its kind of processor, and once per version of
the sources. So a checkout, an editable install and a wheel behave alike, packages stay independent
of the platform, and a library never differs from its sources. The price is a compiler on the
machine itself (a few seconds, once); without one, torch does the work.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from envs.support.measurement_cache import cache_dir

SHARED = Path(__file__).with_name("src")  # headers for all libraries
# No contraction and no -ffast-math: bits must be those that the sources say. -w: users' compilers
# may know other warnings than ours; tests compile with all of them.
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-pthread", "-w")
# By what torch found the processor to have.
_VECTORS = {
    "AVX512": ("-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-mfma"),
    "AVX2": ("-mavx2", "-mfma"),
}
_TIMEOUT = 300.0  # seconds
VARIABLE, TORCH = "SWEEPD_KERNELS", "torch"  # SWEEPD_KERNELS=torch: no native code


class BuildError(Exception):
    """The kernels cannot be compiled; the message says what is missing, in a few words."""


def vector_flags() -> tuple[str, ...]:
    """Return the compiler's flags for this processor.

    Raises:
        BuildError: it has no fused multiply-add of vectors, without which bits would differ.
    """
    if platform.machine() in ("aarch64", "arm64"):
        return ()  # NEON is always there
    capability = torch.backends.cpu.get_cpu_capability()
    if platform.machine() not in ("x86_64", "AMD64") or capability not in _VECTORS:
        raise BuildError("the processor has neither AVX2 with FMA nor NEON")
    return _VECTORS[capability]


def compiler() -> str:
    """Return the C++ compiler: `$CXX`, or the first of c++, g++ and clang++ on the path."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    raise BuildError("there is no C++ compiler (install g++ or clang++)")


def library(source: Path) -> Path:
    """Return the compiled library for this processor, compiling it if it is not in the cache.

    Args:
        source: the C++ file to compile. It may include those in its folder and in `SHARED`.

    Raises:
        BuildError: it cannot be compiled.
    """
    flags = (*FLAGS, *vector_flags())
    key = hashlib.sha256(" ".join((*flags, platform.machine(), *platform.libc_ver())).encode())
    for file in (*sorted(source.parent.iterdir()), *sorted(SHARED.iterdir())):
        key.update(file.name.encode() + file.read_bytes())
    name = f"{source.stem}-{key.hexdigest()[:16]}.so"
    folder = cache_dir() / "native"
    if (folder / name).exists() and _own(folder):
        return folder / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _own(folder):
            raise PermissionError
        return _compiled(source, folder / name, flags)
    except OSError:  # a read-only cache: compile for this process alone
        return _compiled(source, Path(tempfile.mkdtemp(prefix="sweepd-")) / name, flags)


def _own(folder: Path) -> bool:
    """Whether no other user can have put a library there."""
    status = folder.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _compiled(source: Path, target: Path, flags: tuple[str, ...]) -> Path:
    command = [compiler(), *flags, f"-I{SHARED}", str(source)]
    # Workers may compile at the same time: each to a name of its own, then moved in one step.
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        try:
            done = subprocess.run(
                [*command, "-o", str(made)],
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"{command[0]} took longer than {_TIMEOUT:.0f} s") from error
        if done.returncode:
            first = next((line for line in done.stderr.splitlines() if "error" in line), "")
            raise BuildError(f"{command[0]} failed: {first.strip() or done.returncode}")
        made.replace(target)
    return target
