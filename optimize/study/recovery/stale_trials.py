"""Recovery of the trials of dead workers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from optuna.trial import TrialState
from sqlalchemy.orm import Session

from sweepd.optimize.study.database.storage import StudyStorage
from sweepd.optimize.study.database.tables import RELEASED, attempts, workers
from sweepd.optimize.study.record.keys import ATTEMPTS_KEY, CHECKPOINT_KEY, REASON_KEY
from sweepd.optimize.study.record.optuna_tables import (
    changed_rows,
    stored_now,
    trial_attributes,
    trials,
)
from sweepd.optimize.study.recovery.deaths import (
    MAX_DEATHS,
    Death,
    add_note,
    counted,
    has_stacks,
    ran_out_of_memory,
    read_crash,
)
from sweepd.optimize.study.recovery.registration import GRACE_SECONDS, WorkerRecord, list_workers

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
        how = "its process has ended, and the kernel has killed processes for lack of memory since"
        return Death(how, frozenset(worker.info.get("trials", ())))
    if worker.alive is not False:
        return Death(f"no heartbeat for {silence:.0f} s")
    return Death("its process has ended: it was killed, or the machine went down")


def recover_stale(
    storage: StudyStorage,
    study_id: int,
    *,
    grace: float = GRACE_SECONDS,
    run_dir: Path | None = None,
    populations: bool = False,
) -> list[Recovered]:
    """Put RUNNING trials of dead workers back to WAITING under their own numbers.

    A worker is dead if it has sent no heartbeat for `grace` seconds by the database's clock, or if
    its recorded process belongs to this PID namespace and does not run. A RUNNING trial that no
    worker holds (taken by another program) gets its first heartbeat here.

    Each trial is changed in one transaction that checks its token, heartbeat and state again, and
    records how the attempt ended (`ATTEMPTS_KEY`). A trial that has killed `MAX_DEATHS` workers
    without a new checkpoint is failed; `sweepd.optimize.study.recovery.deaths` defines which deaths
    count.

    Args:
        storage: database of the study.
        study_id: row id of the study.
        grace: seconds without a heartbeat.
        run_dir: folder of the study, with the crash files.
        populations: whether the trials of the study are trained in populations.
    """
    with storage.transaction() as session:
        storage.lock_study(session, study_id)
        now = storage.now(session)
        attempted = _running_attempts(session, study_id, now)
        known_workers = {w.worker: w for w in list_workers(storage, study_id, session)}
    dead_workers = {name for name, w in known_workers.items() if w.alive is False}
    held, recovered = storage.held(), []
    for attempt in attempted:
        stale = attempt.worker in dead_workers or now - attempt.beat > grace
        if stale and attempt.trial_id not in held:
            owner = known_workers.get(attempt.worker)
            found = _recover(storage, attempt, owner, now, run_dir, populations)
            if found is not None:
                recovered.append(found)
    dead_workers |= {
        name
        for name, w in known_workers.items()
        if w.alive is None and w.beat_age > max(grace, FORGET_SECONDS)
    }
    # Records of dead workers are kept until here: they are why their trials are stale at once.
    _forget_workers(storage, dead_workers, run_dir)
    return recovered


def _running_attempts(
    session: Session, study_id: int, now: float
) -> list[sa.Row[*tuple[Any, ...]]]:
    """Return the last attempts at the RUNNING trials of a study, with the trials' numbers.

    A trial that no worker holds gets its first heartbeat instead.
    """
    rows = session.execute(
        sa.select(
            trials.c.trial_id,
            trials.c.number,
            attempts.c.token,
            attempts.c.worker,
            attempts.c.beat,
            attempts.c.rung,
        )
        .outerjoin(attempts, attempts.c.trial_id == trials.c.trial_id)
        .where(trials.c.study_id == study_id, trials.c.state == TrialState.RUNNING)
        .order_by(trials.c.number)
    ).all()
    attempted = []
    for row in rows:
        first = {"token": "", "worker": "", "beat": now}
        if row.token is None:
            session.execute(
                attempts.insert().values(trial_id=row.trial_id, tries=0, rung=0, **first)
            )
        # Older versions left worker and beat of an attempt that has ended.
        elif not row.token and (row.worker or not row.beat):
            session.execute(
                attempts.update().where(attempts.c.trial_id == row.trial_id).values(**first)
            )
        else:
            attempted.append(row)
    return attempted


def _recover(
    storage: StudyStorage,
    attempt: sa.Row[*tuple[Any, ...]],
    owner: WorkerRecord | None,
    now: float,
    run_dir: Path | None,
    populations: bool,
) -> Recovered | None:
    """Put a trial back to WAITING or fail it, unless its attempt or state has changed since.

    Args:
        storage: database of the study.
        attempt: the attempt, as `_running_attempts` returns it.
        owner: record of its worker, if there is one.
        now: time of the database's clock.
        run_dir: folder of the study, with the crash files.
        populations: whether the trials of the study are trained in populations.
    """
    trial_id = attempt.trial_id
    with storage.transaction() as session:
        # Its worker may have sent a heartbeat, or another worker recovered it, in the meantime.
        same = session.execute(
            sa.select(attempts.c.trial_id)
            .where(
                attempts.c.trial_id == trial_id,
                attempts.c.token == attempt.token,
                attempts.c.beat == attempt.beat,
            )
            .with_for_update()
        ).scalar_one_or_none()
        if same is None:
            return None
        death = _end_of(owner, now - attempt.beat, run_dir)
        checkpoint = trial_attributes.get(session, trial_id, CHECKPOINT_KEY)
        who = f"{owner.host}:{owner.pid}" if owner else ""
        note = death.note(
            attempt.number,
            checkpoint,
            populations=populations,
            worker=who,
            rung=attempt.rung,
            seen_dead=round(now),
        )
        history = add_note(trial_attributes.get(session, trial_id, ATTEMPTS_KEY) or [], note)
        deaths = counted(history, checkpoint)
        quarantined = deaths >= MAX_DEATHS
        values: dict[str, Any] = {"state": TrialState.WAITING}
        attributes: dict[str, Any] = {ATTEMPTS_KEY: history}
        if quarantined:
            company = "in its population" if populations else "alone"
            values = {"state": TrialState.FAIL, "datetime_complete": stored_now()}
            attributes[REASON_KEY] = (
                f"quarantined: {deaths} workers died while they trained it {company}, without "
                f"a new checkpoint ({death.how})"
            )
        running = (trials.c.trial_id == trial_id) & (trials.c.state == TrialState.RUNNING)
        if changed_rows(session, trials.update().where(running).values(**values)) != 1:
            return None
        # Without its token, a worker that was only suspended can no longer write to the trial.
        session.execute(attempts.update().where(attempts.c.trial_id == trial_id).values(**RELEASED))
        trial_attributes.put(session, {trial_id: attributes})
    return Recovered(trial_id, attempt.number, deaths, quarantined, death.how)


def _forget_workers(storage: StudyStorage, names: set[str], run_dir: Path | None) -> None:
    """Delete the records of dead workers, and their crash files without stacks."""
    if not names:
        return
    with storage.transaction() as session:
        session.execute(workers.delete().where(workers.c.worker.in_(names)))
    for file in [crash_file(run_dir, name) for name in names] if run_dir else ():
        if not has_stacks(file):
            with suppress(OSError):
                file.unlink(missing_ok=True)
