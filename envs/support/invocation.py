"""Commands for this installation of sweepd, printed for users to copy."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def program() -> str:
    """Return `sweepd` if the shell finds this installation under that name, else its path."""
    script = Path(sys.executable).parent / "sweepd"
    found = shutil.which("sweepd")
    if found is not None and script.exists() and Path(found).samefile(script):
        return "sweepd"
    if script.exists():
        return shlex.quote(shown_path(script))
    return f"{shlex.quote(shown_path(Path(sys.executable)))} -m sweepd"


def install_extra(extra: str) -> str:
    """Return the pip command that installs an extra of pyproject.toml into this environment."""
    return pip_install(f"sweepd[{extra}]")


def pip_install(*words: str) -> str:
    """Return the pip command that installs something into this environment."""
    return f"{shlex.quote(shown_path(Path(sys.executable)))} -m pip install {shlex.join(words)}"


def shown_path(path: Path) -> str:
    """Return the path relative to the current folder if it is inside it, else as it is."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
