"""The driver's handle on a worker process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe, spawn
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn, cast

import numpy as np

from envs.external.buffers import Memory
from envs.external.guard import guarded
from envs.external.handoff import CALL, FAILED, IDLE, STEP, GoneError, Side
from envs.external.share import EnvFailure
from envs.external.sources import FactorySource, Source
from envs.external.worker import ASKED, CALLED, Setup

IN_WORKER = "SWEEPD_ENV_WORKER"  # set in workers' environment
START_WITHIN = 120.0  # seconds to import and make environments
_LEAVE_WITHIN = 3.0


def unsendable(source: Source, own: Sequence[Mapping[str, Any]]) -> str:
    """Why these cannot be sent to a worker; empty where they can."""
    if os.environ.get(IN_WORKER):
        return "this is a worker itself (a script that makes environments needs an `if __name__ == '__main__':`)"
    try:
        ForkingPickler.dumps((source, list(own)))
    except Exception as error:  # whatever an object of the user's raises
        return f"{error}; define it at the top level of a module"
    return ""


def _main_module(source: Source) -> dict[str, str]:
    """Where a worker finds the program's main module, where what makes an environment is defined there."""
    if not isinstance(source, FactorySource) or not source.name.startswith("__main__."):
        return {}
    data = spawn.get_preparation_data("")
    return {name: value for name, value in data.items() if name.startswith("init_main")}


class WorkerFailure(Exception):
    """A worker's environment raised, or the worker died or hung. `str()` of it says which and how."""


class Worker:
    """One worker process. Call `ready` before anything else.

    Every method raises WorkerFailure where the worker failed; then it is ended, and nothing more can be asked of it.
    """

    def __init__(self, setup: Setup, memory: Memory) -> None:
        self.setup = setup
        ours, theirs = socket.socketpair()
        self._talk, talk = Pipe()
        life, self._life = os.pipe()  # never written to: it closes when this process ends
        self._report = tempfile.TemporaryFile()  # noqa: SIM115 - where a worker that crashes or hangs says where it was
        handles = (memory.handle, theirs.fileno(), talk.fileno(), life, self._report.fileno())
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "envs.external.worker", *map(str, handles)],
            pass_fds=(*handles, *guarded()),
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", IN_WORKER: "1"},
            start_new_session=True,  # a Ctrl-C at the terminal is for the driver
        )
        for handle in (theirs, talk):
            handle.close()
        os.close(life)
        self.wake = ours
        self._side = Side(
            memory.worker_words(setup.index), ours, setup.spin, driver=True, ordered=setup.ordered
        )
        memory.worker_words(setup.index)[0] = self._told = IDLE
        with contextlib.suppress(OSError):  # that it is gone is seen in `ready`
            self._talk.send(_main_module(setup.source))
            self._talk.send(setup)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ready(self) -> None:
        """Wait until its environments are made."""
        try:
            if not self._talk.poll(START_WITHIN):
                self.hung(START_WITHIN)
            failure = self._talk.recv()
        except (EOFError, OSError):
            self.died()
        if failure is not None:
            self._raised(failure)

    def step(self) -> None:
        """Have it step its share; `finish` waits for that."""
        self._tell(STEP)

    def call(self, name: str, *arguments: Any) -> None:
        """Have it call that method of its share; `finish` waits for that."""
        if self.setup.one_by_one:
            self.send(np.asarray(CALLED, ASKED).tobytes())
        else:
            self._tell(CALL)
        with contextlib.suppress(OSError):  # that it is dead is found when its answer is waited for
            self._talk.send(
                (name, *arguments)
            )  # after the word, since much can only be sent while it is being read

    def send(self, data: bytes) -> None:
        """Through the socket of a worker that steps one by one."""
        try:
            self.wake.setblocking(True)
            with contextlib.suppress(OSError):
                self.wake.sendall(data)
        finally:
            self.wake.setblocking(False)

    def finish(self, patience: float) -> Any:
        """Wait for what it was told to do, at most so many seconds; returns what the method returned."""
        called, result = self._told == CALL, cast(Any, None)
        try:
            # What is returned may be too much to be sent before anybody reads it.
            done = not called or self._talk.poll(patience)
            if done and called:
                result = self._talk.recv()
            done = done and self._side.wait_while(self._told, patience)
        except (GoneError, EOFError, OSError):
            self.died()
        if not done:
            self.hung(patience)
        if self._side.word == FAILED:
            self._raised(result if called else self._talk.recv())
        return result

    def result(self) -> Any:
        """What the method returned, where a worker that steps one by one has said that it did."""
        return self._talk.recv()

    def _tell(self, word: int) -> None:
        self._told = word
        self._side.tell(word)

    def close(self) -> None:
        """Have it close its environments and leave; end it where it doesn't."""
        if self._process.poll() is None:
            self.call("close")
            try:
                self._process.wait(_LEAVE_WITHIN)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._release()

    def _release(self) -> None:
        self._process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # what its environments have started and left
        self._talk.close()
        self.wake.close()
        self._report.close()
        if self._life >= 0:
            os.close(self._life)
            self._life = -1

    def _envs(self) -> str:
        first = self.setup.first
        return f"worker {self.pid} (environments {first} to {first + len(self.setup.own) - 1})"

    def _raised(self, failure: EnvFailure) -> NoReturn:
        self._process.kill()
        self._release()
        raise WorkerFailure(
            f"environment {self.setup.first + failure.env} raised:\n{failure.text.rstrip()}"
        )

    def died(self) -> NoReturn:
        """Say how it ended: to be called when its socket has."""
        with contextlib.suppress(EOFError, OSError):
            if self._talk.poll():
                self._raised(self._talk.recv())
        try:
            code = self._process.wait(_LEAVE_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        how = (
            f"was ended by {signal.Signals(-code).name}"
            if code < 0
            else f"ended with exit code {code}"
        )
        where = self._reported()
        who = self._envs()
        self._release()
        raise WorkerFailure(f"{who} {how}" + (f":\n{where}" if where else ""))

    def hung(self, patience: float) -> NoReturn:
        """Say where it is, and end it."""
        self._process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + _LEAVE_WITHIN
        while not self._reported() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)  # the rest of it
        where = self._reported() or "(it didn't say where)"
        who = self._envs()
        self._process.kill()
        self._release()
        raise WorkerFailure(f"{who} was not done after {patience:g} s; it was at:\n{where}")

    def _reported(self) -> str:
        size = os.fstat(self._report.fileno()).st_size
        return os.pread(self._report.fileno(), size, 0).decode(errors="replace").rstrip()


def close_all(workers: list[Worker]) -> None:
    """Close them."""
    for worker in workers:
        worker.close()
