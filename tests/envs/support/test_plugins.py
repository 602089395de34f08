"""Modules of users: from the current folder first, and what is said where importing one fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.plugins import find, load

ROOT = str(Path(__file__).resolve().parents[3])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, a repository with its own `envs`; what it imports is forgotten after."""
    before = {*sys.modules}
    # Without the checkout: a folder without __init__.py gives way to a package of that name.
    monkeypatch.setattr(sys, "path", [part for part in sys.path if part not in ("", ROOT)])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "envs").mkdir()
    yield tmp_path
    for name in {*sys.modules} - before:
        if name.partition(".")[0] in ("envs", "agents"):
            del sys.modules[name]


def test_the_current_folder_comes_first_where_it_has_the_module(folder: Path) -> None:
    (folder / "envs" / "mine.py").write_text("from agents import SIZE\nclass MyEnv: size = SIZE\n")
    (folder / "agents.py").write_text("SIZE = 3\n")
    assert find("--env envs.mine:MyEnv", "envs.mine:MyEnv").size == 3
    assert sys.path[0] == str(folder)
    assert sys.path.count(str(folder)) == 1
    load("--env agents:X", "agents")
    assert sys.path.count(str(folder)) == 1


def test_without_such_a_module_the_path_stays(folder: Path) -> None:
    load("--env json:X", "json")
    with pytest.raises(InputError, match="No module named 'nowhere'; install"):
        load("--env nowhere:X", "nowhere")
    assert str(folder) not in sys.path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No module named 'envs.mine'; install the module, run the command in its folder"),
        ("import not_there_1", r"fails: ModuleNotFoundError: .*'not_there_1' \(.*mine\.py:1\)"),
        ("x = 1\ny = x / 0", r"fails: ZeroDivisionError: division by zero \(.*mine\.py:2\)"),
        ("def f(:", r"fails: SyntaxError: invalid syntax \(mine\.py, line 1\)$"),
    ],
)
def test_a_failing_import_names_the_cause(folder: Path, text: str | None, said: str) -> None:
    if text is not None:
        (folder / "envs" / "mine.py").write_text(text)
    with pytest.raises(InputError, match=f"^--env envs.mine:X: .*{said}"):
        load("--env envs.mine:X", "envs.mine")
