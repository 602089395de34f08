"""Ends what environments have started, once the process that hosts them is gone, however that ended (`kill -9`).

An environment may start processes of its own (a simulator, a renderer), in this process or in a worker. Nobody tells
them when their host is killed. So a small process waits for the host's end, and then kills every process that carries
the host's tag: an open pipe, which forked processes inherit, or an environment variable, which started programs do.

This file is also that process's program: it imports only the standard library and nothing of this package.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "SWEEPD_ENV_HOST"
_PROC = Path("/proc")
_TRIES, _PAUSE = (
    40,
    0.05,
)  # looks for processes that carry the tag, until there are none; seconds between two


@dataclass
class _Guard:
    """tag: the pipe's end that forked processes inherit. name: the environment variable's value. host: the id of the
    process that it guards (a fork has another). process: the guard itself.
    """

    tag: int
    name: str
    host: int
    process: subprocess.Popen[bytes]

    def end(self) -> None:
        """End the guard, not what it guards. Does nothing in a fork of the host."""
        if os.getpid() == self.host:
            self.process.kill()
            self.process.wait()


_guard: _Guard | None = None


def guarded() -> tuple[int, ...]:
    """Have this process guarded, once; returns the file descriptors that processes which it starts must inherit.

    Does nothing on systems without `pidfd_open` and /proc, that is, other than Linux.
    """
    global _guard
    if _guard is None or _guard.host != os.getpid():
        if not (hasattr(os, "pidfd_open") and _PROC.is_dir()):
            return ()
        tag, _ = os.pipe()
        os.environ[VARIABLE] = name = uuid.uuid4().hex
        process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                __file__,
                str(os.getpid()),
                str(os.fstat(tag).st_ino),
                name,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            start_new_session=True,  # a Ctrl-C at the terminal is not for it
        )
        _guard = _Guard(tag, name, os.getpid(), process)
        atexit.register(_guard.end)  # a host that exits by itself has closed its environments
    return (_guard.tag,)


def stand_down() -> None:
    """End what environments of this process have started, and its guard: call this before execve(2).

    The process id outlives execve, so the guard would see no end of its host, and wait beside the next one.
    """
    global _guard
    if _guard is not None and _guard.host == os.getpid():
        _end_tagged(str(os.fstat(_guard.tag).st_ino), _guard.name, spared=_guard.host)
        _guard.end()
        os.close(_guard.tag)
        os.environ.pop(VARIABLE, None)
        _guard = None


def untagged() -> dict[str, str]:
    """`os.environ` for a program that is no environment's, and so may outlive this process."""
    return {name: value for name, value in os.environ.items() if name != VARIABLE}


def _carries(process: Path, pipe: str, variable: bytes) -> bool:
    """Whether a process has the tag. process: its folder in /proc."""
    with contextlib.suppress(OSError):  # it is gone, or somebody else's
        if variable in (process / "environ").read_bytes().split(b"\0"):
            return True
        return any(os.readlink(handle) == pipe for handle in (process / "fd").iterdir())
    return False


def _running(process: Path) -> bool:
    with contextlib.suppress(OSError):
        return (process / "stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    return False


def _main(host: int, inode: str, name: str) -> None:
    try:
        handle = os.pidfd_open(host)
    except ProcessLookupError:
        handle = -1
    if handle >= 0:
        select.select([handle], [], [])
    _end_tagged(inode, name)


def _end_tagged(inode: str, name: str, spared: int = 0) -> None:
    """Kill the processes that carry a tag, but for the one with the id `spared`."""
    pipe, variable = f"pipe:[{inode}]", f"{VARIABLE}={name}".encode()
    for _ in range(_TRIES):
        found = [
            int(process.name)
            for process in _PROC.iterdir()
            if process.name.isdigit()
            and int(process.name) != spared
            and _running(process)
            and _carries(process, pipe, variable)
        ]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
