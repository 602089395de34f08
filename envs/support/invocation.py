"""How a user calls this installation of sweepd, for commands that are printed to be copied."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement


def program() -> str:
    """`sweepd` where the shell finds this installation under that name, else the path of its script."""
    script = Path(sys.executable).parent / "sweepd"
    found = shutil.which("sweepd")
    if found is not None and script.exists() and Path(found).samefile(script):
        return "sweepd"
    if script.exists():
        return shlex.quote(_shown(script))
    return f"{shlex.quote(_shown(Path(sys.executable)))} -m sweepd"


def install_extra(extra: str) -> str:
    """The command that installs the packages of an extra of pyproject.toml into this environment.

    It names the packages rather than `sweepd[EXTRA]`: pip would then also install the dependencies of ElegantRL, which
    do not build (sweepd needs none of them).
    """
    packages = [
        f"{name.name}{_extras(name)}{name.specifier}"
        for name in map(Requirement, metadata.requires("sweepd") or ())
        if name.marker is not None and name.marker.evaluate({"extra": extra})
    ]
    if not packages:
        raise ValueError(f"pyproject.toml has no extra {extra!r}")
    return f"{shlex.quote(_shown(Path(sys.executable)))} -m pip install {shlex.join(packages)}"


def _extras(requirement: Requirement) -> str:
    return f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""


def _shown(path: Path) -> str:
    """The path from the current folder where it lies below it, else absolute."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
