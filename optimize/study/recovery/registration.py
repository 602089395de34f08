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

from envs.support.errors import RunError
from optimize.study.database.gone import StudyGone
from optimize.study.database.storage import StudyStorage
from optimize.study.database.tables import workers
from optimize.study.recovery import processes

GRACE_SECONDS = (
    120.0  # without a heartbeat after which a worker whose process cannot be checked counts as dead
)
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
    storage: StudyStorage, study_id: int, session: Session | None = None
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
                    f"the worker of this study with pid {other.pid} does not stop; end it, or "
                    "start this one with --alongside"
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
                f"the worker of this study with pid {worker.pid} belongs to another user; ask "
                "them, or use --alongside"
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
