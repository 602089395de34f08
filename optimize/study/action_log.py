"""Who did what to a study, and why: pauses, resumes and enqueued trials, recorded in the study."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy.orm import Session

from sweepd.envs.support.account import user_at_host
from sweepd.optimize.study.record.keys import ACTIONS_KEY
from sweepd.optimize.study.record.optuna_tables import study_attributes

KEPT_ACTIONS = 100  # the newest of a study


def log_action(session: Session, study_id: int, what: str, why: str) -> None:
    """Append an action to a study's log, within the caller's transaction, which has locked it.

    Args:
        session: the transaction.
        study_id: row id of the study.
        what: what was done, such as "paused".
        why: the user's reason; may be "".
    """
    at = datetime.now(UTC).isoformat(timespec="seconds")
    logged: list[dict[str, Any]] = study_attributes.get(session, study_id, ACTIONS_KEY) or []
    logged.append({"at": at, "by": user_at_host(), "what": what, "why": why})
    study_attributes.put(session, {study_id: {ACTIONS_KEY: logged[-KEPT_ACTIONS:]}})
