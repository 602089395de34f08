"""Every program in `examples/` runs to its end and prints what it shows."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.extra import with_extra

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
BUNDLE = EXAMPLES / "bundles" / "a1ece71a178b0d24"
# Words that a program prints at its end.
PROGRAMS = {
    "act_without_sweepd": "",
    "command_program": '"step": 100',
    "elegantrl_env": "ReachGame: states (32, 64, 2)",
    "external_environment": "corridors finished",
    "load_bundle": "after fees",
    "nim": "the first of two eager players wins",
    "own_agent": "values: [",
    "own_algorithm": "",
    "own_broker": "account value",
    "own_feed": "closes",
    "own_game": "mean reward",
    "own_objective": "of the worst quarter 30",
    "own_pruner": "still: True, better: False",
    "own_rule": "",
    "own_sampler": "best value: -0.",
    "own_tracker": '"state": "COMPLETE"',
    "pursuit": "the chaser catches",
    "search_space": "the algorithm gets",
    "study_in_python": "best trial: ",
    "study_of_own_env": "first action: 1",
    "study_results": "episodes.parquet",
    "training_function": "best trial: ",
    "two_player_game": "after 7 rounds: 7 and -7",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory; examples may import each other, as when they are run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield tmp_path
    for name in PROGRAMS:
        sys.modules.pop(name, None)


def test_all_programs_are_listed() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(PROGRAMS)


@pytest.mark.parametrize("name", with_extra(PROGRAMS, ("own_agent",)))
def test_example(
    name: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    if name == "training_function":  # each trial is a process
        request.getfixturevalue("forked_python")
    np.save(folder / "obs.npy", np.zeros((3, 35), np.float32))
    arguments = [str(BUNDLE), "obs.npy", "actions.npy"] if name == "act_without_sweepd" else []
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert PROGRAMS[name] in capsys.readouterr().out
    if name == "act_without_sweepd":
        assert np.load("actions.npy").shape == (3, 2)


NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: ARG001
    """Its cells run one after another, as in a new kernel; it is stored without output."""
    notebook = json.loads(path.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        assert set(cell) >= {"cell_type", "id", "metadata", "source"}
        assert not re.search(r"/(home|root|work|tmp|Users)/", "".join(cell["source"]))
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            exec(compile("".join(cell["source"]), f"{path.name}, {cell['id']}", "exec"), names)
    assert len(names["trials"]) == 4
    assert "complete: objective" in capsys.readouterr().out
