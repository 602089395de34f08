"""The program of one trial and seed: it is started, stopped and ended through its supervisor."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweepd.envs.external import guard
from sweepd.envs.support import huge_pages, mkl, openblas
from sweepd.optimize.objectives.command import supervisor
from sweepd.optimize.objectives.command.reports import Attempt, BadReport, Report, joined, tail_text

OUT, CHECKPOINT = "out", "checkpoint"  # folders of a program
# Signals that a machine sends to all of its processes, or a person to one: not the program's fault.
FROM_OUTSIDE = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
MOST_AGAIN = 10  # attempts without progress that ask to be started again
PAUSE = 0.05  # seconds before the first of them; doubled for each further one
# What sweepd sets for itself.
_OURS = {openblas.VARIABLE: "1", mkl.VARIABLE: mkl.MODE, huge_pages.VARIABLE: "1"}


@dataclass(frozen=True)
class Limits:
    """Limits of a program. grace, seconds: seconds. memory: bytes. 0: no limit."""

    grace: float
    memory: int
    seconds: float


class Job:
    """The program of one trial and seed.

    Args:
        words: the program and its arguments.
        variables: environment variables, besides those of the worker.
        folder: of its files; in it the folders `OUT` and `CHECKPOINT`.
        limits: of each attempt.

    Attributes:
        finished: whether the program has ended by itself, with exit code 0.
        stopped: whether it was stopped with `stop`.
        fault: why it failed; "" while it did not.
        card: what it was given as `CUDA_VISIBLE_DEVICES`; "" without.
    """

    def __init__(
        self, words: Sequence[str], variables: Mapping[str, str], folder: Path, limits: Limits
    ) -> None:
        self.words, self._variables, self.folder, self._limits = words, variables, folder, limits
        self.finished = self.stopped = False
        self.fault = self.card = ""
        self._starts: list[int] = []  # of earlier attempts
        self._earlier: list[Report] = []
        self._again = 0  # attempts that asked to be started again since the last progress
        self._pause_ends = 0.0
        self._attempt: Attempt | None = None
        self._number = 0
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._tag = uuid.uuid4().hex
        # Of a worker that was killed, or has requeued the trial.
        while self._log(self._number + 1).exists():
            self._number += 1
            attempt = Attempt(self._files())
            with suppress(BadReport):
                attempt.read(ended=True)
            self._keep(attempt)

    def _log(self, number: int) -> Path:
        return self.folder / f"attempt-{number}.log"

    def _files(self) -> tuple[Path, Path]:
        log = self._log(self._number)
        return log, log.with_suffix(".jsonl")

    def _keep(self, attempt: Attempt) -> None:
        """Add the reports of an attempt that has ended to those of earlier ones."""
        self._earlier = joined(self._earlier, attempt.reports)
        self._starts += _start(attempt)

    @property
    def seed(self) -> int:
        """The seed that the program is given."""
        return int(self._variables["SWEEPD_SEED"])

    @property
    def starts(self) -> list[int]:
        """The first step that each attempt has reported."""
        return self._starts + ([] if self._attempt is None else _start(self._attempt))

    @property
    def reports(self) -> list[Report]:
        """The reports of all attempts, without those that a later attempt replaces.

        Before the first report of an attempt it is not known what it replaces.
        """
        return joined(self._earlier, [] if self._attempt is None else self._attempt.reports)

    def reached(self, step: int) -> bool:
        """Return whether the program has reported this step or a later one, or has finished."""
        reports = [] if self._attempt is None else self._attempt.reports
        return self.finished or bool(reports and reports[-1].step >= step)

    @property
    def running(self) -> bool:
        """Whether the program runs, and is not stopped."""
        return self._supervisor is not None and not self.stopped

    @property
    def alive(self) -> bool:
        """Whether the program runs or is stopped."""
        return self._supervisor is not None

    @property
    def ready(self) -> bool:
        """Whether the program may be started, or go on."""
        return not self.running and time.monotonic() >= self._pause_ends

    @property
    def handle(self) -> int:
        """File descriptor that becomes readable when the program has ended."""
        assert self._supervisor is not None
        assert self._supervisor.stdout is not None
        return self._supervisor.stdout.fileno()

    def start(self) -> None:
        """Start the program, as a further attempt."""
        self._number += 1
        log, reports = self._files()
        for name in (OUT, CHECKPOINT):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        own = {"SWEEPD_REPORTS": str(reports), guard.VARIABLE: self._tag}
        own |= {"CUDA_VISIBLE_DEVICES": self.card} if self.card else {}
        inherited = {n: v for n, v in os.environ.items() if _OURS.get(n) != v}
        limits = self._limits
        self._attempt = Attempt((log, reports))
        self._supervisor = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", supervisor.__file__),
                *(str(limits.grace), str(limits.memory), str(limits.seconds), str(log)),
                *self.words,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**inherited, **self._variables, **own},
            start_new_session=True,  # Ctrl-C in the terminal is for the worker
        )

    def read(self) -> None:
        """Read new reports; a bad one is the program's fault."""
        if self._attempt is not None:
            before = len(self._attempt.reports)
            try:
                self._attempt.read(ended=not self.alive)
            except BadReport as error:
                self.fault = str(error)
            progress = self._attempt.reports[before:]
            if progress and progress[-1].step > (self._earlier[-1].step if self._earlier else -1):
                self._again = 0

    def stop(self) -> None:
        """Stop the running program, so that it uses no processor."""
        self._send(supervisor.STOP)
        self.stopped = True

    def go_on(self) -> None:
        """Let a stopped program go on."""
        self._send(supervisor.CONTINUE)
        self.stopped = False

    def terminate(self) -> None:
        """Ask the program to end; it is killed after a grace period. Then call `collect`."""
        self._send(supervisor.TERMINATE)

    def _send(self, command: bytes) -> None:
        assert self._supervisor is not None
        assert self._supervisor.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: `collect` finds out
            self._supervisor.stdin.write(command)

    def collect(self) -> dict[str, Any] | None:
        """Return the outcome of a program that has ended; None if its supervisor was killed."""
        process, self._supervisor, self.stopped = self._supervisor, None, False
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdout as stdout:
            said = stdout.read()
        process.stdin.close()
        process.wait()
        if not said:
            guard.end_tagged("", self._tag)
        self.read()
        assert self._attempt is not None
        self._keep(self._attempt)
        self._attempt = None
        return dict(json.loads(said)) if said else None

    def kill(self) -> None:
        """Kill the program at once, with all that it has started."""
        assert self._supervisor is not None
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.close()  # as if the worker had died
        self.collect()

    def judge(self, outcome: Mapping[str, Any] | None) -> None:
        """Take over what the outcome of an attempt means: finished, failed, or to be started again."""
        status = supervisor.AGAIN if outcome is None else int(outcome["status"])
        if self.fault:
            return
        if outcome is not None and outcome["limit"] == "memory":
            limit = self._limits.memory / 2**30
            self.fault = f"it used more than {limit:g} GiB of memory (--job-memory)"
        elif outcome is not None and outcome["limit"] == "time":
            limit = self._limits.seconds / 60
            self.fault = f"it ran for more than {limit:g} minutes (--job-minutes)"
        elif status == 0 and not self.reports:
            example = '{"step": 1, "value": 0.5}'
            self.fault = f"it ended without a report, a line like {example}{self._said()}"
        elif status == 0:
            self.finished = True
        elif status == supervisor.AGAIN or -status in FROM_OUTSIDE:
            self._pause_ends = time.monotonic() + PAUSE * 2**self._again
            self._again += 1
            if self._again > MOST_AGAIN:
                how = "its supervisor was killed" if outcome is None else self._how(status)
                self.fault = f"{how} {self._again} times without progress{self._said()}"
        else:
            self.fault = f"{self._how(status)}{self._said()}"

    def _how(self, status: int) -> str:
        if status >= 0:
            return f"it ended with exit code {status}"
        names = {number.value: number.name for number in signal.Signals}
        return f"it was ended by {names.get(-status, f'signal {-status}')}"

    def _said(self) -> str:
        text = tail_text(self._log(self._number))
        return f": {text}" if text else ""


def _start(attempt: Attempt) -> list[int]:
    return [report.step for report in attempt.reports[:1]]


def clean(folder: Path) -> None:
    """Delete the checkpoints and locks of the programs in a trial's folder."""
    for checkpoint in folder.glob(f"seed-*/{CHECKPOINT}"):
        shutil.rmtree(checkpoint, ignore_errors=True)
    for lock in folder.glob(f"seed-*/{supervisor.LOCK}"):
        lock.unlink(missing_ok=True)
