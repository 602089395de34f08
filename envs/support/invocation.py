"""Commands for this installation of sweepd, printed for users to copy."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement


def program() -> str:
    """Return `sweepd` if the shell finds this installation under that name, else its path."""
    script = Path(sys.executable).parent / "sweepd"
    found = shutil.which("sweepd")
    if found is not None and script.exists() and Path(found).samefile(script):
        return "sweepd"
    if script.exists():
        return shlex.quote(_shown(script))
    return f"{shlex.quote(_shown(Path(sys.executable)))} -m sweepd"


def install_extra(extra: str) -> str:
    """Return the pip command that installs an extra of pyproject.toml into this environment.

    It lists the packages instead of `sweepd[EXTRA]`, because pip would then also install the
    dependencies of ElegantRL, which sweepd does not need and which do not build.
    """
    packages = shlex.join(extra_packages(extra))
    return f"{shlex.quote(_shown(Path(sys.executable)))} -m pip install {packages}"


def extra_packages(extra: str) -> list[str]:
    """Return the requirements of an extra of pyproject.toml, as pip takes them.

    Raises:
        ValueError: there is no such extra.
    """
    packages = [
        f"{name.name}{_extras(name)}{name.specifier}"
        for name in map(Requirement, metadata.requires("sweepd") or ())
        if name.marker is not None and name.marker.evaluate({"extra": extra})
    ]
    if not packages:
        raise ValueError(f"pyproject.toml has no extra {extra!r}")
    return packages


def _extras(requirement: Requirement) -> str:
    return f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""


def _shown(path: Path) -> str:
    """Return the path relative to the current folder if it is inside it, else as it is."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
