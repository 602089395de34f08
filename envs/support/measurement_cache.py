"""Measurements of this machine, cached in JSON files that users may read, edit and delete."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sweepd.envs.support.account import home
from sweepd.envs.support.files import write_atomic

FORMAT = 1


def cache_dir() -> Path:
    """Return sweepd's cache folder.

    `$SWEEPD_CACHE_DIR` if it is set, otherwise `sweepd` in `$XDG_CACHE_HOME` or in `~/.cache`.
    Without a home directory, a folder per user in the system's temporary directory.
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


class MeasurementCache:
    """A JSON file of measurements, by machine and key.

    The machine's description names all hardware and software that the measurement depends on. A
    file that cannot be read counts as empty, and failures to write are ignored: a cache only
    saves the time of measuring again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def get(self, machine: str, key: str) -> dict[str, Any]:
        """Return the cached entry, or an empty dict."""
        entry = self._read().get(machine, {}).get(key, {})
        return entry if isinstance(entry, dict) else {}

    def put(self, machine: str, key: str, entry: Mapping[str, Any]) -> None:
        """Store an entry. Other entries of the file stay."""
        machines = self._read()
        machines.setdefault(machine, {})[key] = dict(entry)
        content = json.dumps({"format": FORMAT, "machines": machines}, indent=1) + "\n"
        with suppress(OSError):
            write_atomic(self.path, content)

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            machines = content["machines"] if content["format"] == FORMAT else {}
            return {str(machine): dict(entries) for machine, entries in machines.items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}
