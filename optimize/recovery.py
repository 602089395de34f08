"""Who is alive: heartbeats of trials and workers, taking back what a dead worker held, and handing a study over to a
new worker.

Optuna's own heartbeat is started by `study.optimize` only and never sees a trial that did not beat, so ask-and-tell
needs this one.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from optuna.storages._rdb import models
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from envs.errors import RunError
from optimize import processes
from optimize.checkpoint import CHECKPOINT_KEY
from optimize.deaths import (
    ATTEMPTS_KEY,
    MAX_DEATHS,
    Death,
    add_note,
    counted,
    memory_counters,
    ran_out_of_memory,
    read_crash,
)
from optimize.stall import Progress, where_main_thread_is
from optimize.storage import StudyStorage, attempts, workers
from optimize.ticking import Ticking

BEAT_SECONDS = 10.0
GRACE_SECONDS = 120.0
SECOND_REQUEST_AFTER = 10.0
GIVE_UP_AFTER = 30.0


@dataclass(frozen=True)
class Worker:
    """A worker as recorded in the database. started: its process's `processes.identity`."""

    worker: str
    host: str
    pid: int
    started: str
    alongside: bool
    state: str
    beat_age: float
    info: dict[str, Any]

    @property
    def is_here(self) -> bool:
        """Whether its pid means the same process to this process: the same machine, boot and PID namespace.

        The host name counts, too: virtual machines resumed from one snapshot of memory share the rest.
        """
        return self.host == socket.gethostname() and processes.same_namespace(self.started)

    @property
    def alive(self) -> bool | None:
        """Whether its process runs; None where that cannot be seen from here, so that only its heartbeats tell."""
        return processes.is_running(self.pid, self.started) if self.is_here else None


def list_workers(storage: StudyStorage, study_id: int, session: Session | None = None) -> list[Worker]:
    """All recorded workers of a study, dead ones included."""
    if session is None:
        with storage.transaction() as opened:
            return list_workers(storage, study_id, opened)
    now = storage.now(session)
    rows = session.execute(sa.select(workers).where(workers.c.study_id == study_id).order_by(workers.c.worker)).all()
    return [
        Worker(r.worker, r.host, r.pid, r.started, r.alongside, r.state, now - r.beat, json.loads(r.info)) for r in rows
    ]


def register_worker(
    storage: StudyStorage,
    study_id: int,
    *,
    alongside: bool,
    say: Callable[[str], None],
    second_request_after: float = SECOND_REQUEST_AFTER,
    give_up_after: float = GIVE_UP_AFTER,
    name: str = "",
) -> str:
    """Record this process as a worker of the study and return its name.

    name: under which this process is recorded already, since it has started itself again; "" for a new one.

    Unless `alongside`, a worker of the same study in this PID namespace of this machine is asked to drain first
    (SIGTERM to the recorded process, after checking that it still is that process; once more after
    `second_request_after` seconds). A worker in another container is left alone. Raises RunError where the worker still
    runs `give_up_after` seconds after the first request.
    """
    name = name or uuid.uuid4().hex
    asked: dict[str, tuple[float, int]] = {}
    while True:
        with storage.transaction() as session:
            storage.lock_study(session, study_id)
            others = [w for w in list_workers(storage, study_id, session) if w.is_here and w.pid != os.getpid()]
            running = [] if alongside else [w for w in others if w.alive and not w.alongside]
            if not running:
                session.execute(workers.delete().where(workers.c.worker == name))
                session.execute(
                    workers.insert().values(
                        worker=name,
                        study_id=study_id,
                        host=socket.gethostname(),
                        pid=os.getpid(),
                        started=processes.identity(os.getpid()),
                        alongside=alongside,
                        state="starting",
                        beat=storage.now(session),
                        info="{}",
                    )
                )
                return name
        for other in running:
            first, requests = asked.get(other.worker, (time.monotonic(), 0))
            waited = time.monotonic() - first
            if waited > give_up_after:
                raise RunError(
                    f"the worker of this study with pid {other.pid} does not stop; end it, or start this one with "
                    "--alongside"
                )
            if requests == 0 or (requests == 1 and waited > second_request_after):
                say(
                    f"asking the running worker (pid {other.pid}) to drain"
                    if requests == 0
                    else f"asking pid {other.pid} again"
                )
                _terminate(other)
                asked[other.worker] = (first, requests + 1)
        time.sleep(0.1)


def _terminate(worker: Worker) -> None:
    if worker.alive:
        try:
            os.kill(worker.pid, signal.SIGTERM)
        except ProcessLookupError:
            return
        except PermissionError:
            raise RunError(
                f"the worker of this study with pid {worker.pid} belongs to another user; ask them, or use --alongside"
            ) from None


def leave(storage: StudyStorage, worker: str) -> None:
    """Remove this worker's record; where the database does not answer, the next worker will do it."""
    with suppress(SQLAlchemyError), storage.transaction() as session:
        session.execute(workers.delete().where(workers.c.worker == worker))


def claim_closing(storage: StudyStorage, study_id: int, worker: str) -> bool:
    """Whether this worker is the one that closes the study (promotion): at most one live worker does at a time."""
    with storage.transaction() as session:
        storage.lock_study(session, study_id)
        others = [w for w in list_workers(storage, study_id, session) if w.worker != worker and w.state == "closing"]
        if any(w.alive or (w.alive is None and w.beat_age < GRACE_SECONDS) for w in others):
            return False
        session.execute(workers.update().where(workers.c.worker == worker).values(state="closing"))
        return True


class Heartbeat:
    """A thread that beats for every trial this worker holds, and for the worker itself.

    progress: of the main thread. While it is stalled, the worker still beats, as "stalled", but its trials don't, so
    that another worker takes them after the grace period. say: one line for a person, when that begins and ends.

    lost: ids of trials that were taken away meanwhile (the process was suspended or stalled, or the database out of
    reach, for longer than the grace period). The trainer drops its copies of them.
    """

    def __init__(
        self,
        storage: StudyStorage,
        worker: str,
        interval: float = BEAT_SECONDS,
        progress: Progress | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.storage, self.worker = storage, worker
        self._progress, self._say = progress or Progress(math.inf), say
        self._stalled = False
        self.lost: set[int] = set()
        self.state = "training"
        self.info: dict[str, Any] = {}
        self.last_error = ""
        self.beaten = time.monotonic()
        self._ticking = Ticking(self.try_beat, interval, "heartbeat", end=storage.remove_session)

    def __enter__(self) -> Heartbeat:
        self.beat()
        self._ticking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ticking.stop()

    def lost_trial(self, trial_id: int) -> None:
        """Note that a trial turned out to be someone else's."""
        self.lost.add(trial_id)

    def try_beat(self) -> None:
        """Beat; where the database does not answer, the next beat will do (`last_error` says why)."""
        self._watch()
        try:
            self.beat()
            self.last_error = ""
        except SQLAlchemyError as error:
            self.last_error = str(error).splitlines()[0]

    def _watch(self) -> None:
        """Notice the beginning and the end of a stall."""
        stalled, self._stalled = self._stalled, self._progress.stalled
        if self._stalled and not stalled:
            self._say(
                f"no progress for {self._progress.age:,.0f} s (limit {self._progress.limit:,.0f} s), in "
                f"{where_main_thread_is()}: the heartbeats of its trials stop, so that another worker takes them"
            )
        elif stalled and not self._stalled:
            self._say("progress again; the trials that are still held get heartbeats")

    def beat(self) -> None:
        """Write one beat for the worker and, unless it is stalled, all held trials, in one transaction. Note the trials
        that are no longer ours.
        """
        stalled, held = self._progress.stalled, self.storage.held()
        lost = set()
        with self.storage.transaction() as session:
            now = self.storage.now(session)
            session.execute(
                workers.update()
                .where(workers.c.worker == self.worker, workers.c.state != "closing")
                .values(state="stalled" if stalled else self.state)
            )
            session.execute(
                workers.update()
                .where(workers.c.worker == self.worker)
                .values(beat=now, info=json.dumps({**self.info, **memory_counters()}))
            )
            for trial_id, token in sorted(held.items()):
                ours = (
                    session.execute(
                        sa.select(attempts.c.token).where(attempts.c.trial_id == trial_id)
                    ).scalar_one_or_none()
                    == token
                )
                if ours and not stalled:
                    session.execute(
                        attempts.update()
                        .where(attempts.c.trial_id == trial_id, attempts.c.token == token)
                        .values(beat=now)
                    )
                elif not ours:
                    lost.add(trial_id)
        self.beaten = time.monotonic()
        still = self.storage.held()
        self.lost |= {t for t in lost if still.get(t) == held[t]}  # not those that were told or released while this ran


@dataclass(frozen=True)
class Recovered:
    """A trial that a dead worker held: WAITING again, or failed (`quarantined`) after `MAX_DEATHS` deaths that it
    caused.

    deaths: that count against it since its last checkpoint. how: what is known of the worker's end.
    """

    trial_id: int
    number: int
    deaths: int
    quarantined: bool
    how: str


def crash_file(run_dir: Path, worker: str) -> Path:
    """Where a worker's crash is written (`deaths.CrashFile`)."""
    return run_dir / "crashes" / f"{worker}.txt"


def _end_of(worker: Worker | None, silence: float, run_dir: Path | None) -> Death:
    """What is known of the end of a trial's last worker. silence: seconds since its last beat for the trial."""
    if worker is None:
        return Death(f"no heartbeat for {silence:.0f} s")
    crash = read_crash(file) if run_dir and (file := crash_file(run_dir, worker.worker)) and not worker.alive else None
    if crash is not None:
        return Death(f"its process crashed: {crash.what}; stacks in {file}", frozenset(crash.trials))
    if not worker.alive and ran_out_of_memory(worker.info, worker.beat_age):
        how = "its process is gone, and the system has killed for memory meanwhile"
        return Death(how, frozenset(worker.info.get("trials", ())))
    if worker.alive is not False:
        return Death(f"no heartbeat for {silence:.0f} s")
    return Death("its process is gone: it was killed, or the machine went down")


def _attribute(session: Session, trial_id: int, key: str) -> Any:
    """A trial's attribute; None where there is none yet."""
    table = models.TrialUserAttributeModel
    text = session.execute(
        sa.select(table.value_json).where(table.trial_id == trial_id, table.key == key)
    ).scalar_one_or_none()
    return json.loads(text) if text else None


def recover_stale(
    storage: StudyStorage, study_id: int, *, grace: float = GRACE_SECONDS, run_dir: Path | None = None
) -> list[Recovered]:
    """Put RUNNING trials whose attempt is dead back to WAITING under their own number.

    Dead: no beat for `grace` seconds by the database's clock, or the recorded process is on this machine and gone. A
    RUNNING trial
    that never beat (made by something else than a worker) gets its first beat here. Each trial is changed in one
    transaction that
    checks its token, beat and state once more, and notes how the attempt ended (`sweepd:attempts`). A trial that has
    killed `MAX_DEATHS` workers without a new checkpoint is failed instead (`optimize/deaths.py` says what counts).

    run_dir: the study's folder, with the crash files.
    """
    trial, recovered = models.TrialModel, []
    with storage.transaction() as session:
        now = storage.now(session)
        running = session.execute(
            sa.select(trial.trial_id, trial.number).where(trial.study_id == study_id, trial.state == TrialState.RUNNING)
        ).all()
        seen = {
            row.trial_id: row
            for row in session.execute(
                sa.select(attempts).where(attempts.c.trial_id.in_([r.trial_id for r in running]))
            )
        }
        known_workers = {w.worker: w for w in list_workers(storage, study_id, session)}
        dead_workers = {name for name, w in known_workers.items() if w.alive is False}
        for row in running:
            if row.trial_id not in seen:
                session.execute(
                    attempts.insert().values(trial_id=row.trial_id, token="", worker="", beat=now, tries=0, rung=0)
                )
    held = storage.held()
    for row in running:
        known = seen.get(row.trial_id)
        if known is None or row.trial_id in held:
            continue
        if known.worker not in dead_workers and now - known.beat <= grace:
            continue
        with storage.transaction() as session:
            same = session.execute(
                sa.select(attempts.c.trial_id)
                .where(
                    attempts.c.trial_id == row.trial_id, attempts.c.token == known.token, attempts.c.beat == known.beat
                )
                .with_for_update()
            ).scalar_one_or_none()
            if same is None:
                continue
            owner = known_workers.get(known.worker)
            death = _end_of(owner, now - known.beat, run_dir)
            checkpoint = _attribute(session, row.trial_id, CHECKPOINT_KEY)
            who = f"{owner.host}:{owner.pid}" if owner else ""
            note = death.note(row.number, checkpoint, worker=who, rung=known.rung, seen_dead=round(now))
            history = add_note(_attribute(session, row.trial_id, ATTEMPTS_KEY) or [], note)
            deaths = counted(history, checkpoint)
            quarantined = deaths >= MAX_DEATHS
            state = TrialState.FAIL if quarantined else TrialState.WAITING
            values: dict[str, Any] = {"state": state}
            if quarantined:
                values["_datetime_complete_utc"] = datetime.now(UTC).replace(tzinfo=None)
            changed = session.execute(
                sa.update(trial)
                .where(trial.trial_id == row.trial_id, trial.state == TrialState.RUNNING)
                .values(**values)
            )
            if changed.rowcount != 1:  # type: ignore[attr-defined]  # an UPDATE returns a CursorResult, typed as Result
                continue
            session.execute(attempts.update().where(attempts.c.trial_id == row.trial_id).values(token=""))
            changes: dict[str, Any] = {ATTEMPTS_KEY: history}
            if quarantined:
                changes["sweepd:reason"] = (
                    f"quarantined: {deaths} workers died while they trained it alone, without a new checkpoint "
                    f"({death.how})"
                )
            attribute = models.TrialUserAttributeModel
            session.execute(
                sa.delete(attribute).where(attribute.trial_id == row.trial_id, attribute.key.in_(list(changes)))
            )
            session.add_all(
                attribute(trial_id=row.trial_id, key=key, value_json=json.dumps(value))
                for key, value in changes.items()
            )
        recovered.append(Recovered(row.trial_id, row.number, deaths, quarantined, death.how))
    if dead_workers:  # kept until here: that they are dead is what freed their trials at once
        with storage.transaction() as session:
            session.execute(workers.delete().where(workers.c.worker.in_(dead_workers)))
        for file in [crash_file(run_dir, name) for name in dead_workers] if run_dir else ():
            if read_crash(file) is None:
                with suppress(OSError):
                    file.unlink(missing_ok=True)
    return recovered
