"""The process that sends pictures to a tracker:
`python -m sweepd.optimize.tracking.sender NAME FOLDER`.

It reads pictures from its standard input, one line of JSON each, and writes what the user should
know to its standard output. It is a process of its own, because the libraries of trackers hold the
interpreter while they are imported, and may block a process at its end for minutes.

It outlives a worker that was killed for at most `LOADING_SECONDS` + `FLUSH_SECONDS`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

from filelock import FileLock, Timeout

from sweepd.envs.support.files import write_atomic
from sweepd.envs.support.passwords import hide_password
from sweepd.envs.support.plugins import construct, resolve
from sweepd.optimize.tracking.picture import Picture, Sent

MOST_WAITING = 1000  # runs
LOADING_SECONDS = 90.0  # from the end of the input until the tracker's library is loaded, at most
FLUSH_SECONDS = 30.0  # from then to the end of the process, at most
FAILING_FLUSH_SECONDS = 5.0  # the same where the tracker has not answered before
FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0  # seconds between attempts
BUSY_DELAY = 0.2  # the same at the end, while another sender has a run open
LONGEST_ERROR = 300  # characters of an error that are shown


class Runs(Protocol):
    """A tracker.

    One of another package may have the argument `folder`, the folder of the study.
    """

    def send(self, picture: Picture, sent: Sent) -> None:
        """Bring the picture's run up to date; update `sent` on the way. Any error may be raised.

        Then the picture, or a newer one of its run, is sent again later.

        Args:
            picture: everything about the run.
            sent: what was sent before, by this process or an earlier one; it is kept in a file.
        """

    def close(self) -> None:
        """Close what is open."""


def sent_file(folder: Path, key: str) -> Path:
    """Return the file that says what was sent of a run."""
    return folder / f"{key}.json"


class Sender:
    """Sends the newest picture of each run, and retries those that fail.

    Args:
        name: name of the tracker.
        folder: for the files that say what was sent.
        out: receives one line of JSON per message.
        give_up: called a limited time after the end of the input; ends the process.
    """

    def __init__(self, name: str, folder: Path, out: IO[str], give_up: Callable[[], None]) -> None:
        self._name, self._folder, self._out = name, folder, out
        self._give_up = give_up
        self._runs: Runs | None = None
        self._pending: dict[str, Picture] = {}
        self._failing: set[str] = set()
        self._busy = False  # whether another sender had a run open in the last round
        self._locks: dict[str, FileLock] = {}  # of runs that may be open in the tracker
        self._changed = threading.Condition()
        self._closing = False
        self._loaded = threading.Event()

    def run(self, lines: Iterable[str]) -> int:
        """Send until the input ends; return the number of pictures that could not be sent."""
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()
        with suppress(Exception):  # early, because the import takes seconds
            self._runs = open_runs(self._name, self._folder)
        self._loaded.set()
        delay = 0.0
        while True:
            with self._changed:
                if delay:
                    self._changed.wait_for(lambda: self._closing, delay)
                else:
                    self._changed.wait_for(lambda: self._closing or self._pending)
                closing, batch, self._pending = self._closing, self._pending, {}
            failed = self._send_all(batch, closing)
            if closing and not self._busy:
                break
            if closing:  # until the other sender has ended, or this process must
                time.sleep(BUSY_DELAY)
            else:
                delay = min(max(FIRST_DELAY, 2 * delay), LONGEST_DELAY) if failed else 0.0
        with suppress(Exception):
            if self._runs is not None:
                self._runs.close()
        return len(self._pending)

    def _read(self, lines: Iterable[str]) -> None:
        for line in lines:
            picture = Picture.from_json(line)
            with self._changed:
                self._keep(picture)
                self._changed.notify()
        with self._changed:
            self._closing = True
            self._changed.notify()
        # A call to a server that does not answer must not keep this process alive. An import needs
        # no server: it has more time, as it takes long beside other programs.
        self._loaded.wait(LOADING_SECONDS)
        seconds = FAILING_FLUSH_SECONDS if self._failing else FLUSH_SECONDS
        timer = threading.Timer(seconds, self._give_up)
        timer.daemon = True
        timer.start()

    def _keep(self, picture: Picture) -> None:
        older = self._pending.get(picture.key)
        if older is not None:
            self._pending[picture.key] = picture.over(older)
        elif len(self._pending) < MOST_WAITING:
            self._pending[picture.key] = picture

    def _send_all(self, batch: dict[str, Picture], closing: bool) -> bool:
        """Send all pictures; keep those that fail. Return whether any did."""
        failed = self._busy = False
        for key, picture in batch.items():
            if failed and closing and not self._busy:  # there is no time to try all of them
                self._put_back(picture)
                continue
            try:
                self._send(picture)
            except Timeout:  # the sender of a worker that was killed has the run open
                failed = self._busy = True
                self._put_back(picture)
            except Exception as error:
                failed = True
                self._put_back(picture)
                self._fails(key, error)
            else:
                self._works(key)
        return failed

    def _put_back(self, picture: Picture) -> None:
        with self._changed:
            newer = self._pending.get(picture.key)
            self._pending[picture.key] = picture if newer is None else newer.over(picture)

    def _send(self, picture: Picture) -> None:
        path = sent_file(self._folder, picture.key)
        lock = self._locks.setdefault(picture.key, FileLock(path.with_suffix(".lock"), timeout=0))
        if not lock.is_locked:
            lock.acquire()
        if self._runs is None:
            self._runs = open_runs(self._name, self._folder)
        sent = Sent.from_json(path.read_text() if path.exists() else "")
        before = sent.to_json()
        try:
            self._runs.send(picture, sent)
        finally:
            if sent.to_json() != before:
                write_atomic(path, sent.to_json())
        if picture.is_ended:
            del self._locks[picture.key]
            lock.release()
            Path(lock.lock_file).unlink(missing_ok=True)

    def _fails(self, key: str, error: Exception) -> None:
        if not self._failing:
            self._say(f"fails ({_describe(error)}); training continues, and it is tried again")
        self._failing.add(key)

    def _works(self, key: str) -> None:
        if key in self._failing:
            self._failing.remove(key)
            if not self._failing:
                self._say("works again; nothing is missing")

    def _say(self, text: str) -> None:
        with suppress(OSError):  # the worker was killed
            self._out.write(json.dumps(text) + "\n")
            self._out.flush()


def open_runs(name: str, folder: Path) -> Runs:
    """Return the tracker of this name; import its library.

    Args:
        name: of the tracker; one of another package may have arguments.
        folder: where the sender keeps its files, `tracking/NAME` in the study's folder.
    """
    if name == "mlflow":
        from sweepd.optimize.tracking.mlflow_runs import MlflowRuns

        return MlflowRuns()
    study = folder.parent.parent
    if name == "wandb":
        from sweepd.optimize.tracking.wandb_runs import WandbRuns

        return WandbRuns(study)
    made: Runs = construct("tracker", resolve("tracker", name), folder=study)
    return made


def _describe(error: Exception) -> str:
    """Return the first line of an error, without passwords."""
    lines = str(error).strip().splitlines()
    text = hide_password(f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__)
    return text if len(text) <= LONGEST_ERROR else f"{text[:LONGEST_ERROR]}…"


def main() -> None:
    """Run the sender of one worker."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the end of the input ends this process
    # Libraries print to the standard streams, which belong to the worker.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    left = Sender(name, folder, out, lambda: os._exit(1)).run(sys.stdin)
    # Not `sys.exit`: functions that libraries registered for the end may wait for a server.
    os._exit(1 if left else 0)


if __name__ == "__main__":
    main()
