"""Workers as recorded in the study's database, and handing a study over to a new worker."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from sweepd.envs.support.errors import RunError
from sweepd.envs.support.formatting import gpu_use
from sweepd.optimize.study.database.gone import StudyGone
from sweepd.optimize.study.database.storage import StudyStorage
from sweepd.optimize.study.database.tables import workers
from sweepd.optimize.study.record.database import StudyDatabase
from sweepd.optimize.study.recovery import processes


@dataclass(frozen=True)
class GpuUse:
    """Use of a GPU by all processes.

    Attributes:
        share: share of the last sampling period in which a kernel ran, 0 to 1; None: not known.
        used: bytes of memory in use.
        total: bytes of memory of the GPU.
        power: power that the card draws in watts; None: not known.
    """

    share: float | None
    used: int
    total: int
    power: float | None = None

    def __str__(self) -> str:
        return gpu_use(self.share, self.used, self.total, self.power)


# Seconds without a heartbeat after which a worker counts as dead if its process cannot be checked.
GRACE_SECONDS = 120.0
SECOND_REQUEST_AFTER = 10.0
GIVE_UP_AFTER = 30.0


@dataclass(frozen=True)
class WorkerRecord:
    """A worker as recorded in the database.

    Attributes:
        worker: its name.
        started: `processes.identity` of its process.
        alongside: whether it runs in addition to another worker on its machine.
        beat_age: seconds since its last heartbeat.
        info: device, trials in training and figures, for `sweepd status`.
    """

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
        """Whether its pid is valid here: the same machine, boot and PID namespace.

        The host name is compared too, since virtual machines that were resumed from one memory
        snapshot share the rest.
        """
        return self.host == socket.gethostname() and processes.same_namespace(self.started)

    @property
    def alive(self) -> bool | None:
        """Whether its process is running; None if only its heartbeats can tell."""
        return processes.is_running(self.pid, self.started) if self.is_here else None


def list_workers(
    storage: StudyDatabase, study_id: int, session: Session | None = None
) -> list[WorkerRecord]:
    """Return all recorded workers of a study, including dead ones."""
    if session is None:
        with storage.transaction() as opened:
            return list_workers(storage, study_id, opened)
    now = storage.now(session)
    rows = session.execute(
        sa.select(workers).where(workers.c.study_id == study_id).order_by(workers.c.worker)
    ).all()
    return [
        WorkerRecord(
            worker=row.worker,
            host=row.host,
            pid=row.pid,
            started=row.started,
            alongside=row.alongside,
            state=row.state,
            beat_age=now - row.beat,
            info=json.loads(row.info),
        )
        for row in rows
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
    """Record this process as a worker of the study.

    Unless `alongside` is set, another worker of the study in this PID namespace is asked to stop
    first: SIGTERM to the recorded process, after checking its identity, and once more after
    `second_request_after` seconds. A worker in another container is left alone.

    Args:
        storage: database of the study.
        study_id: row id of the study.
        alongside: whether to run in addition to another worker.
        say: prints a line for the user.
        second_request_after: seconds until the second request.
        give_up_after: seconds until this process gives up.
        name: recorded name of a process that has restarted itself, "" for a new worker.

    Returns:
        The name of the worker.

    Raises:
        RunError: the other worker is still running after `give_up_after` seconds.
    """
    name = name or uuid.uuid4().hex
    asked: dict[str, tuple[float, int]] = {}  # by worker: time of the first request, requests
    while True:
        with storage.transaction() as session:
            storage.lock_study(session, study_id)
            # In the transaction that inserts this worker, so that of two new workers one sees the
            # other.
            running = [
                w
                for w in list_workers(storage, study_id, session)
                if w.is_here and w.pid != os.getpid() and w.alive and not w.alongside
            ]
            if alongside or not running:
                _insert(session, storage, study_id, name, alongside=alongside)
                return name
        for other in running:
            first, requests = asked.get(other.worker, (time.monotonic(), 0))
            waited = time.monotonic() - first
            if waited > give_up_after:
                raise RunError(
                    f"the worker of this study with pid {other.pid} does not stop; end it, or "
                    "start this one with --alongside"
                )
            if requests == 0 or (requests == 1 and waited > second_request_after):
                again = " again" if requests else ""
                say(f"asking the running worker (pid {other.pid}) to drain{again}")
                _terminate(other)
                asked[other.worker] = (first, requests + 1)
        time.sleep(0.1)


def _insert(
    session: Session, storage: StudyStorage, study_id: int, name: str, *, alongside: bool
) -> None:
    """Insert this process's record, in place of the one from before it restarted itself."""
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


def _terminate(worker: WorkerRecord) -> None:
    if not worker.alive:  # checked again at the last moment: its pid may be another process's now
        return
    try:
        os.kill(worker.pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError:
        raise RunError(
            f"the worker of this study with pid {worker.pid} belongs to another user; ask them, or "
            "use --alongside"
        ) from None


def leave(storage: StudyStorage, worker: str) -> None:
    """Delete this worker's record. If the database does not answer, the next worker deletes it."""
    with suppress(SQLAlchemyError, StudyGone), storage.transaction() as session:
        session.execute(workers.delete().where(workers.c.worker == worker))


def claim_closing(storage: StudyStorage, study_id: int, worker: str) -> bool:
    """Return whether this worker may close the study (promotion).

    At most one live worker does so at a time.
    """
    with storage.transaction() as session:
        storage.lock_study(session, study_id)
        others = [
            w
            for w in list_workers(storage, study_id, session)
            if w.worker != worker and w.state == "closing"
        ]
        if any(w.alive or (w.alive is None and w.beat_age < GRACE_SECONDS) for w in others):
            return False
        session.execute(workers.update().where(workers.c.worker == worker).values(state="closing"))
        return True
