"""Objects of other packages, by name: entry points and `MODULE:NAME`.

A package registers a name of its own as an entry point of the group `sweepd.KIND`, such as
`sweepd.sampler`. Without that, the object is named by its module, and keyword arguments may follow
as JSON: `optuna.samplers:GPSampler {"deterministic_objective": true}`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import inspect
import json
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from sweepd.envs.support.errors import InputError


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
        name: `MODULE:NAME`.

    Raises:
        InputError: the module does not exist or has no such attribute.
    """
    module, _, attribute = name.partition(":")
    found = load(flag, module)
    if not hasattr(found, attribute):
        raise InputError(f"{flag}: the module {module} has nothing called {attribute!r}")
    return getattr(found, attribute)


@dataclass(frozen=True)
class Plugin:
    """An object of another package.

    Attributes:
        name: how it was named, without arguments.
        made: the object.
        arguments: keyword arguments to call it with.
    """

    name: str
    made: Any
    arguments: dict[str, Any]

    def takes(self, name: str) -> bool:
        """Return whether it has an argument of that name."""
        return name in inspect.signature(self.made).parameters

    def identity(self) -> dict[str, str]:
        """Return its module, the version of its package, and the sha256 of its source file.

        Parts that are not known, as of a compiled module, are left out.
        """
        found = {"name": self.name, "module": self.made.__module__}
        top = self.made.__module__.partition(".")[0]
        for distribution in importlib.metadata.packages_distributions().get(top, ())[:1]:
            found["package"] = distribution
            found["version"] = importlib.metadata.version(distribution)
        try:
            source = inspect.getsourcefile(self.made)
        except TypeError:
            source = None
        if source is not None:
            found["sha256"] = hashlib.sha256(Path(source).read_bytes()).hexdigest()
        return found


def is_plugin(kind: str, text: str) -> bool:
    """Return whether a name is `MODULE:NAME`, or that of an entry point of `sweepd.KIND`."""
    name = text.partition(" ")[0]
    return ":" in name or _registered(kind, name) is not None


def _registered(kind: str, name: str) -> str | None:
    """Return what an entry point of `sweepd.KIND` stands for; None if there is none of that name.

    This reads the metadata of all installed packages, which takes milliseconds.
    """
    entries = importlib.metadata.entry_points(group=f"sweepd.{kind}", name=name)
    return next((entry.value for entry in entries), None)


def resolve(kind: str, text: str, base: type) -> Plugin:
    """Import a subclass of `base` that another package provides.

    Args:
        kind: of the object, which is also the flag that names it, such as "sampler".
        text: a name for which `is_plugin` is true, with JSON arguments after a space.
        base: class whose subclasses are allowed.

    Raises:
        InputError: it cannot be imported, is of another class, or the arguments are not JSON.
    """
    flag = f"--{kind} {text}"
    name, _, given = text.partition(" ")
    made = find(flag, name if ":" in name else _registered(kind, name) or name)
    if not (isinstance(made, type) and issubclass(made, base)):
        raise InputError(f"{flag}: {made!r} is not a subclass of {base.__module__}.{base.__name__}")
    try:
        arguments = json.loads(given or "{}")
    except json.JSONDecodeError as error:
        raise InputError(
            f'{flag}: the arguments are not JSON ({error}); write them like {name} {{"name": 1}}'
        ) from None
    if not isinstance(arguments, dict):
        raise InputError(f'{flag}: the arguments must be a JSON object, like {{"name": 1}}')
    return Plugin(name, made, arguments)


def construct(kind: str, plugin: Plugin, **more: Any) -> Any:
    """Call a plugin with its arguments, and with those of `more` that it takes.

    Raises:
        InputError: it does not take the arguments.
    """
    takes = {name: value for name, value in more.items() if plugin.takes(name)}
    try:
        return plugin.made(**{**takes, **plugin.arguments})
    except (TypeError, ValueError) as error:
        raise InputError(f"--{kind} {plugin.name}: {error}") from None
