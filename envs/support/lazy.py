"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_names(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package (PEP 562).

    A name that was used once is a plain attribute of the package.

    Args:
        package: name of the package.
        modules: full name of the module of each name.
    """
    names = vars(sys.modules[package])

    def get(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = importlib.import_module(modules[name])
        except ModuleNotFoundError as error:
            if error.name != "pytest":
                raise
            raise ImportError(
                f"{package}.{name} needs pytest, which is not installed: pip install pytest"
            ) from error
        names[name] = found = getattr(module, name)
        return found

    return get, lambda: sorted({*names, *modules})
