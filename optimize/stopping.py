"""Stopping a worker: by signals, and for a moment, to start again with fresh memory.

A process that runs for weeks may grow: by fragmentation, by a library's leak. Once its resident set passes a limit, it
puts its trials back at the next rung, and becomes itself again by execve(2): the process id stays, so systemd, a
`--detach`ed worker's recorded id and a worker that wants to take over see one process all along; the numbers stay, too,
as after every interruption.
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

from envs.database_url import without_passwords
from envs.errors import RunError
from envs.external.guard import stand_down
from envs.sizing import total_memory

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SHARE_OF_MEMORY = 0.7
RECYCLED = "SWEEPD_RECYCLED"


class StopRequest:
    """SIGINT and SIGTERM: the first asks for a stop at the next safe point, a second one ends the process at once.

    Ending at once leaves a study that recovers by itself: the trials' heartbeats stop, and the next worker takes them
    back.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.requested = False
        self._say = say

    def __call__(self) -> bool:
        return self.requested

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        if self.requested:
            sys.stderr.write("\x1b[?25h" if sys.stderr.isatty() else "")  # the live panel hides the cursor
            os._exit(128 + signum)
        self.requested = True
        self._say(
            f"{signal.Signals(signum).name}: finishing this rollout, then putting the trials back (once more to stop "
            "at once)"
        )

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle both signals within the block."""
        before = {s: signal.signal(s, self._handle) for s in SIGNALS}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # what came while a process started again counts now
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)


class MemoryLimit:
    """Decides at each rung whether the process has grown too large.

    limit: bytes; 0: never. resident: the process's resident set in bytes. say: one line for a person.

    What a process holds at its first rung is what it needs, and a fresh one would, too. A limit below that is of no
    use: it is said once, and the limit is no more. So every life of a process brings at least a rung.
    """

    def __init__(self, limit: int, resident: Callable[[], int], say: Callable[[str], None]) -> None:
        self.limit, self._resident, self._say = limit, resident, say
        self.passed = False
        self._needed = 0

    def at_rung(self) -> bool:
        """Asked after every rung: whether the process is to start again now."""
        if not self.limit or self.passed:
            return self.passed
        if (resident := self._resident()) > self.limit:
            gc.collect()
            resident = self._resident()
        first, self._needed = not self._needed, self._needed or resident
        if resident <= self.limit:
            return False
        if first:
            self._say(
                f"this worker needs {resident / 2**30:.2f} GiB from the start, more than its limit of "
                f"{self.limit / 2**30:.2f} GiB (--max-memory): it goes on without the limit"
            )
            self.limit = 0
            return False
        self._say(
            f"memory has grown from {self._needed / 2**30:.2f} to {resident / 2**30:.2f} GiB, over the limit of "
            f"{self.limit / 2**30:.2f} GiB (--max-memory): putting the trials back and starting again"
        )
        self.passed = True
        return True


def default_limit(workers: int = 1) -> int:
    """Bytes: a share of what this machine, or the control group, grants to so many workers."""
    return int(SHARE_OF_MEMORY * total_memory() / workers)


@dataclass(frozen=True)
class Life:
    """Which life of a process this is. recycled: how often it has started again. worker: the name under which it is
    recorded in the study; "" in the first.
    """

    recycled: int = 0
    worker: str = ""

    @classmethod
    def present(cls) -> Life:
        """This one. What it is told by is taken from the environment, so that no child believes itself recycled."""
        words = os.environ.pop(RECYCLED, "").split()
        return cls(int(words[0]), words[1]) if len(words) == 2 and words[0].isdigit() else cls()


def start_again(life: Life) -> None:
    """Replace this process by a fresh one that runs the same command. Everything of value must be on disk, and all
    threads ended. Processes that environments started are killed.

    Signals that arrive from here on wait until the fresh process handles them. Raises RunError if it cannot be started.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    stand_down()
    with suppress(ChildProcessError):  # there are no more children
        while os.waitpid(-1, os.WNOHANG)[0]:  # the fresh process would not know that it has to wait for them
            pass
    os.environ[RECYCLED] = f"{life.recycled} {life.worker}"
    words, secret = without_passwords(sys.orig_argv[1:])
    os.environ.update(secret)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execv(sys.executable, [sys.executable, *words])
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        raise RunError(f"{sys.executable} cannot be started again ({error.strerror}); start the worker again") from None
