"""Ends the processes that environments have started when their host process ends, even by SIGKILL.

An environment may start processes of its own (a simulator, a renderer), in this process or in an
env worker. They are not notified when the host is killed. So a guard process waits for the end of
the host and then kills every process that carries the host's tag: an open pipe, which forked
processes inherit, or an environment variable, which programs inherit.

An environment that calls `os._exit` or crashes ends its host without a word. So the host notes in
shared memory when it is inside of an environment (`note`), and the guard says so at its end.

This file is also the guard's program. It imports only the standard library, none of this package.
"""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "SWEEPD_ENV_HOST"
_PROC = Path("/proc")
_NOTE_SIZE = 1024  # bytes: whether the host is inside of an environment, then its name
_TRIES, _PAUSE = 40, 0.05  # searches for tagged processes until none is left; seconds between


@dataclass
class _Guard:
    """The guard of one host process.

    Attributes:
        tag: File descriptor of the pipe that forked processes inherit.
        name: Value of the environment variable.
        host: Process id of the host; a fork of the host has another.
        note: Shared with the guard process, see `note`.
        process: The guard process.
    """

    tag: int
    name: str
    host: int
    note: mmap.mmap
    process: subprocess.Popen[bytes]

    def end(self) -> None:
        """End the guard only. Does nothing in a fork of the host."""
        if os.getpid() == self.host:
            self.process.kill()
            self.process.wait()


_guard: _Guard | None = None


def guarded() -> tuple[int, ...]:
    """Start the guard of this process, if there is none yet.

    Does nothing on systems without `pidfd_open` and /proc, that is, other than Linux.

    Returns:
        File descriptors that child processes of this process must inherit.
    """
    global _guard
    if _guard is None or _guard.host != os.getpid():
        if not (hasattr(os, "pidfd_open") and _PROC.is_dir()):
            return ()
        # Both ends stay open for as long as this process and its forks live; nothing is written.
        tag, _ = os.pipe()
        os.environ[VARIABLE] = name = uuid.uuid4().hex
        shared = os.memfd_create("sweepd-guard")
        os.ftruncate(shared, _NOTE_SIZE)
        process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                __file__,
                str(os.getpid()),
                str(os.fstat(tag).st_ino),
                name,
                str(shared),
            ],
            pass_fds=(shared,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={},  # without the tag, or the guard would kill itself
            start_new_session=True,  # Ctrl-C in the terminal must not end it
        )
        _guard = _Guard(tag, name, os.getpid(), mmap.mmap(shared, _NOTE_SIZE), process)
        os.close(shared)
        atexit.register(_guard.end)  # a host that exits normally has closed its environments
    return (_guard.tag,)


def note(name: str) -> mmap.mmap | bytearray:
    """Return a buffer whose first byte says whether this process is inside of an environment.

    If the process ends while it is not 0, the guard says that it ended in the environment `name`.
    """
    guarded()
    if _guard is None:
        return bytearray(1)
    text = name.encode()[: _NOTE_SIZE - 2]
    _guard.note[1 : 2 + len(text)] = text + b"\0"
    return _guard.note


@contextlib.contextmanager
def inside(name: str) -> Iterator[None]:
    """Note that the code within is that of the environment `name`."""
    buffer = note(name)
    buffer[0] = 1
    try:
        yield
    finally:
        buffer[0] = 0


def stand_down() -> None:
    """End the processes that this process's environments started, and the guard, before execve(2).

    The process id does not change in execve, so the guard would not notice the end of its host and
    would stay, next to the guard of the new program.
    """
    global _guard
    if _guard is not None and _guard.host == os.getpid():
        end_tagged(str(os.fstat(_guard.tag).st_ino), _guard.name, spared=_guard.host)
        _guard.end()
        os.close(_guard.tag)
        os.environ.pop(VARIABLE, None)
        _guard = None


def untagged() -> dict[str, str]:
    """Return `os.environ` without the tag, for a program that may outlive this process."""
    return {name: value for name, value in os.environ.items() if name != VARIABLE}


def _carries(process: Path, pipe: str, variable: bytes) -> bool:
    """Return whether a process has the tag. process: its folder in /proc."""
    with contextlib.suppress(OSError):  # it has ended, or belongs to another user
        if variable in (process / "environ").read_bytes().split(b"\0"):
            return True
        return any(os.readlink(handle) == pipe for handle in (process / "fd").iterdir())
    return False


def _running(process: Path) -> bool:
    with contextlib.suppress(OSError):
        return (process / "stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    return False


def _main(host: int, inode: str, name: str, shared: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # the host may have ended already
        select.select([os.pidfd_open(host)], [], [])  # readable once the host has ended
    content = os.pread(shared, _NOTE_SIZE, 0)
    if content[0]:
        environment = content[1:].partition(b"\0")[0].decode(errors="replace")
        print(
            f"process {host} ended inside of the environment {environment}"
            ": it was killed, or the environment crashed or called os._exit",
            file=sys.stderr,
        )
    end_tagged(inode, name)


def end_tagged(inode: str, name: str, spared: int = 0) -> None:
    """Kill the processes that carry a tag, except the one with the id `spared`."""
    pipe, variable = f"pipe:[{inode}]", f"{VARIABLE}={name}".encode()
    # Repeated, since a process may start another one between the search and its end.
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
    _main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
