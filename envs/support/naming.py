"""The name `MODULE:NAME` of a Python object, under which any process can import it."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from sweepd.envs.support.errors import InputError

MAIN = "__main__"  # the module of the running script
IMPORTING = "SWEEPD_IMPORTING"  # variable in the environment of processes that import a script


def object_name(what: str, made: Any) -> str:
    """Return `MODULE:NAME` of a class, a function, or another object of a module.

    Args:
        what: the argument that it was given as, for messages.
        made: the object.

    Raises:
        InputError: another process could not import it; the message says what to do.
    """
    module, name = getattr(made, "__module__", None), getattr(made, "__qualname__", None)
    direct = name is not None and vars(sys.modules.get(str(module), object)).get(name) is made
    found = (str(module), str(name)) if direct else _variable(made)
    if found is None:
        raise InputError(f"{what}: {_problem(made)}")
    module, name = found
    return f"{main_name(what, name) if module == MAIN else module}:{name}"


def _variable(made: Any) -> tuple[str, str] | None:
    """Return the module and the variable that hold an object; the main module's only if no other's."""
    found = [
        (module == MAIN, module.startswith("_") and module != MAIN, len(module), module, name)
        for module, loaded in list(sys.modules.items())
        if isinstance(loaded, ModuleType)
        for name, value in list(vars(loaded).items())
        if value is made and not name.startswith("__")
    ]
    return min(found)[3:] if found else None


def _problem(made: Any) -> str:
    """Say why an object has no name, and what to do."""
    move = "other processes cannot import it: move it to the top level of a module, such as my_module.py"
    if isinstance(made, functools.partial):
        return f"a functools.partial has no name, so {move}, as NAME = functools.partial(…)"
    name = str(getattr(made, "__qualname__", None) or type(made).__name__)
    if "<lambda>" in name:
        return f"a lambda has no name, so {move} as a function, and pass my_module.NAME"
    if "<locals>" in name:
        return f"{name.rpartition('.')[2]} is defined inside a function, so {move}"
    if "." in name:
        return f"{name} is defined inside a class, so {move}"
    return f"{name} is no variable of a module, so {move}, and pass my_module.{name}"


def main_name(what: str, name: str) -> str:
    """Return the name under which other processes import the running script.

    This process then uses the running script under that name, too, instead of running it again.

    Args:
        what: the argument whose object the script defines, for messages.
        name: of the object.

    Raises:
        InputError: there is no script (a notebook, an interactive session), or none that can be
            imported.
    """
    main = sys.modules[MAIN]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None and spec.name != MAIN:  # `python -m`
        known = str(spec.name)
    elif file is None or not Path(file).is_file():
        raise InputError(
            f"{what}: {name} is defined in a notebook or an interactive session, so other processes "
            f"cannot import it: move it to a module, such as my_module.py, and pass my_module.{name}"
        )
    else:
        known = Path(file).stem
        if sys.modules.get(known) is not main and not _is_file(known, Path(file)):
            raise InputError(
                f"{what}: {name} is defined in the script {Path(file).name}, and importing {known!r} "
                "does not find this file: give the script a name of its own that is an identifier, "
                f"and run it as python {Path(file).name}"
            )
    sys.modules[known] = main
    return known


def _is_file(module: str, file: Path) -> bool:
    """Return whether importing a module would import this file."""
    loaded = sys.modules.get(module)
    try:
        spec = getattr(loaded, "__spec__", None) if loaded else importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    origin = getattr(spec, "origin", None)
    return origin is not None and os.path.exists(origin) and os.path.samefile(origin, file)


def import_paths() -> str:
    """Return `PYTHONPATH` for a process that imports what this one can."""
    return os.pathsep.join(path or os.getcwd() for path in sys.path)


def refuse_while_imported(what: str) -> None:
    """Raise InputError in a process that a study has started, and that imports the user's script."""
    if os.environ.get(IMPORTING):
        raise InputError(
            f"{what} is called while a process of the study imports the script for what it defines: "
            'put it below `if __name__ == "__main__":`'
        )
