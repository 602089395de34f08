"""Small programs, and studies of them that a worker of this process works on."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from sweepd.optimize.objectives.command.run import CommandRun
from sweepd.optimize.study.record.specs import CommandSpec
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker.lifecycle import work
from sweepd.optimize.worker.worker import WorkerOptions
from tests.optimize.study_files import make_handle

PYTHON = f"{sys.executable} -I -S"  # starts in 15 ms
LR = {"lr": {"low": 0.0, "high": 1.0}}
HEAD = """
import json, os, signal, sys, time
env, params = os.environ, json.loads(os.environ["SWEEPD_PARAMS"])
def report(step, value, **more):
    print(json.dumps({"step": step, "value": value, **more}), flush=True)
"""


def program(folder: Path, text: str, name: str = "program.py") -> str:
    """Write a program; return the command that runs it."""
    path = folder / name
    path.write_text(HEAD + text)
    return f"{PYTHON} {path}"


def alive(pid: int) -> bool:
    """Return whether a process has not ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def pids(folder: Path) -> list[int]:
    """Return what the programs of the studies in a folder have written of their own process ids."""
    found = folder.rglob("trial-*/seed-*/out/pids")
    return [int(pid) for path in found for pid in path.read_text().split()]


def command_study(
    folder: Path, text: str, params: dict[str, Any] | None = None, **settings: Any
) -> StudyHandle:
    """A new study of a program with this text."""
    command = settings.pop("command", None) or program(folder, text)
    given: dict[str, Any] = {
        "environment": f"command:{command}",
        "algorithm": "command",
        "env": {},
        "budget": 1,
        "rungs": 1,
        "num_envs": 1,
        "horizon": 1,
        "slots": 2,
        "trials_per_batch": 1,
        "objective": "value",
        "sampler": "random",
        "pruner": "none",
        "seed": 0,
        "space": {"name": "s", "version": 1, "params": LR if params is None else params},
        "threads": 1,
        "seeds": 1,
    }
    return make_handle(folder, CommandSpec(**given | settings))


def work_on(
    handle: StudyHandle,
    trials: int,
    jobs: int = 1,
    grace: float = 5.0,
    run: Callable[..., CommandRun] = CommandRun,
    **options: Any,
) -> str:
    """Let a worker of this process complete a study; return what it printed."""
    output = io.StringIO()
    assert isinstance(handle.spec, CommandSpec)
    console = Console(file=output, width=300)
    work(handle, run(handle.spec, jobs, grace), WorkerOptions(trials, **options), console)
    return output.getvalue()
