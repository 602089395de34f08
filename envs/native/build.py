"""Compile the C++ sources at their first use, into sweepd's cache folder.

They are compiled on the machine that runs them, for its kind of processor, and once per version of
the sources. So a checkout, an editable install and a wheel behave alike, packages stay independent
of the platform, and a library never differs from its sources. The price is a compiler on the
machine itself (about a minute, once); without one, torch does the work.

A library runs with the user's rights, so it is loaded only if no other user can have put it there:
see `_safe` and `_loadable`.
"""

from __future__ import annotations

import grp
import hashlib
import os
import platform
import pwd
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import torch

from sweepd.envs.support.measurement_cache import cache_dir

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


_opened: dict[tuple[int, int], int] = {}  # descriptors of loaded libraries, by device and inode


def vector_flags() -> tuple[str, ...]:
    """Return the compiler's flags for this processor.

    Raises:
        BuildError: it has no fused multiply-add of vectors, without which bits would differ.
    """
    kinds = processor_kinds()
    capability = torch.backends.cpu.get_cpu_capability() if len(kinds) > 1 else "NEON"
    if capability not in kinds:
        raise BuildError("the processor has neither AVX2 with FMA nor NEON")
    return kinds[capability]


def processor_kinds() -> dict[str, tuple[str, ...]]:
    """Return the compiler's flags for every kind of processor of this architecture."""
    if platform.machine() in ("aarch64", "arm64"):
        return {"NEON": ()}  # always there
    return _VECTORS if platform.machine() in ("x86_64", "AMD64") else {}


def compiler() -> str:
    """Return the C++ compiler: `$CXX`, or the first of c++, g++ and clang++ on the path."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    raise BuildError("there is no C++ compiler (install g++ or clang++)")


def library(source: Path, vectors: tuple[str, ...] | None = None) -> Path:
    """Return the compiled library to load, compiling it if it is in none of the folders.

    Args:
        source: the C++ file to compile. It may include those in its folder and in `SHARED`.
        vectors: as `processor_kinds` returns them; None: of this processor.

    Raises:
        BuildError: it cannot be compiled, or there is no safe folder for it.
    """
    flags = (*FLAGS, *(vector_flags() if vectors is None else vectors))
    key = hashlib.sha256(" ".join((*flags, platform.machine(), *platform.libc_ver())).encode())
    for file in (*sorted(source.parent.iterdir()), *sorted(SHARED.iterdir())):
        key.update(file.name.encode() + file.read_bytes())
    name = f"{source.stem}-{key.hexdigest()[:16]}.so"
    for folder in _folders():
        if (real := _safe(folder)) and (found := _loadable(real / name)):
            return found
    for folder in _folders():
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            if (real := _safe(folder)) is None:
                continue
            _compile(source, real / name, flags)
        except OSError:  # a read-only cache, say
            continue
        if found := _loadable(real / name):
            return found
    raise BuildError(
        f"neither {' nor '.join(map(str, _folders()))} is a folder that this user, and no other "
        "user, can write to (set SWEEPD_CACHE_DIR to one)"
    )


def _folders() -> tuple[Path, Path]:
    """Return the folders of libraries: in the cache, and one per user where that cannot be used."""
    return cache_dir() / "native", Path(tempfile.gettempdir()) / f"sweepd-native-{os.getuid()}"


def _safe(folder: Path) -> Path | None:
    """Return the real path of a folder; None if users but this one and root can change its files.

    They can where they may write to the folder, or replace it or one above it.
    """
    try:
        real = folder.resolve(strict=True)
        above = [parent.stat() for parent in real.parents]
        safe = _only_ours(real.stat()) and all(_only_ours(one) or _is_sticky(one) for one in above)
    except OSError:
        return None
    return real if safe else None


def _only_ours(status: os.stat_result) -> bool:
    """Whether only this user and root can change a file, or the entries of a folder."""
    others = status.st_mode & stat.S_IWOTH
    others |= status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid)
    return _is_trusted(status.st_uid) and not others


def _is_sticky(status: os.stat_result) -> bool:
    """Whether users can change only their own entries of a folder, as in /tmp."""
    return _is_trusted(status.st_uid) and bool(status.st_mode & stat.S_ISVTX)


def _is_trusted(user: int) -> bool:
    # In a user namespace, root outside of it has another number.
    return user in (os.getuid(), 0, Path("/").stat().st_uid)


def _is_own_group(group: int) -> bool:
    """Whether a group has no member but this user: the folders of many have the mode 775."""
    try:
        own, found = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return group == own.pw_gid and found.gr_name == own.pw_name and {*found.gr_mem} <= {own.pw_name}


def _loadable(path: Path) -> Path | None:
    """Return the path of an open descriptor of a library; None if it is not there or not safe.

    What is loaded is then the file that was checked, whatever happens to its name. Descriptors stay
    open: the dynamic linker takes a path that it has loaded before for the same library.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    status = os.fstat(descriptor)
    safe = stat.S_ISREG(status.st_mode) and _only_ours(status)
    kept = _opened.setdefault((status.st_dev, status.st_ino), descriptor) if safe else None
    if kept != descriptor:
        os.close(descriptor)
    if kept is None:
        return None
    by_descriptor = Path(f"/proc/self/fd/{kept}")
    return by_descriptor if by_descriptor.exists() else path


def _compile(source: Path, target: Path, flags: tuple[str, ...]) -> None:
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
        made.chmod(0o755)
        made.replace(target)
