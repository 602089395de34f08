"""User-defined objects, named as `MODULE:NAME`."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from sweepd.envs.support.errors import InputError


def load(flag: str, module: str) -> ModuleType:
    """Import a module.

    Args:
        flag: the flag that names the module, with its value, for messages.
        module: the module's name.

    Raises:
        InputError: there is no such module.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(
            f"{flag}: {error}; install the module, or add its folder to PYTHONPATH"
        ) from None


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
