"""A worker whose memory exceeds its limit restarts at a rung: same process, same results."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest
from optuna.trial import TrialState

from sweepd.envs.core import sizing
from sweepd.envs.support.errors import RunError
from sweepd.optimize.study.recovery.processes import started
from sweepd.optimize.worker import stopping
from sweepd.optimize.worker.stopping import Life, MemoryLimit, StopRequest, default_limit, restart
from tests.notify_listener import Listener
from tests.optimize.conftest import TRAIN, Sweepd
from tests.optimize.study_files import numbers, open_handle, wait_for

GIB = 2**30
# A worker that seems to hold a GiB from the start, and one more after every rung.
GROWING = """
import sys
import torch
from sweepd.optimize.worker.telemetry import Telemetry
from sweepd.optimize.worker.worker import Worker
from tests.optimize.conftest import search_app
rungs, rung = [], Worker._finish_rung
Worker._finish_rung = lambda *arguments: (rungs.append(1), rung(*arguments))[1]
Telemetry.resident_bytes = lambda _: (1 + len(rungs)) * 2**30
torch.set_num_threads(1)
search_app()(sys.argv[1:])
"""
# A worker on environments that start processes; after its restart, it prints its child processes.
HOSTING = """
import sys
import psutil
from sweepd.envs.external.sharded import ShardedEnvs, Layout
from sweepd.envs.external.sources import FactorySource
from sweepd.optimize.worker.stopping import Life, restart
from tests.envs.external.samples import Forking
life = Life.present()
if not life.recycled:
    envs = ShardedEnvs(FactorySource(Forking), [{"pids": sys.argv[1]}] * 2, Layout(1, (1,)))
    restart(Life(1, "w"))
print(life.recycled, psutil.Process().children(recursive=True))
"""
ROOT = str(Path(__file__).resolve().parents[3])
Start = Callable[..., BaseProcess]


def _grow(words: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Run a worker as if Python had been started with these words, so that it can restart."""
    os.chdir(folder)
    os.environ.update({"PYTHONPATH": ROOT, **environment})
    out = os.open("out", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    sys.argv, sys.orig_argv = ["-c", *words], [sys.executable, "-c", GROWING, *words]
    exec(GROWING, {"__name__": "__main__"})


@pytest.fixture
def growing(market: Path) -> Iterator[Start]:
    """Start a worker that can restart itself on the tiny study; its output goes to `out`."""
    workers: list[BaseProcess] = []

    def start(*flags: object, **environment: str) -> BaseProcess:
        (market / "out").touch()
        words = ["train", *TRAIN, *map(str, flags)]
        context = multiprocessing.get_context("fork")
        workers.append(context.Process(target=_grow, args=(words, market, environment)))
        workers[-1].start()
        return workers[-1]

    yield start
    for process in workers:
        process.kill()
        process.join()


@pytest.mark.slow
def test_restarts_to_free_memory_change_no_result(
    market: Path, tmp_path_factory: pytest.TempPathFactory, sweepd: Sweepd, growing: Start
) -> None:
    study = ("--n-trials", 2, "--trials-per-batch", 2)
    sweepd("train", *study, "--runs-dir", "alone/runs").finish()
    address = str(tmp_path_factory.mktemp("n") / "s")
    listener = Listener(address)
    worker = growing(*study, "--max-memory", 2.5, NOTIFY_SOCKET=address)
    worker.join(120)
    out = (market / "out").read_text()
    assert worker.exitcode == 0, out
    listener.close()
    assert out.count("memory has grown from 2.00 to 3.00 GiB, over the limit of 2.50 GiB") == 1
    assert re.findall(r"trial (\d) resumes from rung (\d)", out) in (
        [("0", "2"), ("1", "2")],
        [("0", "2")],
        [("1", "2")],
    )
    assert re.findall(r"restarts so far: (\d+)", out) == ["1"]
    told = [
        line
        for _, text in listener.messages
        for line in text.splitlines()
        if line in ("READY=1", "RELOADING=1")
    ]
    assert told == ["READY=1", "RELOADING=1", "READY=1"]
    assert numbers(market) == numbers(market / "alone")
    assert {t.state for t in open_handle(market).trials()} <= {
        TrialState.COMPLETE,
        TrialState.PRUNED,
    }


@pytest.mark.slow
def test_a_signal_during_a_restart_stops_the_worker(market: Path, growing: Start) -> None:
    worker = growing(
        "--n-trials",
        3,
        "--budget",
        200_000,
        "--rungs",
        200,
        "--pruner",
        "none",
        "--max-memory",
        2.5,
    )
    wait_for(lambda: "restarting" in (market / "out").read_text())
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGTERM)
    worker.join(60)
    assert worker.exitcode == 0, (market / "out").read_text()
    assert "stopped by a signal" in (market / "out").read_text()
    trials = open_handle(market).trials()
    assert {t.state for t in trials} == {TrialState.WAITING}
    assert {len(t.intermediate_values) for t in trials} == {2}
    assert all(t.user_attrs["sweepd:checkpoint"]["rung"] == 2 for t in trials)


def test_environment_processes_end_before_a_restart(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOSTING, str(tmp_path / "pids")]
    environment = {**os.environ, "PYTHONPATH": ROOT}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    left = [pid for pid in pids if started(pid) is not None]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert done.stdout == "1 []\n", done.stderr
    assert len(pids) == 3 * 3  # one environment is created to read its spaces
    assert left == []


def test_a_memory_limit_below_the_initial_use_is_reported_once_and_ignored() -> None:
    said: list[str] = []
    memory = MemoryLimit(GIB, lambda: 2 * GIB, said.append)
    assert [memory.at_rung() for _ in range(5)] == [False] * 5
    assert len(said) == 1
    assert (
        "needs 2.00 GiB from the start, more than its limit of 1.00 GiB (--max-memory)" in said[0]
    )


def test_a_process_completes_a_rung_before_it_restarts() -> None:
    said: list[str] = []
    held = iter([1, 2, 3.5, 3.5, 9])
    memory = MemoryLimit(3 * GIB, lambda: int(next(held) * GIB), said.append)
    assert [memory.at_rung() for _ in range(4)] == [False, False, True, True]
    assert len(said) == 1
    never = MemoryLimit(0, lambda: 99 * GIB, said.append)
    assert not any(never.at_rung() for _ in range(3))


def test_the_default_memory_limit_is_a_share_of_the_machine_or_control_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = {"/proc/self/cgroup": "0::/user.slice/app.slice/s.service"}
    monkeypatch.setattr(sizing, "_read", lambda name: files.get(name))
    machine = psutil.virtual_memory().total
    assert default_limit() == int(0.7 * machine)
    files |= {
        "user.slice/app.slice/memory.max": str(4 * GIB),
        "user.slice/app.slice/s.service/memory.max": "max",
    }
    assert default_limit(2) == int(0.7 * 4 * GIB / 2)
    files |= {"/proc/self/cgroup": "0::/", "./memory.max": str(2 * GIB)}
    assert default_limit() == int(0.7 * 2 * GIB)


def test_a_restarted_process_keeps_its_name_and_hides_it_from_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def refuse(path: str, words: list[str]) -> None:
        asked.append((path, words, os.environ[stopping.RECYCLED]))
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "execv", refuse)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-P", "-m", "sweepd", "train"])
    with pytest.raises(RunError, match="cannot be restarted"):
        restart(Life(3, "w"))
    assert asked == [(sys.executable, [sys.executable, "-P", "-m", "sweepd", "train"], "3 w")]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) & set(stopping.SIGNALS) == set()
    assert Life.present() == Life(3, "w")
    assert Life.present() == Life()


def test_a_blocked_signal_is_handled_once_the_handlers_are_installed() -> None:
    stop = StopRequest(lambda _: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, stopping.SIGNALS)
    # To this thread, as if the process had no other: another would take it, and end the process.
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    with stop.installed():
        assert stop()


def test_a_signal_during_a_write_to_the_terminal_is_reported_later() -> None:
    """Writing to a stream from the handler of a signal that interrupted a write to it fails."""
    lines: list[str] = []

    def say(text: str) -> None:
        if not lines:
            lines.append("refused")
            raise RuntimeError("reentrant call inside <_io.BufferedWriter name=1>")
        lines.append(text)

    stop = StopRequest(say)
    with stop.installed():
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        assert stop()
        assert stop()
    assert len(lines) == 2
    assert lines[1].startswith("SIGTERM: ending the training here")
