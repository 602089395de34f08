"""Commands of a night: deadlines, requests to stop, and commands that outlive a kill."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sweepd.deploy.night import processes
from sweepd.deploy.night.processes import Commands, Finished, Stopped, locked
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.support.errors import RunError, TryAgainLater
from sweepd.envs.support.supervisor import Supervisor
from tests.optimize.study_files import wait_for

# Stands for a worker: writes down when it began and that it was asked to end, which takes a moment.
WORKER = """
import os, signal, sys, time
place = {place!r}
def end(*_):
    time.sleep(0.3)
    open(place, "a").write("ended\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
open(place, "a").write("began\\n")
print("done", flush=True)
print("error: it is over", file=sys.stderr)
time.sleep({seconds})
sys.exit({code})
"""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Commands]:
    """Returns commands that run `WORKER` in place of sweepd, in a module of that name."""
    (tmp_path / "fake").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # it is written again within a second

    def made(seconds: float, code: int = 0, stop: threading.Event | None = None) -> Commands:
        text = WORKER.format(place=str(tmp_path / "log"), seconds=seconds, code=code)
        (tmp_path / "fake" / "sweepd.py").write_text(text)
        folder = tmp_path / "night"
        return Commands(
            Registry(tmp_path / "deployments"),
            folder,
            folder / "command.lock",
            Supervisor({}),
            stop or threading.Event(),
        )

    return made


def log(tmp_path: Path) -> list[str]:
    path = tmp_path / "log"
    return path.read_text().split() if path.exists() else []


def test_a_command_says_how_it_ended(make: Callable[..., Commands]) -> None:
    assert make(0.0).run("a", ["data"]) == Finished(0, "done\n", "it is over")
    assert make(0.0, 2).run("a", ["data"]).code == 2


def test_a_command_is_asked_to_end_at_its_deadline(
    make: Callable[..., Commands], tmp_path: Path
) -> None:
    assert make(60.0).run("a", ["train"], until=time.time() + 1.5).code == 0
    assert log(tmp_path) == ["began", "ended"]


def test_a_command_that_does_not_end_is_killed(
    make: Callable[..., Commands], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 0.1)  # less than it takes to end
    assert make(60.0).run("a", ["train"], until=time.time() + 1.5).code == -signal.SIGKILL
    assert log(tmp_path) == ["began"]


def test_a_request_to_stop_reaches_the_command(
    make: Callable[..., Commands], tmp_path: Path
) -> None:
    stop = threading.Event()
    threading.Timer(1.5, stop.set).start()
    with pytest.raises(Stopped):
        make(60.0, stop=stop).run("a", ["train"])
    assert log(tmp_path) == ["began", "ended"]


def _run(commands: Commands) -> None:
    commands.run("a", ["train"])


def test_a_command_that_outlives_a_kill_is_ended_before_the_next_one(
    make: Callable[..., Commands], tmp_path: Path
) -> None:
    commands = make(60.0)
    process = multiprocessing.get_context("fork").Process(target=_run, args=(commands,))
    process.start()
    wait_for(lambda: log(tmp_path) == ["began"], 20)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert log(tmp_path) == ["began"]  # it does not notice
    found = make(0.0).run("b", ["promote"])
    assert found.code == 0
    assert log(tmp_path) == ["began", "ended", "began"]
    commands.end_left_over()  # there is none


def test_one_that_never_ends_is_reported(
    make: Callable[..., Commands], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 0.3)
    commands = make(0.0)
    held = tmp_path / "night" / "command.lock"
    with locked(held, "busy"), pytest.raises(RunError, match="a command of an earlier start still"):
        commands.run("a", ["train"])


def test_one_process_holds_a_lock(tmp_path: Path) -> None:
    with locked(tmp_path / "l", "first"):
        with pytest.raises(TryAgainLater, match="second"), locked(tmp_path / "l", "second"):
            raise AssertionError
        # A program that this process starts does not hold it.
        assert os.system(f"{sys.executable} -c pass") == 0
    with locked(tmp_path / "l", "third"):
        pass
