"""Heartbeats of trials and workers, and taking back the trials of workers that died.

Optuna's own heartbeat is started by `study.optimize` only and never sees a trial that did not beat, so ask-and-tell
needs this one.
"""

from __future__ import annotations

import json
import math
import time
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

from envs.support.periodic_thread import PeriodicThread
from envs.support.study_record import ATTEMPTS_KEY, CHECKPOINT_KEY, REASON_KEY
from optimize.study.deaths import (
    MAX_DEATHS,
    Death,
    add_note,
    counted,
    has_stacks,
    memory_counters,
    ran_out_of_memory,
    read_crash,
)
from optimize.study.gone import StudyGone
from optimize.study.registration import GRACE_SECONDS, WorkerRecord, list_workers
from optimize.study.stall import Progress, where_main_thread_is
from optimize.study.storage import StudyStorage
from optimize.study.tables import RELEASED, attempts, workers

BEAT_SECONDS = 10.0
FORGET_SECONDS = (
    3600.0  # of silence, after which the record of a worker that cannot be seen is deleted
)


class Heartbeat:
    """A thread that beats for every trial this worker holds, and for the worker itself.

    progress: of the main thread. While it is stalled, the worker still beats, as "stalled", but its trials don't, so
    that another worker takes them after the grace period. say: one line for a person, when that begins and ends.

    lost: ids of trials that are not this worker's any longer: given to another one (this process was suspended or
    stalled, or the database out of reach, for longer than the grace period), told by another program, or deleted. The
    trainer drops its copies of them. gone: set once the study or its database was deleted.
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
        self.gone: StudyGone | None = None
        self._record: dict[str, Any] = {}  # this worker's row
        self.state = "training"
        self.info: dict[str, Any] = {}
        self.last_error = ""
        self.beaten = time.monotonic()
        self._thread = PeriodicThread(
            self.try_beat, interval, "heartbeat", end=storage.remove_session
        )

    def __enter__(self) -> Heartbeat:
        with self.storage.transaction() as session:
            row = session.execute(
                sa.select(workers).where(workers.c.worker == self.worker)
            ).one_or_none()
            self._record = {} if row is None else row._asdict()
        self.beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.stop()

    def lost_trial(self, trial_id: int) -> None:
        """Note that a trial turned out to be someone else's."""
        self.lost.add(trial_id)

    def try_beat(self) -> None:
        """Beat. After an error of the database or the system, which `last_error` names, the next beat tries again: it
        must not end the thread.
        """
        with suppress(OSError):  # the log's disk is full, say
            self._watch()
        try:
            self.beat()
            self.last_error = ""
        except StudyGone as error:
            self.gone = error
        except (SQLAlchemyError, OSError) as error:
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
        that are no longer ours. Raises StudyGone.
        """
        stalled, held = self._progress.stalled, self.storage.held()
        trial, lost = models.TrialModel, set()
        with self.storage.transaction() as session:
            self.storage.file.check()
            now = self.storage.now(session)
            if self._record:
                self.storage.check_study(session, self._record["study_id"])
            self._write(session, now, "stalled" if stalled else self.state)
            for trial_id, token in sorted(held.items()):
                ours = (attempts.c.trial_id == trial_id) & (attempts.c.token == token)
                running = sa.exists().where(
                    trial.trial_id == trial_id, trial.state == TrialState.RUNNING
                )
                beat = attempts.c.beat if stalled else now
                changed = session.execute(attempts.update().where(ours, running).values(beat=beat))
                if changed.rowcount != 1:  # type: ignore[attr-defined]  # an UPDATE returns a CursorResult, typed as Result
                    lost.add(trial_id)
        self.beaten = time.monotonic()
        still = self.storage.held()
        self.lost |= {
            t for t in lost if still.get(t) == held[t]
        }  # not those that were told or released while this ran

    def _write(self, session: Session, now: float, state: str) -> None:
        """This worker's record; written again where somebody took this process for dead and deleted it."""
        own = workers.c.worker == self.worker
        values = {"beat": now, "info": json.dumps({**self.info, **memory_counters()})}
        changed = session.execute(workers.update().where(own).values(**values))
        if self._record and changed.rowcount == 0:  # type: ignore[attr-defined]  # as above
            session.execute(workers.insert().values(**{**self._record, **values}))
        session.execute(
            workers.update().where(own, workers.c.state != "closing").values(state=state)
        )


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


def _end_of(worker: WorkerRecord | None, silence: float, run_dir: Path | None) -> Death:
    """What is known of the end of a trial's last worker. silence: seconds since its last beat for the trial."""
    if worker is None:
        return Death(f"no heartbeat for {silence:.0f} s")
    if run_dir and not worker.alive and has_stacks(file := crash_file(run_dir, worker.worker)):
        crash = read_crash(file)
        if crash is None:
            return Death(
                f"SIGQUIT ended its process, as the watchdog does when a worker hangs; stacks in {file}"
            )
        return Death(
            f"its process crashed: {crash.what}; stacks in {file}", frozenset(crash.trials)
        )
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
    storage: StudyStorage,
    study_id: int,
    *,
    grace: float = GRACE_SECONDS,
    run_dir: Path | None = None,
) -> list[Recovered]:
    """Put RUNNING trials whose attempt is dead back to WAITING under their own number.

    Dead: no beat for `grace` seconds by the database's clock, or the recorded process belongs to this PID namespace and
    is gone. A RUNNING trial that no worker holds (another program took it) gets its first beat here. Each trial is
    changed in one transaction that checks its token, beat and state once more, and notes how the attempt ended
    (`sweepd:attempts`). A trial that has
    killed `MAX_DEATHS` workers without a new checkpoint is failed instead (`optimize/study/deaths.py` says what counts).

    run_dir: the study's folder, with the crash files.
    """
    trial, recovered = models.TrialModel, []
    with storage.transaction() as session:
        storage.lock_study(session, study_id)
        now = storage.now(session)
        running = session.execute(
            sa.select(trial.trial_id, trial.number).where(
                trial.study_id == study_id, trial.state == TrialState.RUNNING
            )
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
            known = seen.get(row.trial_id)
            first = {"token": "", "worker": "", "beat": now}
            if known is None:
                session.execute(
                    attempts.insert().values(trial_id=row.trial_id, tries=0, rung=0, **first)
                )
            elif not known.token and (
                known.worker or not known.beat
            ):  # older versions left the worker and its beat
                session.execute(
                    attempts.update().where(attempts.c.trial_id == row.trial_id).values(**first)
                )
                del seen[row.trial_id]
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
                    attempts.c.trial_id == row.trial_id,
                    attempts.c.token == known.token,
                    attempts.c.beat == known.beat,
                )
                .with_for_update()
            ).scalar_one_or_none()
            if same is None:
                continue
            owner = known_workers.get(known.worker)
            death = _end_of(owner, now - known.beat, run_dir)
            checkpoint = _attribute(session, row.trial_id, CHECKPOINT_KEY)
            who = f"{owner.host}:{owner.pid}" if owner else ""
            note = death.note(
                row.number, checkpoint, worker=who, rung=known.rung, seen_dead=round(now)
            )
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
            session.execute(
                attempts.update().where(attempts.c.trial_id == row.trial_id).values(**RELEASED)
            )
            changes: dict[str, Any] = {ATTEMPTS_KEY: history}
            if quarantined:
                changes[REASON_KEY] = (
                    f"quarantined: {deaths} workers died while they trained it alone, without a new checkpoint "
                    f"({death.how})"
                )
            attribute = models.TrialUserAttributeModel
            session.execute(
                sa.delete(attribute).where(
                    attribute.trial_id == row.trial_id, attribute.key.in_(list(changes))
                )
            )
            session.add_all(
                attribute(trial_id=row.trial_id, key=key, value_json=json.dumps(value))
                for key, value in changes.items()
            )
        recovered.append(Recovered(row.trial_id, row.number, deaths, quarantined, death.how))
    dead_workers |= {
        n
        for n, w in known_workers.items()
        if w.alive is None and w.beat_age > max(grace, FORGET_SECONDS)
    }
    if dead_workers:  # kept until here: that they are dead is what freed their trials at once
        with storage.transaction() as session:
            session.execute(workers.delete().where(workers.c.worker.in_(dead_workers)))
        for file in [crash_file(run_dir, name) for name in dead_workers] if run_dir else ():
            if not has_stacks(file):
                with suppress(OSError):
                    file.unlink(missing_ok=True)
    return recovered
