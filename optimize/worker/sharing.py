"""Several workers on one GPU: each sees the others and keeps to its share of the memory.

Every worker on a device holds a lock on a file of its own, whatever its study and database. The kernel releases the
lock when the process ends, for any reason. So the number of locked files of a device is the number of live workers.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from envs.support.measurement_cache import cache_dir

SUFFIX = ".lock"


def device_key(device: torch.device) -> str:
    """What names this device among all of the machine; "" for the CPU, whose memory the system shares out itself."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def keep_to(device: torch.device, share: float) -> None:
    """Let this process's tensors take no more than a share of the device's memory, and give back what is unused."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(share, device)


class DeviceShare:
    """This process's place on a device. Use as a context manager around the work.

    limit: told the share of the memory, 0 to 1, whenever it changes. folder: of the lock files, which all workers of
    this account on this machine have in common.
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
            unnamed.rename(self._own)  # locked before anybody can take it for a dead worker's
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lock >= 0:
            self._own.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1

    def look(self) -> bool:
        """Count the workers on the device, this one included (`workers`), and limit this one to its share. Whether
        their number has changed.
        """
        if self._lock < 0:
            return False
        found = 1 + sum(
            _lives(path)
            for path in self._folder.glob(f"{self._key}.*{SUFFIX}")
            if path != self._own
        )
        if found == self.workers:
            return False
        self.workers = found
        self._limit(1.0 / found)
        return True


def _lives(path: Path) -> bool:
    """Whether a process holds the lock on this file. Deletes the file if no process does."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(
            file, fcntl.LOCK_SH | fcntl.LOCK_NB
        )  # shared: two processes that look at once get the same answer
        path.unlink(missing_ok=True)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
