"""Commands of sweepd in processes of their own, which outlive this one for a moment at most.

A command holds a lock, whose file has its process id, until it ends. So a process that continues a
night after a kill finds the command that is left over, and ends it before it does anything else.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sweepd.deploy.registry.flags import registry_environment
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.support.errors import RunError, TryAgainLater
from sweepd.envs.support.supervisor import Supervisor

PATIENCE = 600.0  # seconds that a command has to end after SIGTERM: it writes its checkpoints
_TAIL = 4_000  # characters of a command's messages that are read
# Writes its process id, which the command keeps, into the lock's file before the command begins.
_BEGIN = 'echo $$ > "$0"; exec "$@"'


class Stopped(Exception):
    """This process was asked to stop; the same command continues the night."""


@dataclass(frozen=True)
class Finished:
    """A command that has ended. output: on stdout. said: the last line of its messages."""

    code: int
    output: str
    said: str


@contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Hold a lock file; the kernel releases it when the process ends.

    Raises:
        TryAgainLater: another process holds it; the message is `busy`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        if not _try_lock(file.fileno()):
            raise TryAgainLater(busy)
        yield


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Commands:
    """Runs commands of sweepd for a night, one at a time.

    Args:
        registry: theirs, too.
        folder: of the commands' messages.
        lock: the file that a command holds; one per slot.
        supervisor: is told that this process is alive while a command runs.
        stop: set when this process shall stop.
        now: the present time, seconds since the epoch.
    """

    def __init__(
        self,
        registry: Registry,
        folder: Path,
        lock: Path,
        supervisor: Supervisor,
        stop: threading.Event,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._registry, self._folder, self._lock = registry, folder, lock
        self._supervisor, self._stop, self._now = supervisor, stop, now

    @property
    def stopping(self) -> bool:
        """Whether this process was asked to stop."""
        return self._stop.is_set()

    def run(self, name: str, words: Sequence[str], until: float | None = None) -> Finished:
        """Run a command until it ends.

        Args:
            name: of the files with its messages.
            words: the command and its arguments.
            until: when it is asked to end, seconds since the epoch; None: never.

        Raises:
            Stopped: this process was asked to stop; so was the command, which has ended.
            RunError: a command of an earlier process does not end.
        """
        self.end_left_over()
        output, messages = self._folder / f"{name}.out", self._folder / f"{name}.log"
        # -P: files in the folder must not be imported.
        command = [sys.executable, "-P", "-m", "sweepd", *words]
        with self._lock.open("w") as lock, output.open("wb") as out, messages.open("ab") as said:
            if not _try_lock(lock.fileno()):
                raise RunError(f"{self._lock} was locked in the meantime; is another loop running?")
            process = subprocess.Popen(
                ["/bin/sh", "-c", _BEGIN, str(self._lock), *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=said,
                env=registry_environment(self._registry),
                pass_fds=[lock.fileno()],
                start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on
            )
        code = self._wait(process, name, until)
        if self._stop.is_set():
            raise Stopped
        lines = messages.read_text(encoding="utf-8", errors="replace")[-_TAIL:].splitlines()
        text = output.read_text(encoding="utf-8", errors="replace")
        last = next((one for one in reversed(lines) if one.strip()), "")
        return Finished(code, text, re.sub("^error:? ", "", last.strip()))

    def end_left_over(self) -> None:
        """End the command that an earlier process started, if it is still running.

        Raises:
            RunError: it does not end.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        began, asked = time.monotonic(), False
        with self._lock.open("a+") as lock:
            while not _try_lock(lock.fileno()):
                lock.seek(0)
                # Empty: it is just beginning.
                if not asked and (pid := lock.read().strip()):
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGTERM)
                    asked = True
                waited = time.monotonic() - began
                if waited > PATIENCE:
                    raise RunError(
                        f"a command of an earlier start still runs {waited:.0f} s after SIGTERM; "
                        f"{self._lock} has its process id"
                    )
                self._supervisor.alive(lambda: "waiting for a command of an earlier start")
                time.sleep(0.1)

    def _wait(self, process: subprocess.Popen[bytes], name: str, until: float | None) -> int:
        asked: float | None = None
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(timeout=0.2)
            self._supervisor.alive(lambda: f"the night's {name}")
            due = self._stop.is_set() or (until is not None and self._now() >= until)
            if due and asked is None:
                process.terminate()
                asked = time.monotonic()
            if asked is not None and time.monotonic() - asked > PATIENCE:
                os.killpg(process.pid, signal.SIGKILL)
