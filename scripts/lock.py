"""Write requirements.lock and requirements-dev.lock from this environment and pyproject.toml.

Run it after changing a dependency, in an environment made with `pip install
.[dashboard,ccxt,alpaca,notify,video,metrics,postgres,docs,test]` (torch first, elegantrl with
--no-deps). torch itself is left out: start_vectorized_training.sh chooses its build (cpu, cuda,
rocm) of the version in pyproject.toml.
"""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
# elegantrl requires gym[Box2D], which does not build on current Pythons. The parts that sweepd uses
# need only torch and numpy.
WITHOUT_DEPENDENCIES = {"elegantrl"}
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
        if name not in WITHOUT_DEPENDENCIES:
            stack += [
                (Requirement(text), frozenset(requirement.extras))
                for text in installed.requires or []
            ]
    return found


def write(name: str, packages: dict[str, str]) -> None:
    lines = [
        f"{package}=={version}\n"
        for package, version in sorted(packages.items())
        if package != "torch"
    ]
    (ROOT / name).write_text(HEADER.format(name=name) + "".join(lines))
    print(f"{name}: {len(lines)} packages")


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    runtime = closure(project["dependencies"] + extras["dashboard"] + extras["metrics"])
    everything = closure(
        project["dependencies"] + [text for group in extras.values() for text in group]
    )
    write("requirements.lock", runtime)
    write(
        "requirements-dev.lock",
        {name: version for name, version in everything.items() if name not in runtime},
    )


if __name__ == "__main__":
    main()
