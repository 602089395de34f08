"""The supervisor of one program: `python -I -S supervisor.py GRACE MEMORY SECONDS LOG WORD …`.

It starts the program in a session of its own with its output in the file LOG, and ends when the
program has ended, with everything that the program started. Its standard input is a pipe from the
worker: the letters `STOP`, `CONTINUE` and `TERMINATE`. The pipe's end means that the worker has
died: then everything is killed at once. A supervisor holds a lock in LOG's folder while its program
runs. One that finds it locked ends the supervisor that holds it: that of a worker which was suspended
for so long that its trial was given to another. Its standard output is one line of JSON, the outcome:

    status   exit code of the program, or minus the signal that ended it
    limit    "memory" or "time" if it was killed for that, else ""

GRACE is the time in seconds from `TERMINATE` to SIGKILL, MEMORY the most resident memory in bytes of
all processes together, SECONDS the longest time to run; 0: no limit.

This file is a program: it imports only the standard library, nothing of this package.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import sys
import time

STOP, CONTINUE, TERMINATE = b"s", b"c", b"t"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LOOK_SECONDS = 0.5  # between two measurements of memory, which take some milliseconds
_TRIES, _PAUSE = 500, 0.01  # rounds of kills until nothing is left; seconds between them
LOCK = "running.lock"
_LOCK_SECONDS = 20.0  # the longest wait for it
AGAIN = 75  # exit code: start the program again (EX_TEMPFAIL of sysexits.h)


class Supervisor:
    """One program and its descendants.

    Args:
        words: the program and its arguments.
        log: file to which its output is appended.
        grace: seconds from SIGTERM to SIGKILL.
        memory: limit in bytes; 0: none.
        seconds: limit of the running time; 0: none.
    """

    def __init__(
        self, words: list[str], log: str, grace: float, memory: int, seconds: float
    ) -> None:
        self.grace, self.memory, self.seconds = grace, memory, seconds
        self.limit = ""
        self._ran = 0.0  # seconds up to the last stop
        self._continued: float | None = time.monotonic()  # None: it is stopped
        self._kill_at: float | None = None
        self._worker = os.getppid()
        self._replaced = False
        signal.signal(signal.SIGUSR1, self._replace)
        self._libc = ctypes.CDLL(None)
        # What loses its parent becomes a child of this process, whatever session it is in.
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.pid = self._start(words, log)
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # A fork of the worker may hold the other end of the pipe: it need not end with the worker.
        signal.signal(signal.SIGTERM, lambda *_: None)
        self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

    def _start(self, words: list[str], log: str) -> int:
        supervisor = os.getpid()
        output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        pid = os.fork()
        if pid:
            os.close(output)
            return pid
        try:
            os.setsid()
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != supervisor:  # it died before the line above
                os._exit(1)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            # Python ignores these, and programs inherit that.
            for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(ignored, signal.SIG_DFL)
            os.execvp(words[0], words)
        except OSError as error:
            os.write(2, f"{words[0]} cannot be started: {error.strerror}\n".encode())
        finally:
            os._exit(127)

    def run(self) -> str | None:
        """Watch the program to its end; return its outcome, None if the worker died."""
        while True:
            status = self._reap()
            if status is not None:
                self.kill_all()
                # Written by hand: importing json takes as long as the rest of the start.
                return f'{{"status": {status}, "limit": "{self.limit}"}}'
            self._check_limits()
            if self._replaced:
                self.kill_all()
                return None
            ready, _, _ = select.select([0, self._wake], [], [], self._timeout())
            if self._wake in ready:
                os.read(self._wake, 512)
            commands = os.read(0, 512) if 0 in ready else None
            if commands == b"" or os.getppid() != self._worker:
                self.kill_all()
                return None
            for command in commands or b"":
                self._obey(bytes([command]))

    def _replace(self, *_: object) -> None:
        self._replaced = True

    @property
    def ran(self) -> float:
        """Seconds for which the program has run."""
        now = 0.0 if self._continued is None else time.monotonic() - self._continued
        return self._ran + now

    def _timeout(self) -> float | None:
        """Return the seconds to the next thing that no event announces."""
        left = [_LOOK_SECONDS] if self.memory else []
        if self._kill_at is not None:
            left.append(self._kill_at - time.monotonic())
        if self.seconds and self._continued is not None:
            left.append(self.seconds - self.ran)
        return max(0.0, min(left)) if left else None

    def _obey(self, command: bytes) -> None:
        if command == STOP and self._kill_at is None:
            self._ran, self._continued = self.ran, None
            self._signal(signal.SIGSTOP)
            self._signal_others(signal.SIGSTOP)
        elif command == CONTINUE:
            self._continue()
        elif command == TERMINATE and self._kill_at is None:
            self._kill_at = time.monotonic() + self.grace
            self._signal(signal.SIGTERM)
            self._continue()

    def _continue(self) -> None:
        if self._continued is None:
            self._continued = time.monotonic()
            self._signal_others(signal.SIGCONT)
            self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        """Send a signal to the program's process group."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            # It has just been started and has no group yet, or it has just ended.
            _kill(self.pid, number)

    def _signal_others(self, number: int) -> None:
        """Send a signal to what has left the program's process group."""
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(pid) != self.pid:
                    _kill(pid, number)

    def _reap(self) -> int | None:
        """Collect ended children; return the program's exit status once it has ended."""
        found = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return found
            if not pid:
                return found
            if pid == self.pid:
                found = os.waitstatus_to_exitcode(status)

    def _check_limits(self) -> None:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self.kill_all()
        elif self.seconds and self.ran >= self.seconds:
            self.limit = "time"
            _kill(self.pid, signal.SIGKILL)
        elif self.memory and sum(map(_resident, descendants(os.getpid()))) > self.memory:
            self.limit = "memory"
            _kill(self.pid, signal.SIGKILL)

    def kill_all(self) -> None:
        """Kill the program and everything that it started, until nothing of it is alive."""
        for _ in range(_TRIES):
            try:
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:  # then there are no descendants either
                return
            found = descendants(os.getpid())
            if not found:
                return
            for pid in found:
                _kill(pid, signal.SIGKILL)
            time.sleep(_PAUSE)  # one may have started another between the search and its end


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def descendants(ancestor: int) -> list[int]:
    """Return the ids of all living processes below one."""
    children: dict[int, list[int]] = {}
    ended = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        # It may have ended since it was listed.
        with contextlib.suppress(OSError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
            children.setdefault(int(parent), []).append(int(name))
            if state in (b"Z", b"X"):
                ended.add(int(name))
    found, left = [], [ancestor]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return [pid for pid in found if pid not in ended]


def _resident(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, IndexError):
        return 0


def lock(folder: str) -> bool:
    """Lock a folder until this process ends, and end the supervisor that holds the lock.

    Returns:
        False if it is still locked after some time, by a process that this machine does not see.
    """
    file = os.open(os.path.join(folder, LOCK), os.O_CREAT | os.O_RDWR, 0o644)
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            _end_holder(file, folder)
            time.sleep(_PAUSE)
        else:
            os.ftruncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)
            return True


def _end_holder(file: int, folder: str) -> None:
    """Ask the supervisor whose id is in the file to end, if it is one of this folder here."""
    # The folder may be shared with machines where the id is that of another process.
    with contextlib.suppress(ValueError, OSError):
        holder = int(os.pread(file, 32, 0))
        with open(f"/proc/{holder}/cmdline", "rb") as words:
            if os.fsencode(os.path.join(folder, "")) in words.read():
                os.kill(holder, signal.SIGUSR1)


def main(arguments: list[str]) -> None:
    """Supervise the program of these arguments, and print its outcome."""
    grace, memory, seconds, log, *words = arguments
    if lock(os.path.dirname(log)):
        outcome = Supervisor(words, log, float(grace), int(memory), float(seconds)).run()
    else:
        outcome = f'{{"status": {AGAIN}, "limit": ""}}'
    if outcome is not None:
        os.write(1, f"{outcome}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1:])
