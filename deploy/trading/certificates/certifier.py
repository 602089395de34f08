"""Certifies a slot's days in a process of its own, for which the trader does not wait."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from sweepd.deploy.registry.flags import registry_environment
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.registry.slots import slot_name


@contextmanager
def one_at_a_time(folder: Path, slot: str) -> Iterator[None]:
    """Wait until no other process on this machine certifies the slot, and keep others waiting.

    Args:
        folder: of the traders' locks.
        slot: the slot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{slot_name(slot)}.certify", fallback_to_soft=False):
        yield


class Certifier:
    """Starts `sweepd trader parity SLOT --certify` whenever it is called.

    While one runs, no other is started: the next one makes up for what this one misses.

    Args:
        registry: where the slot is.
        slot: the slot.
    """

    def __init__(self, registry: Registry, slot: str) -> None:
        self._registry, self._slot = registry, slot
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._process = subprocess.Popen(
            # -P: files in the folder must not be imported.
            [sys.executable, "-P", "-m", "sweepd", "trader", "parity", self._slot, "--certify"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # problems are alerts, and on stderr
            env=registry_environment(self._registry) | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C ends the trader; a certificate is finished
        )
        with suppress(OSError):  # it has ended already
            os.setpriority(os.PRIO_PROCESS, self._process.pid, 19)
