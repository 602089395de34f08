"""What was measured on this machine, remembered in files that may be read, edited and deleted."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envs.support.account import home
from envs.support.files import write_atomic

FORMAT = 1


def cache_dir() -> Path:
    """Where sweepd remembers what it measured: $SWEEPD_CACHE_DIR, else `sweepd` in $XDG_CACHE_HOME or ~/.cache; without
    a home directory, a folder of this account in the system's temporary directory.
    """
    if own := os.environ.get("SWEEPD_CACHE_DIR"):
        return Path(own)
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches) / "sweepd"
    at_home = home()
    return (
        at_home / ".cache" / "sweepd"
        if at_home
        else Path(tempfile.gettempdir()) / f"sweepd-{os.getuid()}"
    )


class MachineFile:
    """Entries by machine (with everything about hard- and software that a measurement depends on) and key.

    A file that cannot be read counts as empty, one that cannot be written is not: nothing depends on it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def get(self, machine: str, key: str) -> dict[str, Any]:
        """What is remembered; nothing where there is no such entry."""
        entry = self._read().get(machine, {}).get(key, {})
        return entry if isinstance(entry, dict) else {}

    def put(self, machine: str, key: str, entry: Mapping[str, Any]) -> None:
        """Remember."""
        machines = self._read()
        machines.setdefault(machine, {})[key] = dict(entry)
        try:
            write_atomic(
                self.path, json.dumps({"format": FORMAT, "machines": machines}, indent=1) + "\n"
            )
        except OSError:
            return

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            machines = content["machines"] if content["format"] == FORMAT else {}
            return {str(machine): dict(entries) for machine, entries in machines.items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}
