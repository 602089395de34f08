"""What users bring along, by name: `MODULE:NAME`, something that a module of theirs holds."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from envs.support.errors import InputError


def load(flag: str, module: str) -> ModuleType:
    """Import a module. flag: what named it, with its value, for the sentence. Raises InputError where there is none."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(
            f"{flag}: {error}; the module must be installed, or its folder stand in PYTHONPATH"
        ) from None


def find(flag: str, name: str) -> Any:
    """What `name` says. Raises InputError where there is no such module, or nothing of that name in it."""
    module, _, attribute = name.partition(":")
    found = load(flag, module)
    if not hasattr(found, attribute):
        raise InputError(f"{flag}: the module {module} has nothing called {attribute!r}")
    return getattr(found, attribute)
