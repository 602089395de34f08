"""systemd units of the user's own account: `sweepd service install worker -- --study-name …`.

A unit is a template of `optimize/systemd` with this Python, this folder and the given flags filled in.
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

from envs.support.account import home, user_name
from envs.support.errors import InputError, RunError
from envs.support.files import write_atomic

COMMANDS = {"worker": "train", "promoter": "promote", "trader": "trade"}
PREFIX = "sweepd-"
PROPERTIES = ("ActiveState", "SubState", "NRestarts", "StatusText")


@dataclass(frozen=True)
class Unit:
    """A file for systemd. name: with its suffix."""

    name: str
    text: str


def quote(word: str) -> str:
    """A word of ExecStart such that systemd passes on exactly these characters."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if escaped and not re.search(r"[\s'\";\\]", escaped) else f'"{escaped}"'


def make_units(kind: str, name: str, arguments: Sequence[str], folder: Path) -> list[Unit]:
    """What is installed, the unit to be enabled last.

    kind: worker, promoter or trader. name: what tells it from others of its kind. arguments: of the command that it
    runs. folder: where the command is run.
    """
    # -P: what happens to lie in the folder must not be imported.
    words = [sys.executable, "-P", "-m", "sweepd", COMMANDS[kind], *arguments]
    for word in (*words, str(folder)):
        if any(ord(character) < 32 for character in word):
            raise InputError(
                f"{word!r} holds a line break or another control character; a unit cannot"
            )
    values = {
        "label": f" ({name})".replace("%", "%%") if name else "",
        "folder": str(folder).replace("%", "%%"),
        "environment": str(environment_file()).replace("%", "%%"),
        "command": " ".join(quote(word) for word in words),
    }
    stem = f"{PREFIX}{kind}-{name}" if name else f"{PREFIX}{kind}"
    units = []
    for suffix in ("service", "timer"):
        template = importlib.resources.files("optimize") / "systemd" / f"{kind}.{suffix}"
        if template.is_file():
            text = string.Template(template.read_text(encoding="utf-8")).substitute(values)
            units.append(Unit(f"{stem}.{suffix}", text))
    return units


def config_folder() -> Path:
    """$XDG_CONFIG_HOME, or ~/.config. Raises InputError where there is neither."""
    if own := os.environ.get("XDG_CONFIG_HOME"):
        return Path(own)
    at_home = home()
    if at_home is None:
        raise InputError(
            "this account has no home directory for units; set HOME or XDG_CONFIG_HOME"
        )
    return at_home / ".config"


def unit_folder() -> Path:
    """Where systemd looks for the units of this account."""
    return config_folder() / "systemd" / "user"


def environment_file() -> Path:
    """Secrets of the services."""
    return config_folder() / "sweepd" / "environment"


def installed() -> list[Path]:
    """Unit files of sweepd, in order."""
    return sorted(
        p for suffix in ("service", "timer") for p in unit_folder().glob(f"{PREFIX}*.{suffix}")
    )


def install(units: Sequence[Unit]) -> None:
    """Write the units, and have systemd start the last one now and at every boot.

    Raises RunError where systemd does not do it; the units then lie there, and the sentence says how to go on.
    """
    _require_systemd()
    for unit in units:
        write_atomic(unit_folder() / unit.name, unit.text)
    systemctl("daemon-reload")
    systemctl("enable", units[-1].name)
    # An older version that is running is replaced; it puts its trials back first.
    systemctl("restart", units[-1].name)


def uninstall(paths: Sequence[Path]) -> None:
    """Stop these units, which lets them finish as after SIGTERM, and remove them."""
    _require_systemd()
    systemctl("disable", "--now", *(path.name for path in paths))
    for path in paths:
        path.unlink(missing_ok=True)
    systemctl("daemon-reload")


def state_of(path: Path) -> dict[str, str]:
    """What systemd says of a unit; empty where it says nothing."""
    if shutil.which("systemctl") is None:
        return {}
    shown = _run("systemctl", "--user", "show", path.name, f"--property={','.join(PROPERTIES)}")
    return dict(line.split("=", 1) for line in shown.stdout.splitlines() if "=" in line)


def lingers() -> bool | None:
    """Whether this account's services run without a login session (linger); None if unknown."""
    if shutil.which("loginctl") is None:
        return None
    shown = _run("loginctl", "show-user", user_name(), "--property=Linger")
    return shown.stdout.strip() == "Linger=yes" if shown.returncode == 0 else None


def systemctl(*words: str) -> None:
    """Raises RunError with what systemd said."""
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
            f"systemd does not answer for this account ({said}); log in as the user who shall run it, and try again"
        )
