"""Recovery of the trials of dead workers."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from optuna.storages._rdb import models
from optuna.trial import TrialState
from sqlalchemy.orm import Session

from envs.support.study_record import ATTEMPTS_KEY, CHECKPOINT_KEY, REASON_KEY
from optimize.study.database.storage import StudyStorage
from optimize.study.database.tables import RELEASED, attempts, workers
from optimize.study.recovery.deaths import (
    MAX_DEATHS,
    Death,
    add_note,
    counted,
    has_stacks,
    ran_out_of_memory,
    read_crash,
)
from optimize.study.recovery.registration import GRACE_SECONDS, WorkerRecord, list_workers

# Seconds of silence after which the record of a worker on another machine is deleted.
FORGET_SECONDS = 3600.0


@dataclass(frozen=True)
class Recovered:
    """A trial of a dead worker, now WAITING again or failed.

    Attributes:
        trial_id: row id of the trial.
        number: number of the trial.
        deaths: deaths that count against it since its last checkpoint.
        quarantined: whether it was failed because of `MAX_DEATHS` deaths.
        how: what is known of the worker's end.
    """

    trial_id: int
    number: int
    deaths: int
    quarantined: bool
    how: str


def crash_file(run_dir: Path, worker: str) -> Path:
    """Return the path of a worker's crash file (`deaths.CrashFile`)."""
    return run_dir / "crashes" / f"{worker}.txt"


def _end_of(worker: WorkerRecord | None, silence: float, run_dir: Path | None) -> Death:
    """Return what is known of the end of a trial's last worker.

    Args:
        worker: record of the worker, if there is one.
        silence: seconds since its last heartbeat for the trial.
        run_dir: folder of the study.
    """
    if worker is None:
        return Death(f"no heartbeat for {silence:.0f} s")
    if run_dir and not worker.alive and has_stacks(file := crash_file(run_dir, worker.worker)):
        crash = read_crash(file)
        if crash is None:
            return Death(
                "SIGQUIT ended its process, as the watchdog does when a worker hangs; stacks in "
                f"{file}"
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
    """Return an attribute of a trial, None if it is not set."""
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
    """Put RUNNING trials of dead workers back to WAITING under their own numbers.

    A worker is dead if it has sent no heartbeat for `grace` seconds by the database's clock, or if
    its recorded process belongs to this PID namespace and does not run. A RUNNING trial that no
    worker holds (taken by another program) gets its first heartbeat here.

    Each trial is changed in one transaction that checks its token, heartbeat and state again, and
    records how the attempt ended (`ATTEMPTS_KEY`). A trial that has killed `MAX_DEATHS` workers
    without a new checkpoint is failed; `optimize.study.recovery.deaths` defines which deaths count.

    Args:
        storage: database of the study.
        study_id: row id of the study.
        grace: seconds without a heartbeat.
        run_dir: folder of the study, with the crash files.
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
                    f"quarantined: {deaths} workers died while they trained it alone, without a "
                    f"new checkpoint ({death.how})"
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
