"""Pauses of a study, recorded in its database, so that all workers on all machines see them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Self

from sqlalchemy.exc import SQLAlchemyError

from sweepd.envs.support.account import user_at_host
from sweepd.envs.support.periodic_thread import PeriodicThread
from sweepd.optimize.study.action_log import log_action
from sweepd.optimize.study.database.gone import StudyGone
from sweepd.optimize.study.database.storage import StudyStorage
from sweepd.optimize.study.record.keys import PAUSE_KEY
from sweepd.optimize.study.record.optuna_tables import study_attributes

LOOK_SECONDS = 2.0


@dataclass(frozen=True)
class Pause:
    """A pause.

    Attributes:
        since: time, ISO 8601, UTC.
        by: user@host.
    """

    since: str
    by: str


def pause_of(attributes: dict[str, Any]) -> Pause | None:
    """Return the pause among a study's user attributes, None without one."""
    found = attributes.get(PAUSE_KEY)
    return None if found is None else Pause(**found)


def pause_study(storage: StudyStorage, study_id: int, why: str = "") -> Pause | None:
    """Ask all workers of a study to put their trials back and wait.

    Args:
        storage: its database.
        study_id: its row id.
        why: the user's reason, for the study's log.

    Returns:
        The earlier pause if the study is paused already.
    """
    pause = Pause(datetime.now(UTC).isoformat(timespec="seconds"), user_at_host())
    with storage.transaction() as session:
        storage.lock_study(session, study_id)
        before = study_attributes.get(session, study_id, PAUSE_KEY)
        if before is not None:
            return Pause(**before)
        study_attributes.put(session, {study_id: {PAUSE_KEY: asdict(pause)}})
        log_action(session, study_id, "paused", why)
    return None


def resume_study(storage: StudyStorage, study_id: int, why: str = "") -> bool:
    """Let the workers continue. Returns False if the study was not paused. why: as `pause_study`."""
    with storage.transaction() as session:
        storage.lock_study(session, study_id)
        was_paused = study_attributes.delete(session, study_id, PAUSE_KEY)
        if was_paused:
            log_action(session, study_id, "resumed", why)
        return was_paused


class PauseWatch:
    """A thread that checks every `LOOK_SECONDS` whether the study is paused.

    Training reads `paused` instead of the database. If the database does not answer, it keeps its
    value.
    """

    def __init__(
        self, storage: StudyStorage, study_id: int, interval: float = LOOK_SECONDS
    ) -> None:
        self.storage, self.study_id = storage, study_id
        self.paused = False
        self._thread = PeriodicThread(self._look, interval, "pause", end=storage.remove_session)

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.stop()

    def _look(self) -> None:
        try:
            with self.storage.transaction() as session:
                found = study_attributes.get(session, self.study_id, PAUSE_KEY)
                self.paused = found is not None
        except (
            SQLAlchemyError,
            OSError,
            StudyGone,
        ):  # the heartbeat sees a deleted study, too, and ends the worker
            pass
