"""The programs of `examples/programs`, searched by the commands that they document."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sweepd.optimize.objectives.command.run import CommandRun, CommandTraining
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.study import StudyHandle
from tests.optimize.conftest import Running
from tests.optimize.study_files import open_handle

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "examples" / "programs"
# By name: the budget and the rungs of a small study.
SMALL = {
    "ppo_cartpole.py": (1_024, 2),
    "sb3_cartpole.py": (1_024, 2),
    "descent.sh": (2_000, 4),
    "bandit.c": (4_000_000, 4),
}
ROLLOUT = 512  # steps between two reports of `ppo_cartpole.py`


def documented(name: str) -> list[str]:
    """Return the words after `sweepd` of the command at the head of a program."""
    [command] = re.findall(
        r"sweepd (train --search-space .*?'command:[^']*')", (PROGRAMS / name).read_text(), re.S
    )
    lines = [re.sub(r"^(?:# ?)?\s*", "", line) for line in command.splitlines()]
    words = shlex.split("\n".join(lines).replace("\\\n", " "))
    return [word.replace("command:python ", f"command:{sys.executable} ") for word in words]


@pytest.fixture(scope="module")
def libraries() -> None:
    """Import what takes seconds once: the programs are forks of this process.

    torch's first optimizer imports torch._dynamo.
    """
    for name in ("torch._dynamo", "stable_baselines3"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def study_of(name: str, folder: Path, *flags: object) -> list[str]:
    """Return the words of a small study of a program, in a folder with the examples."""
    if name == "sb3_cartpole.py":
        pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed")
    if name == "bandit.c":
        if shutil.which("cc") is None:
            pytest.skip("there is no C compiler")
        [build] = re.findall(r"^ *(cc .*)$", (PROGRAMS / name).read_text(), re.M)
        subprocess.run([*shlex.split(build), "-Wall", "-Werror"], check=True, cwd=folder)
    budget, rungs = SMALL[name]
    words = documented(name)
    words[words.index("--n-trials") + 1] = "4"
    words += ["--study-name", "s", "--budget", str(budget), "--rungs", str(rungs)]
    words += ["--sampler", "random", "--seeds", "1", "--fresh-seeds", "0"]
    # The trials of a batch are compared at the rungs, and the worse ones are pruned.
    return [*words, "--trials-per-batch", "4", "--jobs", "2", *map(str, flags)]


@pytest.fixture
def folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    libraries: None,  # noqa: ARG001
    forked_python: Path,  # noqa: ARG001
) -> Path:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def starts(handle: StudyHandle, number: int) -> list[int]:
    found = TrialRecord.from_attributes(handle.trials()[number].user_attrs).starts
    assert found is not None
    return list(found[0])


def test_every_program_is_searched_here() -> None:
    files = {path.name for path in PROGRAMS.iterdir() if path.is_file() and path.suffix != ".toml"}
    assert files == set(SMALL)
    page = (ROOT / "docs" / "how_to" / "command.md").read_text()
    for name in SMALL:
        assert name in page
        assert (PROGRAMS / name).with_suffix(".toml").exists()
    assert len((PROGRAMS / "ppo_cartpole.py").read_text().splitlines()) <= 200
    assert len((PROGRAMS / "sb3_cartpole.py").read_text().splitlines()) <= 40


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_program_is_searched_with_rungs_and_pruning(name: str, folder: Path) -> None:
    Running(study_of(name, folder), folder, folder / "output.txt").finish()
    handle = open_handle(folder)
    states = [trial.state.name for trial in handle.trials()]
    assert {*states} == {"COMPLETE", "PRUNED"}, states
    budget, _ = SMALL[name]
    for trial in handle.trials():
        if trial.state.name != "COMPLETE":
            continue
        reports = (handle.trial_dir(trial.number) / "reports.jsonl").read_text().splitlines()
        assert json.loads(reports[-1])["step"] >= budget


@pytest.mark.slow
def test_a_killed_study_of_ppo_continues_from_its_checkpoints(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = study_of("ppo_cartpole.py", folder, "--pruner", "none", "--jobs", 1)
    words += [
        "--n-trials",
        "1",
        "--trials-per-batch",
        "1",
        "--rungs",
        "1",
        "--budget",
        str(20 * ROLLOUT),
    ]
    count = CommandRun._count

    def then_kill(run: CommandRun, state: CommandTraining, index: int) -> None:
        count(run, state, index)
        if state.steps[index]:
            os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(CommandRun, "_count", then_kill)
        Running(words, folder, folder / "output-0.txt").finish(-signal.SIGKILL)
    Running(words, folder, folder / "output-1.txt").finish()
    handle = open_handle(folder)
    assert [trial.state.name for trial in handle.trials()] == ["COMPLETE"]
    first, second = starts(handle, 0)
    assert first == ROLLOUT
    assert second > ROLLOUT, "it did not start again"
