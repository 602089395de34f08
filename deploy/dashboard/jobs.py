"""Commands that the dashboard has started.

An action is the command of the same name, run as a process of its own: the rules are those of the
command, the server imports nothing for it, and a command that was started ends whether the server
does or not. All of them are transactions, so a death leaves nothing half done.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.passwords import hide_password

KEPT = 50  # ended jobs
MOST_RUNNING = 4
MOST_BYTES = 1 << 16  # of the output, from its end
WIDTH = 100  # columns of the output
WAIT = 5.0  # seconds: most commands end sooner, and their result is shown at once


@dataclass
class Job:
    """A command that was started.

    Attributes:
        number: from 1.
        title: what it does.
        command: as a user would type it.
        by: user@host.
        why: the user's reason.
        back: link to the page that it was started from.
        started, ended: seconds since the epoch; None while it runs.
        code: its exit code.
    """

    number: int
    title: str
    command: str
    by: str
    why: str
    back: str
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    started: float = field(default_factory=time.time)
    ended: float | None = None
    code: int | None = None

    @property
    def state(self) -> str:
        """One word."""
        return "running" if self.ended is None else "done" if self.code == 0 else "failed"

    @property
    def text(self) -> str:
        """The end of its output."""
        # At a position, since the process writes at that of the shared file.
        size = os.fstat(self.output.fileno()).st_size
        first = max(0, size - MOST_BYTES)
        text = os.pread(self.output.fileno(), size - first, first)
        return hide_password(text.decode(errors="replace").strip())

    def wait(self) -> None:
        """Wait for its end."""
        self.code = self.process.wait()
        self.ended = time.time()


class Jobs:
    """The commands that this server has started, with their results."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._count = 0
        self._lock = threading.Lock()

    def start(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        *,
        title: str,
        command: str,
        by: str,
        why: str,
        back: str,
    ) -> Job:
        """Start a command, and wait for a moment whether it ends.

        Args:
            words: the command, with its program.
            environment: its environment variables.
            title: see `Job`, as the others.
            command: the same command is not started twice at a time.
            by: who asked for it.
            why: the reason.
            back: a link.

        Raises:
            InputError: the same command or too many others are running, or it cannot be started.
        """
        with self._lock:
            running = [job for job in self._jobs.values() if job.state == "running"]
            for job in running:
                if job.command == command:
                    raise InputError(f"this command is still running, as action {job.number}")
            if len(running) >= MOST_RUNNING:
                raise InputError(f"{len(running)} actions are running; wait until one has ended")
            output = tempfile.TemporaryFile()  # noqa: SIM115  closed when the job is forgotten
            try:
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**environment, "COLUMNS": str(WIDTH)},
                    # Ctrl-C in the server's terminal ends the server only.
                    process_group=0,
                )
            except OSError as error:
                output.close()
                raise InputError(f"the command cannot be started ({error.strerror})") from None
            self._count += 1
            job = Job(self._count, title, command, by, why, back, process, output)
            self._jobs[job.number] = job
            ended = [number for number, one in self._jobs.items() if one.ended is not None]
            for number in ended[:-KEPT]:
                self._jobs.pop(number).output.close()
        waiting = threading.Thread(target=job.wait, name="job", daemon=True)
        waiting.start()
        waiting.join(WAIT)
        return job

    def all(self) -> list[Job]:
        """Return the jobs, the newest first."""
        with self._lock:
            return list(self._jobs.values())[::-1]

    def get(self, number: int) -> Job | None:
        """Return a job, None if there is none of that number."""
        with self._lock:
            return self._jobs.get(number)
