"""Names of Python objects: classes, functions, variables, scripts, and what has none."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.naming import IMPORTING, object_name, refuse_while_imported
from sweepd.envs.support.plugins import Plugin, find


class Env:
    """A class of a module."""

    class Inner:
        """A class of a class."""


def make() -> Env:
    return Env()


def factory() -> Any:
    def inner() -> Env:
        return Env()

    return inner


made_here = factory()
named = lambda: Env()  # noqa: E731
instance = SimpleNamespace(make=make)


@pytest.mark.parametrize("name", ["Env", "make", "made_here", "named", "instance"])
def test_objects_of_a_module_are_found_under_their_names(name: str) -> None:
    made = globals()[name]
    text = object_name("env", made)
    assert text == f"{__name__}:{name}"
    assert find("--env", text) is made


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            lambda: Env(),
            "env: a lambda has no name, so .*move it to the top level of a module, such",
        ),
        (factory(), "env: inner is defined inside a function, so .* my_module.py"),
        (Env.Inner, "env: Env.Inner is defined inside a class"),
        (functools.partial(make), "a functools.partial has no name.*as NAME = functools.partial"),
        (
            SimpleNamespace(),
            "SimpleNamespace is no variable of a module, so .*my_module.SimpleNamespace",
        ),
    ],
)
def test_what_other_processes_cannot_import_is_refused(made: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        object_name("env", made)


def main_module(monkeypatch: pytest.MonkeyPatch, file: Path | None, text: str) -> ModuleType:
    """Run a text as the main module of this process."""
    main = ModuleType("__main__")
    if file is not None:
        file.write_text(text)
        main.__file__ = str(file)
        monkeypatch.syspath_prepend(str(file.parent))
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(text, vars(main))
    return main


def test_a_script_is_known_by_its_file_and_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "my_own_script.py"
    main = main_module(
        monkeypatch, script, "class Mine: pass\nruns = globals().get('runs', 0) + 1\n"
    )
    name = object_name("env", main.Mine)
    assert name == "my_own_script:Mine"
    assert find("--env", name) is main.Mine
    assert sys.modules["my_own_script"] is main
    identity = Plugin(name, name, main.Mine, {}).identity()
    assert identity["module"] == "my_own_script"
    sha256 = identity["sha256"]
    del sys.modules["my_own_script"]  # another process
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    assert Plugin(name, name, find("--env", name), {}).identity()["sha256"] == sha256
    del sys.modules["my_own_script"]


def test_a_notebook_and_a_hidden_script_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = main_module(monkeypatch, None, "class Mine: pass")
    words = "defined in a notebook or an interactive session.*such as my_module.py, and pass my_module.Mine"
    with pytest.raises(InputError, match=words):
        object_name("env", main.Mine)
    hidden = tmp_path / "json.py"  # importing json finds the standard library's
    main = main_module(monkeypatch, None, "class Mine: pass")
    hidden.write_text("")
    main.__file__ = str(hidden)
    with pytest.raises(InputError, match=r"script json.py, and importing 'json' does not find"):
        object_name("env", main.Mine)


def test_a_script_without_a_guard_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_while_imported("sweepd.create_study")
    monkeypatch.setenv(IMPORTING, "1")
    with pytest.raises(InputError, match='below `if __name__ == "__main__":`'):
        refuse_while_imported("sweepd.create_study")


def test_a_module_that_is_run_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "tool.py").write_text(
        "class Mine: pass\n"
        "if __name__ == '__main__':\n"
        "    from sweepd.envs.support.naming import object_name\n"
        "    print(object_name('env', Mine))\n"
    )
    run = [sys.executable, "-m", "package.tool"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "package.tool:Mine\n"
