"""Sharing the memory of a GPU among several workers.

Each worker on a device, of any study and database, holds a lock on a file of its own. The kernel
releases the lock when the process ends for any reason, so the number of locked files of a device is
the number of live workers.

filelock has exclusive locks only (its read-write lock is an SQLite file), so this is `flock`: who
counts takes a shared lock, and two that count at the same time do not count each other.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Self

import torch

from sweepd.envs.support.measurement_cache import cache_dir

SUFFIX = ".lock"


def device_key(device: torch.device) -> str:
    """Return the UUID of a GPU; "" for the CPU, whose memory the operating system manages."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def limit_memory(device: torch.device, share: float) -> None:
    """Limit this process's tensors to a share of the device's memory, and release unused memory."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(share, device)


class DeviceShare:
    """Counts the workers on a device. Use it as a context manager around the work.

    Args:
        key: see `device_key`.
        limit: called with this worker's share of the memory, 0 to 1, whenever it changes.
        folder: folder of the lock files, common to all workers of this account on this machine.
    """

    def __init__(
        self, key: str, limit: Callable[[float], None], folder: Path | None = None
    ) -> None:
        self._key, self._limit = key, limit
        self._folder = folder or cache_dir() / "devices"
        self._own = self._folder / f"{key}.{os.getpid()}.{uuid.uuid4().hex}{SUFFIX}"
        self._lock = -1
        self.workers = 1

    def __enter__(self) -> Self:
        if self._key:
            self._folder.mkdir(parents=True, exist_ok=True)
            unnamed = self._own.with_suffix(".new")
            self._lock = os.open(unnamed, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            # Named after it is locked: an unlocked file would count as a dead worker's.
            unnamed.rename(self._own)
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock >= 0:
            self._own.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1

    def look(self) -> bool:
        """Count the workers on the device, this one included, and set this one's share.

        Returns:
            Whether the number (`workers`) has changed.
        """
        if self._lock < 0:
            return False
        others = set(self._folder.glob(f"{self._key}.*{SUFFIX}")) - {self._own}
        found = 1 + sum(map(_is_locked, others))
        if found == self.workers:
            return False
        self.workers = found
        self._limit(1.0 / found)
        return True


def _is_locked(path: Path) -> bool:
    """Return whether a process holds the lock on this file; delete the file if none does."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
