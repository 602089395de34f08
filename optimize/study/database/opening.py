"""Open a study database for writing."""

from __future__ import annotations

from contextlib import nullcontext

import sqlalchemy as sa
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_fixed

from sweepd.envs.support.database_file import BUSY_TIMEOUT, preparing_sqlite
from sweepd.envs.support.database_url import sqlite_path
from sweepd.optimize.study.database.storage import StudyStorage
from sweepd.optimize.study.record.database import UNUSABLE, require_file, unusable


def open_storage(
    url: str, *, create: bool = True, immediate: bool = True, busy_timeout: float = BUSY_TIMEOUT
) -> StudyStorage:
    """Open the study database, and create it if there is none; see also `open_to_read`.

    Args:
        url: SQLAlchemy URL of the database.
        create: False refuses a SQLite file that does not exist.
        immediate: False for a program that mostly reads: its transactions do not take the write
            lock of a SQLite file.
        busy_timeout: seconds to wait for another program's lock.

    Raises:
        InputError: the database is missing, locked, not writable, or not one of Optuna.
        TryAgainLater: a server does not answer; a supervisor restarts the worker until it does.
    """
    path = sqlite_path(url)
    if path is not None and not create:
        require_file(path)
    prepared = nullcontext() if path is None else preparing_sqlite(path, "--storage", busy_timeout)
    # Two workers may create the tables of a server at the same time: one gets an error, once for
    # Optuna's tables and once for those of sweepd.
    connect = retry(
        retry=retry_if_exception_type((sa.exc.ProgrammingError, sa.exc.IntegrityError)),
        stop=stop_after_attempt(3),
        wait=wait_fixed(0.5),
        reraise=True,
    )(StudyStorage)
    with prepared:
        try:
            return connect(url, immediate=immediate, busy_timeout=busy_timeout)
        except (*UNUSABLE, ImportError) as error:
            raise unusable(url, error) from None
