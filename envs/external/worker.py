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
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import spawn
from multiprocessing.connection import Connection
from typing import Any

from envs.external.actions import ActionLayout
from envs.external.buffers import Memory
from envs.external.handoff import FAILED, IDLE, STEP, GoneError, Side
from envs.external.observations import ObservationLayout
from envs.external.share import EnvFailure, Share, make_share
from envs.external.sources import Source

FOREVER = 1e9  # seconds


@dataclass(frozen=True)
class Setup:
    """What a worker is told at its start. own: the arguments of each of its environments, which are `first` … of all.

    total: environments in all; rows: of each. workers, index: how many workers there are, and which this is. spin:
    seconds that it looks for work before it sleeps. See `share.make_share` for the others.
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


def main(arguments: list[str]) -> None:
    memory, wake, talk, life, report = map(int, arguments)
    _leave_with(life)
    crashes = os.fdopen(report, "wb", buffering=0)
    faulthandler.enable(crashes, all_threads=False)
    faulthandler.register(signal.SIGUSR1, crashes, all_threads=False)  # a driver that waits in vain asks where we are
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
        memory = Memory(setup.total * setup.rows, setup.observations, setup.actions, setup.workers, handle)
        last = setup.first + len(setup.own)
        buffers = memory.buffers.part(setup.first * setup.rows, last * setup.rows)
        share = make_share(setup.source, setup.own, buffers, setup.observations, setup.actions, setup.kind, setup.rows)
    except EnvFailure as failure:
        talk.send(failure)
        return
    except Exception:
        talk.send(EnvFailure(0, traceback.format_exc()))
        return
    side = Side(memory.worker_words(setup.index), wake, setup.spin, driver=False)
    talk.send(None)
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
    finally:
        share.close()


def call(share: Share, talk: Any) -> None:
    """Call the method that the driver names. Raises GoneError where it wants this process to leave."""
    name, *arguments = talk.recv()
    if name == "close":
        raise GoneError
    getattr(share, name)(*arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
