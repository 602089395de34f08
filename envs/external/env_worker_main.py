"""The program of an env worker: a process that steps a shard of the environments.

Started as `python -m sweepd.envs.external.env_worker_main` with file descriptors as arguments; see
`sweepd.envs.external.env_worker` for the parent's side. It ends as soon as its parent has. It does
not import torch, so it starts quickly and uses little memory.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import spawn
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweepd.envs.external.describe import Description
from sweepd.envs.external.shards import EnvFailure, Shard, make_shard
from sweepd.envs.external.shared_memory import (
    FAILED,
    IDLE,
    ORDERED,
    STEP,
    GoneError,
    HandOver,
    SharedMemory,
)
from sweepd.envs.external.sources import Source

FOREVER = 1e9  # seconds
# Records in the socket where environments are stepped one by one: the environment (by its index in
# the shard) to step, and the environment that was stepped with the time, in nanoseconds of the
# monotonic clock. The kernel keeps records, and the memory written before them, in order.
REQUEST = np.dtype(np.int64)
DONE = np.dtype([("env", np.int64), ("time", np.int64)])
CALLED = -1  # in place of an environment: a call of a method of the shard


@dataclass(frozen=True)
class EnvWorkerSetup:
    """What an env worker is told when it starts.

    Attributes:
        source: What makes an environment.
        env_kwargs: Arguments of each of its environments.
        description: What `describe` says of the source.
        first: Index of its first environment in the shared memory.
        total: Number of all environments.
        workers: Number of env workers.
        index: Which of them this is.
        spin: See `HandOver`, as `ordered`.
        one_by_one: Whether it is told which environment to step. Then its environments are not next
            to each other, see `FirstReadyEnvs`.
        resumable: See `make_shard`.
    """

    source: Source
    env_kwargs: tuple[Mapping[str, Any], ...]
    description: Description
    first: int
    total: int
    workers: int
    index: int
    spin: float
    ordered: bool = ORDERED
    one_by_one: bool = False
    resumable: bool = False

    def number(self, env: int) -> int:
        """Return the number of its environment `env` among all environments."""
        return self.index + self.workers * env if self.one_by_one else self.first + env


def main(arguments: list[str]) -> None:
    memory, wake, calls, lifeline, report = map(int, arguments)
    _end_with_parent(lifeline)
    crashes = os.fdopen(report, "wb", buffering=0)
    faulthandler.enable(crashes, all_threads=False)
    # After a timeout, the parent asks by this signal where the process is.
    faulthandler.register(signal.SIGUSR1, crashes, all_threads=False)
    with contextlib.suppress(GoneError, EOFError, ConnectionError):
        _serve(memory, socket.socket(fileno=wake), Connection(calls))


def _end_with_parent(lifeline: int) -> None:
    """Have the kernel end this process, whatever it is doing, when its parent ends.

    The parent holds the other end of the pipe `lifeline`, which closes when the parent ends, even
    by SIGKILL.
    """
    if hasattr(fcntl, "F_SETOWN"):
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    closed = select.poll()  # `select.select` refuses descriptors above 1,023
    closed.register(lifeline, select.POLLIN)
    if closed.poll(0):  # it was closed before that
        sys.exit()


def _serve(handle: int, wake: socket.socket, calls: Any) -> None:
    try:
        spawn.prepare(calls.recv())
        setup: EnvWorkerSetup = calls.recv()
        what, last = setup.description, setup.first + len(setup.env_kwargs)
        memory = SharedMemory(
            setup.total * what.rows, what.observations, what.actions, setup.workers, handle
        )
        buffers = memory.buffers.part(setup.first * what.rows, last * what.rows)
        shard = make_shard(setup.source, setup.env_kwargs, buffers, what, setup.resumable)
    except EnvFailure as failure:
        calls.send(failure)
        return
    except Exception:
        calls.send(EnvFailure(0, traceback.format_exc()))
        return
    calls.send(None)
    try:
        if setup.one_by_one:
            _step_one_by_one(shard, wake, calls)
        words = memory.worker_words(setup.index)
        _step_all(
            shard, HandOver(words, wake, setup.spin, parent=False, ordered=setup.ordered), calls
        )
    finally:
        shard.close()


def _step_all(shard: Shard, hand_over: HandOver, calls: Any) -> None:
    try:
        while True:
            hand_over.wait_while(IDLE, FOREVER)
            if hand_over.state == STEP:
                shard.step()
            else:
                _call(shard, calls)
            hand_over.set_state(IDLE)
    except EnvFailure as failure:
        calls.send(failure)
        hand_over.set_state(FAILED)
        raise GoneError from None


def _step_one_by_one(shard: Shard, wake: socket.socket, calls: Any) -> None:
    rest = b""
    try:
        while data := wake.recv(1 << 16):
            requests, rest = records(rest + data, REQUEST)
            for env in requests.tolist():
                if env == CALLED:
                    _call(shard, calls)
                    continue
                shard.step_one(env)
                wake.sendall(np.array((env, time.monotonic_ns()), DONE).tobytes())
    except EnvFailure as failure:
        calls.send(failure)
    raise GoneError


def records(data: bytes, dtype: np.dtype[Any]) -> tuple[NDArray[Any], bytes]:
    """Split bytes into whole records and the beginning of the next one."""
    whole = len(data) // dtype.itemsize * dtype.itemsize
    return np.frombuffer(data[:whole], dtype), data[whole:]


def _call(shard: Shard, calls: Any) -> None:
    """Call the method that the parent names and send the result; `close` raises GoneError."""
    name, *arguments = calls.recv()
    if name == "close":
        raise GoneError
    calls.send(getattr(shard, name)(*arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
