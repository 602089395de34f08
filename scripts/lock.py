"""Write requirements.lock and requirements-dev.lock from this environment and pyproject.toml.

Run it after changing a dependency, in an environment made with `pip install
.[dashboard,ccxt,alpaca,notify,video,metrics,postgres,docs,test]` (torch first, ElegantRL last with
--no-deps). Of torch the version is locked, not the build: start_vectorized_training.sh chooses it
(cpu, cuda, rocm).
"""

from __future__ import annotations

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


def closure(requirements: list[str]) -> dict[str, str]:
    """Return name → version of all packages that the requirements need, as installed here."""
    found: dict[str, str] = {}
    stack = [(Requirement(text), frozenset[str]()) for text in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    while stack:
        requirement, extras = stack.pop()
        if requirement.marker and not any(
            requirement.marker.evaluate({"extra": extra}) for extra in extras or {""}
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


def write(name: str, packages: dict[str, str]) -> None:
    lines = [
        f"{package}=={Version(version).public}\n" for package, version in sorted(packages.items())
    ]
    (ROOT / name).write_text(HEADER.format(name=name) + "".join(lines))
    print(f"{name}: {len(lines)} packages")


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], REQUIREMENT]
    runtime = closure(needed + extras["dashboard"] + extras["metrics"])
    everything = closure(needed + [text for group in extras.values() for text in group])
    write("requirements.lock", runtime)
    write(
        "requirements-dev.lock",
        {name: version for name, version in everything.items() if name not in runtime},
    )


if __name__ == "__main__":
    main()
