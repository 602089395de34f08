"""Evidence of why a worker died while it held trials, and its consequence for the trials.

A kill from outside (eviction, reboot, SIGKILL) says nothing about a trial. This includes SIGQUIT,
which systemd's watchdog sends to a worker that hangs; it leaves the stacks in the crash file. There
are two kinds of evidence:

- A crash signal (SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE). Python's faulthandler writes the stacks
  into the worker's crash file in the study's folder before the process dies, after the numbers of
  the trials in training.
- Out of memory. The kernel counts the processes that it killed for memory, on the machine and in
  each control group. Every heartbeat records both counters, and the worker that recovers the trials
  compares them.

A death with evidence counts against a trial that was alone in training. If several trials were in
training, each of them is a suspect and is trained alone until it has a new checkpoint. The trials
of a population (`--search pbt`) cannot be trained alone, so the death counts against all of them.
A new checkpoint also resets the count: a trial fails only after `MAX_DEATHS` deaths between two
checkpoints.
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

from sweepd.optimize.study.record.keys import ATTEMPTS_KEY, CHECKPOINT_KEY
from sweepd.optimize.study.recovery.processes import boot_id

ALONE, TOGETHER, POPULATION = "alone", "in company", "population"  # kinds of evidence
MAX_DEATHS = 3  # deaths that count, without a new checkpoint, before a trial fails
# Seconds after the last heartbeat in which the machine's counter of memory kills is evidence.
SOON = 300.0
KEPT_WITHOUT_EVIDENCE = 20
FATAL, STACK = "Fatal Python error: ", "(most recent call first)"  # as faulthandler writes them


def _count(path: Path) -> int | None:
    """Return the value of `oom_kill` in a file of `name value` lines, None if it is missing."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def memory_kills(machine: Path = Path("/proc/vmstat")) -> int:
    """Return how many processes the kernel has killed for memory since boot, 0 if unknown."""
    return _count(machine) or 0


def _group_of(root: Path) -> str:
    """Return the folder of this process's control group (version 2), "" if there is none."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    path = next((line[3:] for line in lines if line.startswith("0::")), None)
    return "" if path is None else str(root / path.strip("/"))


def _group_counter(folder: str) -> tuple[int, int] | None:
    """Return (inode, memory kills) of a control group, None if it has no counter."""
    try:
        kills, inode = _count(Path(folder) / "memory.events"), Path(folder).stat().st_ino
    except OSError:
        return None
    return None if kills is None else (inode, kills)


def memory_counters(root: Path = Path("/sys/fs/cgroup")) -> dict[str, Any]:
    """Return the counters that a heartbeat records.

    They are the boot id and the memory kills of the machine and of this process's control group.
    """
    counters: dict[str, Any] = {"boot": boot_id(), "memory_kills": memory_kills()}
    group = _group_of(root)
    if group and (found := _group_counter(group)) is not None:
        counters["control_group"] = [group, *found]
    return counters


def ran_out_of_memory(before: Mapping[str, Any], silence: float) -> bool:
    """Return whether the kernel has killed for memory since a dead worker's last heartbeat.

    If the worker's control group still exists, its counter decides. The machine's counter includes
    other processes, so it decides only for `SOON` seconds.

    Args:
        before: `memory_counters()` of that heartbeat.
        silence: seconds since that heartbeat.
    """
    if not before.get("boot") or before["boot"] != boot_id():
        return False
    folder, inode, kills = before.get("control_group", ("", 0, 0))
    if folder and (now := _group_counter(folder)) is not None and now[0] == inode:
        return now[1] > int(kills)
    return silence < SOON and memory_kills() > int(before.get("memory_kills", memory_kills()))


# -- crash files


class CrashFile:
    """The file for faulthandler's stacks of this process, after a crash or SIGQUIT.

    A context manager that removes the file at the end of the block. If the folder is not writable,
    crashes leave no evidence and nothing else changes.
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
        """Record which trials are in training from now on."""
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
    """The content of a crash file.

    Attributes:
        what: signal and place, like "Segmentation fault in step (game.py:31)".
        trials: numbers of the trials in training; empty if another thread crashed.
    """

    what: str
    trials: tuple[int, ...]


def read_crash(path: Path) -> Crash | None:
    """Read a crash file; None if it is missing or records no crash."""
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
    """Return whether the crash file has stacks, of a crash or after SIGQUIT."""
    return STACK in _text(path)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _place(frame: str) -> str:
    """Turn `File "/x/game.py", line 31 in step` into " in step (game.py:31)"."""
    try:
        _, file, rest = frame.split('"')
        line, _, function = rest.removeprefix(", line ").partition(" in ")
    except ValueError:
        return ""
    return f" in {function} ({Path(file).name}:{line})"


# -- what it means for a trial


@dataclass(frozen=True)
class Death:
    """The end of a worker.

    Attributes:
        how: description.
        suspects: numbers of the trials that may have caused it; empty without evidence.
    """

    how: str
    suspects: frozenset[int] = frozenset()

    def note(
        self,
        number: int,
        checkpoint: Mapping[str, Any] | None,
        *,
        populations: bool = False,
        **known: Any,
    ) -> dict[str, Any]:
        """Return the entry for the history of a trial.

        Args:
            number: number of the trial.
            checkpoint: the trial's checkpoint attribute.
            populations: whether the trials of the study are trained in populations.
            known: further entries.
        """
        found: dict[str, Any] = {
            **known,
            "how": self.how,
            "checkpoint": checkpoint_position(checkpoint),
        }
        if number in self.suspects:
            company = POPULATION if populations else TOGETHER
            found["evidence"] = ALONE if len(self.suspects) == 1 else company
        return found


def checkpoint_position(checkpoint: Mapping[str, Any] | None) -> int:
    """Return the rollouts of all members at a recorded checkpoint, 0 without one."""
    return int((checkpoint or {}).get("rollouts", 0))


def add_note(history: Sequence[dict[str, Any]], note: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the history with one more entry.

    Of the entries without evidence, the newest are kept and the older ones are counted.
    """
    entries = [*history, note]
    plain = [entry for entry in entries if "evidence" not in entry]
    if len(plain) <= KEPT_WITHOUT_EVIDENCE:
        return entries
    oldest, following = plain[0], plain[1]
    merged = {**following, "earlier": oldest.get("earlier", 0) + 1}
    return [merged if entry is following else entry for entry in entries if entry is not oldest]


def counted(history: Sequence[Mapping[str, Any]], checkpoint: Mapping[str, Any] | None) -> int:
    """Return the number of deaths that count: with evidence, since the last checkpoint.

    Those in company do not count, except in a population.
    """
    here = checkpoint_position(checkpoint)
    return sum(
        entry.get("evidence") in (ALONE, POPULATION) and entry.get("checkpoint") == here
        for entry in history
    )


def is_suspect(attributes: Mapping[str, Any]) -> bool:
    """Return whether a trial with these attributes must be trained alone.

    That is so if it may have killed a worker since its last checkpoint.
    """
    here = checkpoint_position(attributes.get(CHECKPOINT_KEY))
    return any(
        "evidence" in e and e.get("checkpoint") == here for e in attributes.get(ATTEMPTS_KEY, [])
    )
