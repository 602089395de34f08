"""A worker process: it steps a share of the environments, and leaves as soon as its driver has.

Started as `python -m envs.external.worker` with file descriptors for arguments. It imports no torch, so that it starts
in a moment and stays small.
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

from envs.external.actions import ActionLayout
from envs.external.buffers import Memory
from envs.external.handoff import FAILED, IDLE, ORDERED, STEP, GoneError, Side
from envs.external.observations import ObservationLayout
from envs.external.share import EnvFailure, Share, make_share
from envs.external.sources import Source

FOREVER = 1e9  # seconds
# What goes through the socket where environments are stepped one by one: which one (of the share) is to be, and has
# been at what time (nanoseconds of the system's monotonic clock). The kernel keeps them, and what was written before
# them, in order.
ASKED = np.dtype(np.int64)
DONE = np.dtype([("env", np.int64), ("at", np.int64)])
CALLED = -1  # instead of an environment: a call of a method of the share


@dataclass(frozen=True)
class Setup:
    """What a worker is told at its start. own: the arguments of each of its environments, which are `first` … of all.

    total: environments in all; rows: of each. workers, index: how many workers there are, and which this is. spin:
    seconds that it looks for work before it sleeps. ordered: see `handoff.Side`. one_by_one: whether it is told which
    to step. See `share.make_share` for the others.
    """

    source: Source
    own: tuple[Mapping[str, Any], ...]
    observations: ObservationLayout
    actions: ActionLayout
    kind: str
    rows: int
    first: int
    total: int
    workers: int
    index: int
    spin: float
    ordered: bool = ORDERED
    one_by_one: bool = False
    resumable: bool = False


def main(arguments: list[str]) -> None:
    memory, wake, talk, life, report = map(int, arguments)
    _leave_with(life)
    crashes = os.fdopen(report, "wb", buffering=0)
    faulthandler.enable(crashes, all_threads=False)
    faulthandler.register(
        signal.SIGUSR1, crashes, all_threads=False
    )  # a driver that waits in vain asks where we are
    with contextlib.suppress(GoneError, EOFError, ConnectionError):
        _serve(memory, socket.socket(fileno=wake), Connection(talk))


def _leave_with(life: int) -> None:
    """Have the kernel end this process, whatever it is doing, when the other end of the pipe `life` is closed: that
    is, when its driver is gone, however that ended.
    """
    if hasattr(fcntl, "F_SETOWN"):
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([life], [], [], 0)[0]:  # it was closed before that
        sys.exit()


def _serve(handle: int, wake: socket.socket, talk: Any) -> None:
    try:
        spawn.prepare(talk.recv())
        setup: Setup = talk.recv()
        memory = Memory(
            setup.total * setup.rows, setup.observations, setup.actions, setup.workers, handle
        )
        last = setup.first + len(setup.own)
        buffers = memory.buffers.part(setup.first * setup.rows, last * setup.rows)
        share = make_share(
            setup.source,
            setup.own,
            buffers,
            setup.observations,
            setup.actions,
            setup.kind,
            setup.rows,
            setup.resumable,
        )
    except EnvFailure as failure:
        talk.send(failure)
        return
    except Exception:
        talk.send(EnvFailure(0, traceback.format_exc()))
        return
    talk.send(None)
    try:
        if setup.one_by_one:
            _step_one_by_one(share, wake, talk)
        _step_all(
            share,
            Side(
                memory.worker_words(setup.index),
                wake,
                setup.spin,
                driver=False,
                ordered=setup.ordered,
            ),
            talk,
        )
    finally:
        share.close()


def _step_all(share: Share, side: Side, talk: Any) -> None:
    try:
        while True:
            side.wait_while(IDLE, FOREVER)
            if side.word == STEP:
                share.step()
            else:
                call(share, talk)
            side.tell(IDLE)
    except EnvFailure as failure:
        talk.send(failure)
        side.tell(FAILED)
        raise GoneError from None


def _step_one_by_one(share: Share, wake: socket.socket, talk: Any) -> None:
    rest = b""
    try:
        while data := wake.recv(1 << 16):
            asked, rest = records(rest + data, ASKED)
            for env in asked.tolist():
                if env == CALLED:
                    call(share, talk)
                else:
                    share.step_one(env)
                wake.sendall(np.array((env, time.monotonic_ns()), DONE).tobytes())
    except EnvFailure as failure:
        talk.send(failure)
    raise GoneError


def records(data: bytes, kind: np.dtype[Any]) -> tuple[NDArray[Any], bytes]:
    """The whole records in these bytes, and what is left of the last one."""
    whole = len(data) // kind.itemsize * kind.itemsize
    return np.frombuffer(data[:whole], kind), data[whole:]


def call(share: Share, talk: Any) -> None:
    """Call the method that the driver names, and send what it returns. Raises GoneError where it asks to leave."""
    name, *arguments = talk.recv()
    if name == "close":
        raise GoneError
    talk.send(getattr(share, name)(*arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
