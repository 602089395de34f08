"""The worker's side of tracking: pictures go through a bounded queue to the sender's process."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.files import write_atomic
from sweepd.envs.support.invocation import install_extra
from sweepd.envs.support.plugins import changed, resolve
from sweepd.optimize.tracking.picture import Picture, Sent
from sweepd.optimize.tracking.sender import FLUSH_SECONDS, LOADING_SECONDS, MOST_WAITING, sent_file

TRACKERS = {"mlflow": "MLflow", "wandb": "W&B"}
RECORD = "tracker.json"  # in the folder of a tracker of another package: which one it is


def check_trackers(names: Sequence[str]) -> None:
    """Raise InputError if a tracker is unknown or its package is not installed."""
    for name in names:
        if name not in TRACKERS:
            _check_own(name)
        elif importlib.util.find_spec(name) is None:
            raise InputError(f"--track {name} needs a package: {install_extra(name)}")


def _check_own(name: str) -> None:
    """Refuse what is no tracker of another package, or does not take its arguments.

    It is constructed in the sender's process only, as its library may take seconds to import.
    """
    plugin, flag = resolve("tracker", name, TRACKERS), f"--track {name}"
    methods = ("send", "close")
    if not all(callable(getattr(plugin.made, method, None)) for method in methods):
        raise InputError(
            f"{flag}: {plugin.made!r} is not a tracker, a class with send(picture, sent) and close()"
        )
    more = {"folder": ""} if plugin.takes("folder") else {}
    try:
        inspect.signature(plugin.made).bind(**{**more, **plugin.arguments})
    except TypeError as error:
        raise InputError(f"{flag}: {error}") from None


def _own_folder(name: str) -> str:
    """Return the name of a tracker's folder; trackers that differ in arguments have their own."""
    own, _, given = name.partition(" ")
    digest = f"-{hashlib.sha256(given.encode()).hexdigest()[:8]}" if given else ""
    return re.sub(r"[^\w.+-]", "-", own) + digest


class Tracking:
    """Mirrors runs to any number of trackers. Use it as a context manager.

    Args:
        names: names of the trackers, checked by `check_trackers`.
        folder: folder of the study or run; files are kept in its `tracking/NAME`.
        say: prints one line.
    """

    def __init__(self, names: Sequence[str], folder: Path, say: Callable[[str], None]) -> None:
        self._folders = {
            name: folder / "tracking" / _own_folder(name) for name in dict.fromkeys(names)
        }
        self._say = say
        self._trackers: list[_Tracker] = []

    def __bool__(self) -> bool:
        return bool(self._folders)

    def __enter__(self) -> Self:
        for name, folder in self._folders.items():
            if name not in TRACKERS:
                self._record(name, folder / RECORD)
        self._trackers = [
            _Tracker(name, folder, self._say) for name, folder in self._folders.items()
        ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for tracker in self._trackers:
            tracker.finish()
        for tracker in self._trackers:
            tracker.join()

    def _record(self, name: str, path: Path) -> None:
        """Write down which tracker of another package is used; say if it has changed."""
        identity = resolve("tracker", name, TRACKERS).identity()
        with suppress(OSError, ValueError):
            if json.loads(path.read_text()) != identity:
                self._say(f"note: {changed('tracker', name, 'a worker of this study used it')}")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(identity, indent=1))

    def put(self, picture: Picture) -> None:
        """Queue a picture. Returns at once, and raises nothing."""
        for tracker in self._trackers:
            tracker.put(picture)

    def is_behind(self, key: str, state: str) -> bool:
        """Return whether a tracker was begun with a run, but was not told this final state."""
        for folder in self._folders.values():
            with suppress(OSError):
                if Sent.from_json(sent_file(folder, key).read_text()).state != state:
                    return True
        return False


class _Tracker:
    """One tracker: its process, and two threads that write to it and read from it."""

    def __init__(self, name: str, folder: Path, say: Callable[[str], None]) -> None:
        label = TRACKERS.get(name, name.partition(" ")[0])
        self._label, self._folder, self._say = f"tracking with {label}", folder, say
        self._waiting: queue.Queue[Picture | None] = queue.Queue(MOST_WAITING)
        self._known: set[str] = set()
        self._complained = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sweepd.optimize.tracking.sender", name, str(folder.resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is for the worker
        )
        # Daemons: a process that does not answer must not keep this one alive.
        self._threads = [
            threading.Thread(target=job, name=f"track-{name}", daemon=True)
            for job in (self._write, self._read)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, picture: Picture) -> None:
        """Queue a picture; drop it if too many are waiting."""
        with suppress(OSError):
            if picture.key not in self._known:
                # An empty file: the next worker sends what this one could not.
                self._folder.mkdir(parents=True, exist_ok=True)
                sent_file(self._folder, picture.key).touch()
                self._known.add(picture.key)
        try:
            self._waiting.put_nowait(picture)
        except queue.Full:
            self._complain("is too slow, and is not told everything; the next worker sends it")

    def finish(self) -> None:
        """Accept no more pictures."""
        with suppress(queue.Full):
            self._waiting.put_nowait(None)

    def join(self) -> None:
        """Wait a limited time until everything is sent, then end the process."""
        try:
            code = self._process.wait(LOADING_SECONDS + FLUSH_SECONDS + 2)
        except subprocess.TimeoutExpired:
            code = -1
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # with what the library has started
        self._process.wait()
        if code:
            self._complained = False
            self._complain(
                "could not be told everything; the study's next worker with --track sends it"
            )
        for thread in self._threads:
            thread.join(1.0)

    def _write(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError), self._process.stdin as pipe:
            while (picture := self._waiting.get()) is not None:
                pipe.write(picture.to_json() + "\n")
                pipe.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with suppress(OSError, ValueError):
            for line in self._process.stdout:
                self._say(f"{self._label} {json.loads(line)}")

    def _complain(self, what: str) -> None:
        if not self._complained:
            self._complained = True
            self._say(f"{self._label} {what}")
