"""User-defined objects, named as `MODULE:NAME`."""

from __future__ import annotations

import importlib
import sys
import traceback
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
