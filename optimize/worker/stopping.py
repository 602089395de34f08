"""Stopping a worker: by signals, or to start again with fresh memory.

A process that runs for weeks may grow: by fragmentation, or by a leak in a library. Once its resident set passes a
limit, it puts its trials back at the next rung and replaces itself by execve(2). The process id stays the same for
systemd, for `--detach`, and for a worker that takes over. The numbers stay the same, too, as after every interruption.
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

from envs.core.sizing import total_memory
from envs.external.guard import stand_down
from envs.support.database_url import without_passwords
from envs.support.errors import RunError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SHARE_OF_MEMORY = 0.7
RECYCLED = "SWEEPD_RECYCLED"


class StopRequest:
    """SIGINT and SIGTERM: the first asks for a stop at the next safe point, a second one ends the process at once.

    A process that ends at once loses no trial: their heartbeats stop, and the next worker puts them back.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.requested = False
        self._say = say

    def __call__(self) -> bool:
        return self.requested

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        if self.requested:
            sys.stderr.write(
                "\x1b[?25h" if sys.stderr.isatty() else ""
            )  # the live panel hides the cursor
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
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # `start_again` blocked them
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)


class MemoryLimit:
    """Decides at each rung whether the process has grown too large.

    limit: bytes; 0: never. resident: the process's resident set in bytes. say: prints one line.

    The memory at the first rung is what the process needs, and a fresh process would need it, too. A limit below that
    is reported once and then ignored. So a process completes at least one rung before it starts again.
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
    """How often this process has started again (`recycled`), and the name under which it is recorded in the study
    (`worker`; "" before it first starts again).
    """

    recycled: int = 0
    worker: str = ""

    @classmethod
    def present(cls) -> Life:
        """Read it from the environment variable, and remove that, so that child processes do not inherit it."""
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
        while os.waitpid(-1, os.WNOHANG)[
            0
        ]:  # the fresh process would not know that it has to wait for them
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
        raise RunError(
            f"{sys.executable} cannot be started again ({error.strerror}); start the worker again"
        ) from None
