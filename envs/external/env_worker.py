"""An env worker as its parent process sees it: starts it, gives it work, and says how it failed."""

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

from sweepd.envs.external.env_worker_main import CALLED, REQUEST, EnvWorkerSetup
from sweepd.envs.external.guard import guarded
from sweepd.envs.external.shards import EnvFailure
from sweepd.envs.external.shared_memory import (
    CALL,
    FAILED,
    IDLE,
    STEP,
    GoneError,
    HandOver,
    SharedMemory,
)
from sweepd.envs.external.sources import Source
from sweepd.envs.support.naming import IMPORTING, import_paths

IN_WORKER = "SWEEPD_ENV_WORKER"  # variable in the environment of env workers
START_TIMEOUT = 120.0  # seconds to import modules and make environments
_END_TIMEOUT = 3.0  # seconds


def why_unpicklable(source: Source, env_kwargs: Sequence[Mapping[str, Any]]) -> str:
    """Return why these cannot be sent to an env worker; empty if they can."""
    if os.environ.get(IN_WORKER):
        return (
            "this is a worker itself (a script that makes environments needs an "
            "`if __name__ == '__main__':`)"
        )
    try:
        ForkingPickler.dumps((source, list(env_kwargs)))
    except Exception as error:  # pickling the user's objects may raise anything
        return f"{error}; define it at the top level of a module"
    return ""


def _main_module(source: Source) -> dict[str, str]:
    """Return where to find the program's main module, if the source is defined in it."""
    if not source.in_main:
        return {}
    data = spawn.get_preparation_data("")
    return {name: value for name, value in data.items() if name.startswith("init_main")}


class EnvWorkerFailure(Exception):
    """An env worker's environment raised, or the process died or hung; the message says which."""


class EnvWorker:
    """A process that steps a shard. Call `ready` before anything else.

    Every method raises `EnvWorkerFailure` if the process failed; then it is ended and must not be
    used any more.
    """

    def __init__(self, setup: EnvWorkerSetup, memory: SharedMemory) -> None:
        """Start the process."""
        self.setup = setup
        own_wake, wake = socket.socketpair()
        self._calls, calls = Pipe()  # for calls, their results, and failures
        # Nothing is written to this pipe: the kernel closes it when this process ends.
        lifeline, self._lifeline = os.pipe()
        self._report = tempfile.TemporaryFile()  # noqa: SIM115 - its tracebacks on crash or hang
        handles = (memory.handle, wake.fileno(), calls.fileno(), lifeline, self._report.fileno())
        own = {"PYTHONPATH": import_paths(), "OMP_NUM_THREADS": "1", IN_WORKER: "1", IMPORTING: "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sweepd.envs.external.env_worker_main", *map(str, handles)],
            pass_fds=(*handles, *guarded()),
            stdin=subprocess.DEVNULL,
            env={**os.environ, **own},
            start_new_session=True,  # Ctrl-C in the terminal reaches only the parent
        )
        for handle in (wake, calls):
            handle.close()
        os.close(lifeline)
        self.wake = own_wake
        words = memory.worker_words(setup.index)
        self._hand_over = HandOver(words, own_wake, setup.spin, parent=True, ordered=setup.ordered)
        words[0] = self._told = IDLE  # the words may be those of a worker that failed
        with contextlib.suppress(OSError):  # if it has died, `ready` finds out
            self._calls.send(_main_module(setup.source))
            self._calls.send(setup)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def ready(self) -> None:
        """Wait until its environments are made."""
        try:
            if not self._calls.poll(START_TIMEOUT):
                self.hung(START_TIMEOUT)
            failure = self._calls.recv()
        except (EOFError, OSError):
            self.died()
        if failure is not None:
            self._raised(failure)

    def step(self) -> None:
        """Have it step its shard; `finish` waits for that."""
        self._tell(STEP)

    def call(self, name: str, *arguments: Any) -> None:
        """Have it call that method of its shard; `finish` waits for that."""
        if self.setup.one_by_one:
            self.send(np.asarray(CALLED, REQUEST).tobytes())
        else:
            self._tell(CALL)
        # After the request: a long message is only sent completely while it is being received.
        with contextlib.suppress(OSError):  # if it has died, waiting for the result finds out
            self._calls.send((name, *arguments))

    def send(self, data: bytes) -> None:
        """Send requests to a worker that steps one by one."""
        try:
            self.wake.setblocking(True)
            with contextlib.suppress(OSError):
                self.wake.sendall(data)
        finally:
            self.wake.setblocking(False)

    def finish(self, timeout: float) -> Any:
        """Wait for the step or call, at most `timeout` seconds; return what the method returned.

        Of a worker that steps one by one, for the call.
        """
        alone = self.setup.one_by_one
        called, result = alone or self._told == CALL, cast(Any, None)
        try:
            # First receive: a long result is only sent completely while it is being received.
            done = not called or self._calls.poll(timeout)
            if done and called:
                result = self._calls.recv()
            done = done and (alone or self._hand_over.wait_while(self._told, timeout))
        except (GoneError, EOFError, OSError):
            self.died()
        if not done:
            self.hung(timeout)
        if isinstance(result, EnvFailure) or self._hand_over.state == FAILED:
            self._raised(result if called else self._calls.recv())
        return result

    def _tell(self, state: int) -> None:
        self._told = state
        self._hand_over.set_state(state)

    def close(self) -> None:
        """Have it close its environments and exit; kill it if it does not."""
        if self._process.poll() is None:
            self.call("close")
            try:
                self._process.wait(_END_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._release()

    def _release(self) -> None:
        self._process.wait()
        # Processes that its environments have started and left behind.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._calls.close()
        self.wake.close()
        self._report.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def __str__(self) -> str:
        setup, count = self.setup, len(self.setup.env_kwargs)
        if setup.one_by_one:
            some = [str(setup.number(env)) for env in range(min(count, 3))]
            return f"worker {self.pid} (environments {', '.join(some)}{', …' * (count > 3)})"
        return f"worker {self.pid} (environments {setup.number(0)} to {setup.number(count - 1)})"

    def _raised(self, failure: EnvFailure) -> NoReturn:
        self._process.kill()
        self._release()
        raise EnvWorkerFailure(
            f"environment {self.setup.number(failure.env)} raised:\n{failure.text.rstrip()}"
        )

    def died(self) -> NoReturn:
        """Report how the process ended; call this when its socket has closed."""
        with contextlib.suppress(EOFError, OSError):
            if self._calls.poll():
                self._raised(self._calls.recv())
        try:
            code = self._process.wait(_END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        how = (
            f"was ended by {signal.Signals(-code).name}"
            if code < 0
            else f"ended with exit code {code}"
        )
        where = self._reported()
        self._release()
        raise EnvWorkerFailure(f"{self} {how}" + (f":\n{where}" if where else ""))

    def hung(self, timeout: float) -> NoReturn:
        """Report where the process is, and kill it."""
        self._process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + _END_TIMEOUT
        while not self._reported() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)  # for the rest of the traceback
        where = self._reported() or "(no traceback was reported)"
        self._process.kill()
        self._release()
        raise EnvWorkerFailure(f"{self} was not done after {timeout:g} s; it was at:\n{where}")

    def _reported(self) -> str:
        size = os.fstat(self._report.fileno()).st_size
        return os.pread(self._report.fileno(), size, 0).decode(errors="replace").rstrip()


def close_all(workers: list[EnvWorker]) -> None:
    """Close these env workers."""
    for worker in workers:
        worker.close()
