"""Objects of other packages, by name: entry points and `MODULE:NAME`.

A name is looked up in three places: what is built in, entry points of the group `sweepd.KIND` (such
as `sweepd.sampler`), by which a package registers names of its own, and `MODULE:NAME`. Keyword
arguments may follow as JSON: `optuna.samplers:GPSampler {"deterministic_objective": true}`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import inspect
import json
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.invocation import pip_install
from sweepd.envs.support.naming import MAIN

OPTUNAHUB = "optunahub"


@dataclass(frozen=True)
class Kind:
    """A kind of objects that other packages may provide.

    Attributes:
        flag: what names one.
        what: the objects, for messages.
        example: one of them.
    """

    flag: str
    what: str
    example: str

    def given(self, text: str) -> str:
        """Return the flag with its value."""
        return f"{self.flag}{text}" if self.flag.endswith(":") else f"{self.flag} {text}"


# Their names are also those of the groups of entry points, after "sweepd.".
_OPTUNAS = "a class of Optuna's or your own"
KINDS = {
    "sampler": Kind("--sampler", _OPTUNAS, "optuna.samplers:GPSampler"),
    "pruner": Kind("--pruner", _OPTUNAS, "optuna.pruners:PercentilePruner"),
    "algorithm": Kind("--algo", "one of your own", "own_algorithm:CLIMBER"),
    "objective": Kind("--objective", "a function of episodes", "own_objective:risk_adjusted"),
    "broker": Kind("--broker", "a subclass of Broker", "own_broker:OfficeHoursBroker"),
    "feed": Kind("--feed", "a function that returns a Feed", "own_feed:my_feed"),
    "tracker": Kind("--track", "a class with send and close", "own_tracker:LinesRuns"),
    "wrapper": Kind("--wrapper", "one of your own", "own_wrapper:Scaled"),
    "rule": Kind("--rule", "a GateRule", "own_rule:worst_games"),
    "function": Kind("--env python:", "a function of a trial", "training_function:train"),
    "environment": Kind("--env", "one of your own", "own_game:TARGET"),
}


def load(flag: str, module: str) -> ModuleType:
    """Import a module. The current folder comes first, as for `python -m`.

    Args:
        flag: the flag that names the module, with its value, for messages.
        module: the module's name.

    Raises:
        InputError: there is no such module, or importing it fails.
    """
    here, name = Path.cwd(), module.partition(".")[0]
    has_it = (here / name).is_dir() or (here / f"{name}.py").is_file()
    if has_it and not {"", str(here)} & set(sys.path):
        sys.path.insert(0, str(here))
    try:
        return importlib.import_module(module)
    except Exception as error:  # a module may raise anything
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise InputError(
                f"{flag}: {error}; install the module, run the command in its folder, or add that "
                "folder to PYTHONPATH"
            ) from None
        last = traceback.extract_tb(error.__traceback__)[-1]
        # The text of a syntax error names the place.
        where = "" if isinstance(error, SyntaxError) else f" ({last.filename}:{last.lineno})"
        raise InputError(
            f"{flag}: importing {module} fails: {type(error).__name__}: {error}{where}"
        ) from error


def find(flag: str, name: str) -> Any:
    """Import what `name` refers to.

    Args:
        flag: the flag that names it, for messages.
        name: `MODULE:NAME`; the name may have dots. `optunahub:PACKAGE:NAME` is an object of a
            package of OptunaHub, and `PACKAGE@REF` its commit, tag or branch.

    Raises:
        InputError: the module does not exist or has no such attribute.
    """
    module, _, attribute = name.partition(":")
    if module == OPTUNAHUB and "/" in attribute:
        package, _, attribute = attribute.rpartition(":")
        found: Any = _from_optunahub(flag, package)
        module = f"{module}:{package}"
    else:
        found = load(flag, module)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InputError(f"{flag}: the module {module} has nothing called {attribute!r}")
        found = getattr(found, part)
    return found


@functools.lru_cache(maxsize=16)  # each call would execute the package again
def _from_optunahub(flag: str, package: str) -> ModuleType:
    """Load a package such as `samplers/auto_sampler`, or its copy in OptunaHub's cache.

    Raises:
        InputError: OptunaHub's client is not installed, or the package cannot be loaded.
    """
    try:
        hub: Any = importlib.import_module(OPTUNAHUB)
    except ImportError as error:
        raise InputError(
            f"{flag} needs OptunaHub's client ({error}): {pip_install(OPTUNAHUB)}"
        ) from None
    path, _, ref = package.partition("@")
    try:
        module: ModuleType = hub.load_module(path, **({"ref": ref} if ref else {}))
    except Exception as error:  # of git, of the network, or of the package itself
        last = str(error).strip().splitlines() or [""]
        raise InputError(
            f"{flag}: OptunaHub's package {path} cannot be loaded: {type(error).__name__}: {last[0]}"
        ) from error
    return module


@dataclass(frozen=True)
class Plugin:
    """An object of another package.

    Attributes:
        name: how it was named, without arguments.
        place: its `MODULE:NAME`.
        made: the object.
        arguments: keyword arguments to call it with.
        package: the distribution whose entry point it is; None: it was named by its module.
    """

    name: str
    place: str
    made: Any
    arguments: dict[str, Any]
    package: str | None = None

    def takes(self, name: str) -> bool:
        """Return whether it has an argument of that name."""
        try:
            return name in inspect.signature(self.made).parameters
        except (TypeError, ValueError):  # some classes written in C have no signature
            return False

    def identity(self) -> dict[str, str]:
        """Return its module, the version of its package, and the sha256 of its source file.

        Parts that are not known, as of a compiled module, are left out.
        """
        # An instance is an object of the module that it was found in; a script is known by the name
        # under which other processes import it.
        own = inspect.isclass(self.made) or inspect.isroutine(self.made)
        where = self.place.partition(":")[0]
        source = self.made if own else sys.modules[where]
        module: str = source.__module__ if own else source.__name__
        module = where if module == MAIN else module
        found = {"name": self.name, "module": module}
        top = module.partition(".")[0]
        packages = [self.package] if self.package else _distributions(tuple(sys.path)).get(top, ())
        for distribution in packages[:1]:
            found["package"] = distribution
            found["version"] = importlib.metadata.version(distribution)
        try:
            file = inspect.getsourcefile(source)
        except (TypeError, OSError):
            file = None
        if file is not None and Path(file).is_file():
            found["sha256"] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
        return found


@functools.lru_cache(maxsize=1)  # this reads the list of files of all packages, in half a second
def _distributions(path: tuple[str, ...]) -> Mapping[str, Sequence[str]]:  # noqa: ARG001
    """Return the distributions of each top-level module, for the `sys.path` where they are found."""
    return importlib.metadata.packages_distributions()


@functools.lru_cache(maxsize=16)  # this reads the metadata of all packages, in milliseconds
def _registered(kind: str, name: str, path: tuple[str, ...]) -> tuple[str, str | None]:  # noqa: ARG001
    """Return what an entry point of `sweepd.KIND` stands for, and its distribution.

    Args:
        kind: one of `KINDS`.
        name: of the entry point.
        path: `sys.path`, where packages are found.

    Raises:
        LookupError: there is none of that name.
        InputError: two packages register the name for different objects.
    """
    found = {
        f"{entry.module}:{entry.attr}": entry.dist
        for entry in importlib.metadata.entry_points(group=f"sweepd.{kind}", name=name)
    }
    if not found:
        raise LookupError(name)
    if len(found) > 1:
        packages = " and ".join(sorted(dist.name for dist in found.values() if dist is not None))
        raise InputError(
            f"{KINDS[kind].given(name)}: {packages} register this name; write which one you mean: "
            f"{' or '.join(sorted(found))}"
        )
    [(place, dist)] = found.items()
    return place, None if dist is None else dist.name


def is_plugin(kind: str, text: str) -> bool:
    """Return whether a name is `MODULE:NAME`, or that of an entry point of `sweepd.KIND`."""
    name = text.partition(" ")[0]
    if ":" in name:
        return True
    try:
        return bool(_registered(kind, name, tuple(sys.path)))
    except LookupError:
        return False


def _unknown(kind: str, name: str, built_in: Iterable[str]) -> InputError:
    """Return the error for a name that stands for nothing."""
    known, names = KINDS[kind], ", ".join(built_in)
    choose = f"choose one of {names}, or name" if names else "name"
    return InputError(
        f"{known.given(repr(name))} is not known; {choose} {known.what} as MODULE:NAME, like "
        f"{known.example}"
    )


def resolve(
    kind: str, text: str, built_in: Iterable[str] = (), base: type[Any] | None = None
) -> Plugin:
    """Import an object that another package provides.

    Args:
        kind: one of `KINDS`.
        text: a name that is not built in, with JSON arguments after a space.
        built_in: the names that are, for messages.
        base: class whose subclasses are allowed; None: any object.

    Raises:
        InputError: the name is unknown, the object cannot be imported or is of another class, or
            the arguments are not JSON.
    """
    flag = KINDS[kind].given(text)
    name, _, given = text.partition(" ")
    place, package = name, None
    if ":" not in name:
        try:
            place, package = _registered(kind, name, tuple(sys.path))
        except LookupError:
            raise _unknown(kind, name, built_in) from None
    made = find(flag, place)
    if base is not None and not (isinstance(made, type) and issubclass(made, base)):
        raise InputError(f"{flag}: {made!r} is not a subclass of {base.__module__}.{base.__name__}")
    return Plugin(name, place, made, json_arguments(flag, name, given), package)


def json_arguments(flag: str, name: str, given: str) -> dict[str, Any]:
    """Return keyword arguments that are given as JSON; "" for none.

    Raises:
        InputError: the text is no JSON object. flag, name: for the message.
    """
    try:
        arguments = json.loads(given or "{}")
    except json.JSONDecodeError as error:
        raise InputError(
            f'{flag}: the arguments are not JSON ({error}); write them like {name} {{"name": 1}}'
        ) from None
    if not isinstance(arguments, dict):
        raise InputError(f'{flag}: the arguments must be a JSON object, like {{"name": 1}}')
    return arguments


def construct(kind: str, plugin: Plugin, **more: Any) -> Any:
    """Call a plugin with its arguments, and with those of `more` that it takes.

    Raises:
        InputError: it does not take the arguments.
    """
    takes = {name: value for name, value in more.items() if plugin.takes(name)}
    try:
        return plugin.made(**{**takes, **plugin.arguments})
    except (TypeError, ValueError) as error:
        raise InputError(f"{KINDS[kind].given(plugin.name)}: {error}") from None


def described(identity: Mapping[str, Any]) -> str:
    """Return what `Plugin.identity` tells, in words: name, package with version, source."""
    parts = [identity["name"]]
    if "package" in identity:
        parts.append(f"{identity['package']} {identity['version']}")
    if "sha256" in identity:
        parts.append(f"sha256 {identity['sha256'][:12]}")
    return ", ".join(parts)


def changed(kind: str, text: str, since: str) -> str:
    """Return the sentence that an object is not the one that was recorded."""
    return (
        f"{KINDS[kind].given(text)} has changed since {since}: it may decide differently "
        "from now on"
    )
