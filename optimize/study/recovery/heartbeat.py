"""Heartbeats of a worker and its trials.

Optuna's heartbeat is started by `study.optimize` only and ignores trials without a heartbeat, so
ask-and-tell needs its own.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from sweepd.envs.support.periodic_thread import PeriodicThread
from sweepd.optimize.study.database.gone import StudyGone
from sweepd.optimize.study.database.storage import StudyStorage
from sweepd.optimize.study.database.tables import attempts, workers
from sweepd.optimize.study.record.optuna_tables import changed_rows
from sweepd.optimize.study.recovery.deaths import memory_counters
from sweepd.optimize.study.recovery.stall import Progress, where_main_thread_is

BEAT_SECONDS = 10.0


class Heartbeat:
    """A thread that writes heartbeats of the worker and of every trial that it holds.

    While the main thread makes no progress, the worker's heartbeat says "stalled" and its trials
    get none, so that another worker takes them after the grace period.

    Args:
        storage: database of the study.
        worker: name of the worker.
        interval: seconds between two heartbeats.
        progress: progress of the main thread.
        say: prints a line when a stall begins and when it ends.

    Attributes:
        lost: ids of trials that no longer belong to this worker: another worker has taken them
            (this process was suspended, stalled or without the database for longer than the grace
            period), another program has finished them, or they were deleted. The trainer drops its
            copies.
        gone: set when the study or its database was deleted.
        beaten: time of the latest heartbeat that was written, on the monotonic clock.
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

    def try_beat(self) -> None:
        """Write a heartbeat.

        An error of the database or the system is stored in `last_error` and does not end the
        thread; the next heartbeat is a new attempt.
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
        """Report the beginning and the end of a stall."""
        stalled, self._stalled = self._stalled, self._progress.stalled
        if self._stalled and not stalled:
            self._say(
                f"no progress for {self._progress.age:,.0f} s (limit {self._progress.limit:,.0f} "
                f"s), in {where_main_thread_is()}: the heartbeats of its trials stop, so that "
                "another worker takes them"
            )
        elif stalled and not self._stalled:
            self._say("progress again; the trials that are still held get heartbeats")

    def beat(self) -> None:
        """Write heartbeats of the worker and, unless it is stalled, of its trials.

        Trials that no longer belong to this worker are added to `lost`.

        Raises:
            StudyGone: the study or its database was deleted.
        """
        stalled, held = self._progress.stalled, self.storage.held()
        with self.storage.transaction() as session:
            # Before the time that is stored: others count the grace period from then on.
            beaten, now = time.monotonic(), self.storage.now(session)
            if self._record:
                self.storage.check_study(session, self._record["study_id"])
            self._write(session, now, "stalled" if stalled else self.state)
            lost = self.storage.lost_of(session, held)
            if not stalled:  # a stalled worker keeps the old beat
                ours = attempts.c.trial_id.in_(sorted(set(held) - lost))
                session.execute(attempts.update().where(ours).values(beat=now))
        still = self.storage.held()
        # Not the trials that the main thread has finished or released while this ran.
        self.lost |= {t for t in lost if still.get(t) == held[t]}
        self.beaten = beaten

    def _write(self, session: Session, now: float, state: str) -> None:
        """Update this worker's record, or insert it again if another worker deleted it as dead."""
        own = workers.c.worker == self.worker
        values = {"beat": now, "info": json.dumps({**self.info, **memory_counters()})}
        changed = changed_rows(session, workers.update().where(own).values(**values))
        if self._record and changed == 0:
            session.execute(workers.insert().values(**{**self._record, **values}))
        session.execute(
            workers.update().where(own, workers.c.state != "closing").values(state=state)
        )
