"""systemd units of the user's account: `sweepd service install worker -- --study-name …`.

A unit is a template of `optimize/systemd`, filled in with this Python, this folder and the flags.
"""

from __future__ import annotations

import importlib.resources
import os
import re
import shutil
import string
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sweepd.envs.support.account import home, user_name
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.files import write_atomic

LOOP = "loop"
AT = "01:30"  # when a loop begins: a while after the last bar of the UTC day
COMMANDS = {"worker": "train", "promoter": "promote", "trader": "trade", LOOP: "loop"}
PREFIX = "sweepd-"
PROPERTIES = ("ActiveState", "SubState", "NRestarts", "StatusText")


@dataclass(frozen=True)
class Unit:
    """A unit file. name: file name with suffix."""

    name: str
    text: str


def quote(word: str) -> str:
    """Quote a word of ExecStart, so that systemd passes on exactly these characters."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if escaped and not re.search(r"[\s'\";\\]", escaped) else f'"{escaped}"'


def make_units(
    kind: str, name: str, arguments: Sequence[str], folder: Path, at: str = AT
) -> list[Unit]:
    """Return the units of a service; the last one is to be enabled.

    Args:
        kind: worker, promoter, trader or loop.
        name: distinguishes it from other services of its kind; may be "".
        arguments: arguments of the command that it runs.
        folder: working directory of the command.
        at: UTC time of the day at which a loop begins, as 01:30.
    """
    # -P: files in the folder must not be imported.
    words = [sys.executable, "-P", "-m", "sweepd", COMMANDS[kind], *arguments]
    for word in (*words, str(folder)):
        if any(ord(character) < 32 for character in word):
            raise InputError(
                f"{word!r} contains a line break or another control character, which a unit cannot"
            )
    values = {
        "label": f" ({name})".replace("%", "%%") if name else "",
        "folder": str(folder).replace("%", "%%"),
        "environment": str(environment_file()).replace("%", "%%"),
        "command": " ".join(quote(word) for word in words),
        "at": at,
    }
    stem = f"{PREFIX}{kind}-{name}" if name else f"{PREFIX}{kind}"
    units = []
    for suffix in ("service", "timer"):
        template = importlib.resources.files("sweepd.optimize") / "systemd" / f"{kind}.{suffix}"
        if template.is_file():
            text = string.Template(template.read_text(encoding="utf-8")).substitute(values)
            units.append(Unit(f"{stem}.{suffix}", text))
    return units


def config_folder() -> Path:
    """Return $XDG_CONFIG_HOME, or ~/.config.

    Raises:
        InputError: there is neither.
    """
    if own := os.environ.get("XDG_CONFIG_HOME"):
        return Path(own)
    at_home = home()
    if at_home is None:
        raise InputError(
            "this account has no home directory for units; set HOME or XDG_CONFIG_HOME"
        )
    return at_home / ".config"


def unit_folder() -> Path:
    """Return the folder of this account's units."""
    return config_folder() / "systemd" / "user"


def environment_file() -> Path:
    """Return the file with the services' environment variables and secrets."""
    return config_folder() / "sweepd" / "environment"


def installed() -> list[Path]:
    """Return sweepd's unit files, sorted by name."""
    return sorted(
        p for suffix in ("service", "timer") for p in unit_folder().glob(f"{PREFIX}*.{suffix}")
    )


def install(units: Sequence[Unit]) -> None:
    """Write the units, and start the last one now and at every boot.

    Raises:
        RunError: systemd failed; the units remain.
    """
    _require_systemd()
    for unit in units:
        write_atomic(unit_folder() / unit.name, unit.text)
    systemctl("daemon-reload")
    systemctl("enable", units[-1].name)
    # Replaces an older version that is running, which requeues its trials first.
    systemctl("restart", units[-1].name)


def uninstall(paths: Sequence[Path]) -> None:
    """Stop these units with SIGTERM, and remove them."""
    _require_systemd()
    systemctl("disable", "--now", *(path.name for path in paths))
    for path in paths:
        path.unlink(missing_ok=True)
    systemctl("daemon-reload")


def state_of(path: Path) -> dict[str, str]:
    """Return the properties of a unit; empty if systemd does not answer."""
    if shutil.which("systemctl") is None:
        return {}
    shown = _run("systemctl", "--user", "show", path.name, f"--property={','.join(PROPERTIES)}")
    return dict(line.split("=", 1) for line in shown.stdout.splitlines() if "=" in line)


def lingers() -> bool | None:
    """Return whether this account's services run without a login session; None if unknown."""
    if shutil.which("loginctl") is None:
        return None
    shown = _run("loginctl", "show-user", user_name(), "--property=Linger")
    return shown.stdout.strip() == "Linger=yes" if shown.returncode == 0 else None


def systemctl(*words: str) -> None:
    """Run systemctl; raise RunError with its message if it fails."""
    done = _run("systemctl", "--user", *words)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise RunError(f"systemctl --user {' '.join(words)} failed: {said[0]}")


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)


def _require_systemd() -> None:
    if shutil.which("systemctl") is None:
        raise RunError("this machine has no systemctl; --dry-run prints the unit for another one")
    reached = _run("systemctl", "--user", "show-environment")
    if reached.returncode:
        said = (reached.stderr.strip().splitlines() or ["no reason given"])[0]
        raise RunError(
            f"systemd does not answer for this account ({said}); log in as the user who runs the "
            "service, and try again"
        )
