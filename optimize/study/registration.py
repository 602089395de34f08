"""Workers as recorded in the study's database: their state, and handing a study over to a new worker."""

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

from envs.support.errors import RunError
from optimize.study import processes
from optimize.study.gone import StudyGone
from optimize.study.storage import StudyStorage
from optimize.study.tables import workers

GRACE_SECONDS = (
    120.0  # without a heartbeat after which a worker whose process cannot be checked counts as dead
)
SECOND_REQUEST_AFTER = 10.0
GIVE_UP_AFTER = 30.0


@dataclass(frozen=True)
class WorkerRecord:
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
        """Whether its pid is valid for this process: the same machine, boot and PID namespace.

        The host name is compared, too: virtual machines resumed from one memory snapshot share the rest.
        """
        return self.host == socket.gethostname() and processes.same_namespace(self.started)

    @property
    def alive(self) -> bool | None:
        """Whether its process runs; None if that cannot be checked here, so that only its heartbeats count."""
        return processes.is_running(self.pid, self.started) if self.is_here else None


def list_workers(
    storage: StudyStorage, study_id: int, session: Session | None = None
) -> list[WorkerRecord]:
    """All recorded workers of a study, dead ones included."""
    if session is None:
        with storage.transaction() as opened:
            return list_workers(storage, study_id, opened)
    now = storage.now(session)
    rows = session.execute(
        sa.select(workers).where(workers.c.study_id == study_id).order_by(workers.c.worker)
    ).all()
    return [
        WorkerRecord(
            r.worker,
            r.host,
            r.pid,
            r.started,
            r.alongside,
            r.state,
            now - r.beat,
            json.loads(r.info),
        )
        for r in rows
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

    name: the recorded name of a process that has started itself again; "" for a new worker.

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
            others = [
                w
                for w in list_workers(storage, study_id, session)
                if w.is_here and w.pid != os.getpid()
            ]
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


def _terminate(worker: WorkerRecord) -> None:
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
    with suppress(SQLAlchemyError, StudyGone), storage.transaction() as session:
        session.execute(workers.delete().where(workers.c.worker == worker))


def claim_closing(storage: StudyStorage, study_id: int, worker: str) -> bool:
    """Whether this worker is the one that closes the study (promotion): at most one live worker does at a time."""
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
