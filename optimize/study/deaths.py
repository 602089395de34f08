"""Why a worker died while it held trials, as far as there is evidence, and what that means for the trials.

A kill from outside (eviction, reboot, SIGKILL) says nothing about a trial. SIGQUIT, which systemd's watchdog sends to
a worker that hangs, is such a kill, too; it leaves the stacks in the crash file. Two kinds of evidence exist:

- A crash signal (SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE). Python's faulthandler writes the stacks into the worker's
  crash file in the study's folder before the process dies, below the numbers of the trials in training.
- Memory that ran out. The kernel counts the processes that it killed for memory, on the machine and in each control
  group; every heartbeat records both counters, and the worker that takes the trials back compares them.

A death with evidence counts against a trial that was alone in training. Where several trials were in training, each of
them is a suspect and is trained alone from then on, until it has a new checkpoint. A new checkpoint also ends the
count: a trial fails only where `MAX_DEATHS` deaths lie between two checkpoints.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from envs.support.study_record import ATTEMPTS_KEY, CHECKPOINT_KEY

MAX_DEATHS = 3  # deaths that count, without a new checkpoint, before a trial fails
SOON = 300.0  # seconds after the last heartbeat in which the machine's counter of memory kills is evidence
KEPT_WITHOUT_EVIDENCE = 20
FATAL, STACK = "Fatal Python error: ", "(most recent call first)"  # as faulthandler writes them


def boot_id() -> str:
    """The kernel's id of this boot; "" if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _count(path: Path) -> int | None:
    """The value of `oom_kill` in a file of `name value` lines; None where the file or the line is missing."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def memory_kills(machine: Path = Path("/proc/vmstat")) -> int:
    """How many processes this machine's kernel has killed for memory since it started; 0 if unknown."""
    return _count(machine) or 0


def _group_of(root: Path) -> str:
    """The folder of this process's control group (version 2); "" where there is none."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    path = next((line[3:] for line in lines if line.startswith("0::")), None)
    return "" if path is None else str(root / path.strip("/"))


def _group_counter(folder: str) -> tuple[int, int] | None:
    """(inode, processes killed for memory) of a control group; None where it does not exist or does not count."""
    try:
        kills, inode = _count(Path(folder) / "memory.events"), Path(folder).stat().st_ino
    except OSError:
        return None
    return None if kills is None else (inode, kills)


def memory_counters(root: Path = Path("/sys/fs/cgroup")) -> dict[str, Any]:
    """What a heartbeat records: the boot id, and the counts of memory kills (machine, this process's control group)."""
    counters: dict[str, Any] = {"boot": boot_id(), "memory_kills": memory_kills()}
    group = _group_of(root)
    if group and (found := _group_counter(group)) is not None:
        counters["control_group"] = [group, *found]
    return counters


def ran_out_of_memory(before: Mapping[str, Any], silence: float) -> bool:
    """Whether the kernel has killed a process for lack of memory since a dead worker's last heartbeat.

    before: `memory_counters()` of that heartbeat. silence: seconds since then. Where the worker's control group still
    exists, its counter decides. The machine's counter also counts other processes, so it decides only for `SOON`
    seconds.
    """
    if not before.get("boot") or before["boot"] != boot_id():
        return False
    folder, inode, kills = before.get("control_group", ("", 0, 0))
    if folder and (now := _group_counter(folder)) is not None and now[0] == inode:
        return now[1] > int(kills)
    return silence < SOON and memory_kills() > int(before.get("memory_kills", memory_kills()))


# -- crash files


class CrashFile:
    """Where faulthandler writes the stacks if this process crashes, or if SIGQUIT ends it; removed when the block ends.

    A context manager. Without a writable folder, crashes leave no evidence and nothing else changes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1

    def __enter__(self) -> Self:
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(
                self.path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_TRUNC, 0o644
            )
            faulthandler.enable(self._file)
            faulthandler.register(signal.SIGQUIT, self._file, all_threads=True, chain=True)
        return self

    def training(self, numbers: Sequence[int]) -> None:
        """Note which trials are in training from now on."""
        header = {"trials": list(numbers), "thread": threading.main_thread().ident}
        if self._file >= 0:
            with suppress(OSError):
                os.ftruncate(self._file, 0)
                os.write(self._file, f"{json.dumps(header)}\n".encode())

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            faulthandler.unregister(signal.SIGQUIT)
            with suppress(OSError, ValueError, AttributeError):
                faulthandler.enable(sys.__stderr__ or 2)
            os.close(self._file)
            self._file = -1
            with suppress(OSError):
                self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Crash:
    """A crash file's content. what: "Segmentation fault in step (game.py:31)". trials: numbers in training; empty where
    another thread than the training's crashed.
    """

    what: str
    trials: tuple[int, ...]


def read_crash(path: Path) -> Crash | None:
    """The content of a crash file; None without the file, or if its process did not crash."""
    head, found, dump = _text(path).partition(FATAL)
    if not found:
        return None
    try:
        header = json.loads(head)
        trials, thread = tuple(int(number) for number in header["trials"]), int(header["thread"])
    except (ValueError, KeyError, TypeError):
        trials, thread = (), 0
    lines = [line.strip() for line in dump.splitlines()]
    current = next((i for i, line in enumerate(lines) if line.startswith("Current thread ")), None)
    if current is not None and int(lines[current].split()[2], 16) != thread:
        trials = ()  # the thread of heartbeats or files
    frame = lines[current + 1] if current is not None and current + 1 < len(lines) else ""
    return Crash(lines[0] + _place(frame), trials)


def has_stacks(path: Path) -> bool:
    """Whether there is a crash file with stacks: of a crash, or of a process that SIGQUIT ended."""
    return STACK in _text(path)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _place(frame: str) -> str:
    """`File "/x/game.py", line 31 in step` → " in step (game.py:31)"."""
    try:
        _, file, rest = frame.split('"')
        line, _, function = rest.removeprefix(", line ").partition(" in ")
    except ValueError:
        return ""
    return f" in {function} ({Path(file).name}:{line})"


# -- what it means for a trial


@dataclass(frozen=True)
class Death:
    """The end of a worker. how: in words. suspects: numbers of the trials that may have caused it; empty without
    evidence that one of them did.
    """

    how: str
    suspects: frozenset[int] = frozenset()

    def note(
        self, number: int, checkpoint: Mapping[str, Any] | None, **known: Any
    ) -> dict[str, Any]:
        """The entry of one trial's history. checkpoint: the trial's attribute. known: other entries."""
        found: dict[str, Any] = {
            **known,
            "how": self.how,
            "checkpoint": checkpoint_position(checkpoint),
        }
        if number in self.suspects:
            found["evidence"] = "alone" if len(self.suspects) == 1 else "in company"
        return found


def checkpoint_position(checkpoint: Mapping[str, Any] | None) -> int:
    """How far a trial's recorded checkpoint is, in rollouts of all its members; 0 without one."""
    return int((checkpoint or {}).get("rollouts", 0))


def add_note(history: Sequence[dict[str, Any]], note: dict[str, Any]) -> list[dict[str, Any]]:
    """The history with one more entry. Of entries without evidence the newest are kept, and the older ones counted."""
    entries = [*history, note]
    plain = [entry for entry in entries if "evidence" not in entry]
    if len(plain) <= KEPT_WITHOUT_EVIDENCE:
        return entries
    oldest, following = plain[0], plain[1]
    merged = {**following, "earlier": oldest.get("earlier", 0) + 1}
    return [merged if entry is following else entry for entry in entries if entry is not oldest]


def counted(history: Sequence[Mapping[str, Any]], checkpoint: Mapping[str, Any] | None) -> int:
    """Deaths that count against a trial: alone, with evidence, and since its last checkpoint."""
    here = checkpoint_position(checkpoint)
    return sum(
        entry.get("evidence") == "alone" and entry.get("checkpoint") == here for entry in history
    )


def is_suspect(attributes: Mapping[str, Any]) -> bool:
    """Whether a trial with these attributes is to be trained alone: it may have killed a worker since its last
    checkpoint.
    """
    here = checkpoint_position(attributes.get(CHECKPOINT_KEY))
    return any(
        "evidence" in e and e.get("checkpoint") == here for e in attributes.get(ATTEMPTS_KEY, [])
    )
