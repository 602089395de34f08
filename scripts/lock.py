"""Write requirements.lock and requirements-dev.lock from this environment and pyproject.toml.

Run it after changing a dependency, in an environment with every extra of pyproject.toml (torch
first, ElegantRL last with --no-deps) and `uv`, which asks the package index for the hashes of all
files of a version: those for every Python and processor. Of torch the version is locked, not the
build: start_vectorized_training.sh chooses it (cpu, cuda, rocm), and installs it before the locks,
without a hash, since the files of PyTorch's indexes are others than those of the common index.
"""

from __future__ import annotations

import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from sweepd.agents.algorithms.elegantrl_kinds import REQUIREMENT

ROOT = Path(__file__).resolve().parent.parent
HEADER = (
    "# Written by scripts/lock.py. Install after torch, --no-deps "
    "(see start_vectorized_training.sh)\n"
)
PYTHON = "3.11.5"  # the oldest one that every locked package runs on


def closure(requirements: list[str], python: str) -> dict[str, str]:
    """Return name → version of all packages that a Python needs, in the versions installed here.

    Args:
        requirements: as in pyproject.toml.
        python: the Python for which the markers of requirements are read, such as "3.14".
    """
    interpreter = {"python_version": python, "python_full_version": f"{python}.0"}
    found: dict[str, str] = {}
    stack = [(Requirement(text), frozenset[str]()) for text in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    while stack:
        requirement, extras = stack.pop()
        if requirement.marker and not any(
            requirement.marker.evaluate({**interpreter, "extra": extra}) for extra in extras or {""}
        ):
            continue
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            installed = distribution(name)
        except PackageNotFoundError as error:
            raise SystemExit(f"{requirement} is needed but not installed here") from error
        found[name] = installed.version
        # ElegantRL requires gym[Box2D], which does not build on current Pythons, and which the parts
        # that sweepd uses do not need.
        if name != "elegantrl":
            stack += [
                (Requirement(text), frozenset(requirement.extras))
                for text in installed.requires or []
            ]
    return found


def locked(requirements: list[str], pythons: list[str]) -> dict[str, str]:
    """Return name → line of all packages, with a marker where not every Python needs it."""
    needs = {python: closure(requirements, python) for python in pythons}
    lines = {}
    for name, version in sorted({**needs[pythons[-1]], **needs[pythons[0]]}.items()):
        lines[name] = f"{name}=={Version(version).public}"
        if name not in needs[pythons[-1]]:
            first = next(python for python in pythons if name not in needs[python])
            lines[name] += f" ; python_version < '{first}'"
        elif name not in needs[pythons[0]]:
            first = next(python for python in pythons if name in needs[python])
            lines[name] += f" ; python_version >= '{first}'"
    return lines


def write(name: str, lines: list[str]) -> None:
    """Write a lock file, with the hashes of all files of each version."""
    options = ("--no-deps", "--generate-hashes", "--universal", "--python-version", PYTHON)
    options += ("--no-header", "--no-annotate", "--no-config", "--quiet")
    hashed = subprocess.run(
        ["uv", "pip", "compile", *options, "-"],
        input="\n".join(lines),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    (ROOT / name).write_text(HEADER + hashed)
    print(f"{name}: {len(lines)} packages")


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    label = "Programming Language :: Python :: 3."
    found = (name.removeprefix(label) for name in project["classifiers"] if name.startswith(label))
    pythons = [f"3.{minor}" for minor in sorted(map(int, found))]
    needed = [*project["dependencies"], REQUIREMENT]
    runtime = locked(needed + extras["dashboard"] + extras["metrics"], pythons)
    everything = locked(needed + [text for group in extras.values() for text in group], pythons)
    write("requirements.lock", [*runtime.values()])
    development = [line for name, line in everything.items() if name not in runtime]
    write("requirements-dev.lock", development)


if __name__ == "__main__":
    main()
