"""Stopping a worker on a signal, and restarting it when its memory has grown too large.

The memory of a process that runs for weeks may grow, through fragmentation or a leak in a library.
Once its resident set exceeds a limit, the worker requeues its trials at the next rung and replaces
itself with execve(2). The process id stays the same, which systemd, `--detach` and a worker that
takes over rely on. Results stay the same, as after every interruption.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from sweepd.envs.core.sizing import total_memory
from sweepd.envs.external.guard import stand_down
from sweepd.envs.support.database_url import without_passwords
from sweepd.envs.support.errors import RunError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SHARE_OF_MEMORY = 0.7
RECYCLED = "SWEEPD_RECYCLED"


class StopRequest:
    """Handler of SIGINT and SIGTERM; calling it returns whether a stop was requested.

    The first signal requests a stop at the next safe point, the second ends the process at once.
    No trial is lost even then: its heartbeats stop, and the next worker requeues it.

    Args:
        say: prints one line.
        then: what follows once training has stopped.
    """

    def __init__(self, say: Callable[[str], None], then: str = "requeueing the trials") -> None:
        self.requested = False
        self._say, self._then = say, then
        self._unsaid = ""

    def __call__(self) -> bool:
        if self._unsaid:
            text, self._unsaid = self._unsaid, ""
            self._say(text)
        return self.requested

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        if self.requested:
            if sys.stderr.isatty():
                sys.stderr.write("\x1b[?25h")  # show the cursor, which the live panel hides
            os._exit(128 + signum)
        self.requested = True
        text = (
            f"{signal.Signals(signum).name}: ending the training here, then {self._then} (send it "
            "again to stop at once)"
        )
        try:
            self._say(text)
        except RuntimeError:
            # The signal interrupted a write to the same stream ("reentrant call"): say it later.
            self._unsaid = text

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle both signals within the block."""
        before = {s: signal.signal(s, self._handle) for s in SIGNALS}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # `restart` blocked them
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)


class MemoryLimit:
    """Decides at each rung whether the process has grown too large.

    A new process would need as much memory as this one at its first rung. A limit below that is
    reported once and then ignored, so a process completes at least one rung before it restarts.

    Args:
        limit: bytes; 0 for no limit.
        resident: returns the resident set of the process in bytes.
        say: prints one line.
    """

    def __init__(self, limit: int, resident: Callable[[], int], say: Callable[[str], None]) -> None:
        self.limit, self._resident, self._say = limit, resident, say
        self.passed = False
        self._needed = 0

    def at_rung(self) -> bool:
        """Return whether to restart the process now; called after every rung."""
        if not self.limit or self.passed:
            return self.passed
        # Garbage in reference cycles is no growth. Collecting it takes time, so only if needed.
        if (resident := self._resident()) > self.limit:
            gc.collect()
            resident = self._resident()
        first, self._needed = not self._needed, self._needed or resident
        if resident <= self.limit:
            return False
        if first:
            self._say(
                f"this worker needs {resident / 2**30:.2f} GiB from the start, more than its "
                f"limit of {self.limit / 2**30:.2f} GiB (--max-memory): continuing without a limit"
            )
            self.limit = 0
            return False
        self._say(
            f"memory has grown from {self._needed / 2**30:.2f} to {resident / 2**30:.2f} GiB, over "
            f"the limit of {self.limit / 2**30:.2f} GiB (--max-memory): requeueing the trials and "
            "restarting"
        )
        self.passed = True
        return True


def default_limit(workers: int = 1) -> int:
    """Return the default memory limit in bytes of one of `workers` workers on this machine."""
    return int(SHARE_OF_MEMORY * total_memory() / workers)


@dataclass(frozen=True)
class Life:
    """What a process passes on to itself when it restarts.

    Attributes:
        recycled: number of restarts so far.
        worker: name under which the worker is registered; "" before the first restart.
    """

    recycled: int = 0
    worker: str = ""

    @classmethod
    def present(cls) -> Life:
        """Read it from the environment variable, and remove that from children's environments."""
        words = os.environ.pop(RECYCLED, "").split()
        return cls(int(words[0]), words[1]) if len(words) == 2 and words[0].isdigit() else cls()


def restart(life: Life) -> None:
    """Replace this process by a new one that runs the same command.

    All state must be on disk, and all threads must have ended. Processes that environments started
    are killed. Signals are blocked until the new process handles them.

    Raises:
        RunError: the new process cannot be started.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    stand_down()
    with suppress(ChildProcessError):  # there are no more children
        # The new process does not know these children, and would never reap them.
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    # execv keeps the process id and the environment, but no memory: what must survive goes there.
    os.environ[RECYCLED] = f"{life.recycled} {life.worker}"
    words, secret = without_passwords(sys.orig_argv[1:])
    os.environ.update(secret)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execv(sys.executable, [sys.executable, *words])
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        raise RunError(
            f"{sys.executable} cannot be restarted ({error.strerror}); start the worker again"
        ) from None
