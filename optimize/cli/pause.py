"""The actions of `sweepd pause` and `sweepd resume`."""

from __future__ import annotations

import time
from pathlib import Path

from sweepd.envs.support.formatting import minute
from sweepd.envs.support.terminal import Terminal
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.pause import pause_study, resume_study
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.recovery.registration import GRACE_SECONDS, WorkerRecord, list_workers
from sweepd.optimize.study.study import StudyHandle


def pause(name: str, where: str | None, runs_dir: Path | None, wait: float, why: str) -> None:
    """Pause a study and wait until its workers have paused, for at most `wait` seconds."""
    handle = StudyHandle(open_storage(storage_url(where, runs_dir), create=False), name)
    say = Terminal().print_line
    before = pause_study(handle.storage, handle.study_id, why)
    say(
        f"study {name} is paused"
        + (f" since {minute(before.since)} UTC, by {before.by}" if before else "")
    )
    until = time.monotonic() + wait
    # The workers pause at the end of a rollout and then update their records.
    while (
        busy := [w for w in _live_workers(handle) if w.state != "paused"]
    ) and time.monotonic() < until:
        time.sleep(0.2)
    for worker in _live_workers(handle):
        state = "still running" if worker in busy else "paused, GPU memory released"
        say(f"  worker {worker.host}:{worker.pid}: {state}")
    if busy:
        say("  running workers have not paused yet; sweepd status shows when they have")
    say(f"resume with: sweepd resume {name}")


def resume(name: str, where: str | None, runs_dir: Path | None, why: str) -> None:
    """Resume a paused study."""
    handle = StudyHandle(open_storage(storage_url(where, runs_dir), create=False), name)
    say = Terminal().print_line
    if not resume_study(handle.storage, handle.study_id, why):
        say(f"study {name} was not paused")
        return
    hint = "" if _live_workers(handle) else "; it has no worker: start one with sweepd train"
    say(f"study {name} is resumed{hint}")


def _live_workers(handle: StudyHandle) -> list[WorkerRecord]:
    """Return the workers that run, or may run where their process cannot be checked."""
    return [
        w
        for w in list_workers(handle.storage, handle.study_id)
        if w.alive or (w.alive is None and w.beat_age < GRACE_SECONDS)
    ]
