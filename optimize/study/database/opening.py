"""Open a study database by the value of `--storage`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import optuna
import sqlalchemy as sa
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_fixed

from sweepd.envs.support.database_file import BUSY_TIMEOUT, READER_TIMEOUT, preparing_sqlite
from sweepd.envs.support.database_url import database_url, sqlite_path
from sweepd.envs.support.errors import InputError, TryAgainLater
from sweepd.envs.support.invocation import install_extra
from sweepd.envs.support.passwords import hide_password
from sweepd.optimize.study.database.patience import is_away, reason_of
from sweepd.optimize.study.database.storage import StudyStorage
from sweepd.optimize.study.record.folder import RUNS

# What SQLAlchemy and Optuna raise for a database that cannot be opened.
UNUSABLE = (sa.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError, RuntimeError)


def storage_url(storage: str | None, runs_dir: Path | None = None) -> str:
    """Return the database URL for `--storage`, see `database_url`.

    Args:
        storage: value of the flag; None is `sweepd.db` in the runs folder.
        runs_dir: the runs folder; None is `runs`.
    """
    return database_url(str((runs_dir or RUNS) / "sweepd.db") if storage is None else storage)


def _may_come_back(reason: str) -> bool:
    """Return whether a server that refused a connection is unavailable or too busy.

    A FATAL answer means another error, such as a wrong password or database name.
    """
    passing = (
        "starting up",
        "shutting down",
        "not yet accepting",
        "too many",
        "remaining connection slots",
    )
    return "FATAL" not in reason or any(words in reason for words in passing)


def open_storage(
    url: str,
    *,
    create: bool = True,
    immediate: bool = True,
    read_only: bool = False,
    busy_timeout: float | None = None,
) -> StudyStorage:
    """Open the study database, and create it if there is none.

    Args:
        url: SQLAlchemy URL of the database.
        create: False refuses a SQLite file that does not exist.
        immediate: False for a program that mostly reads: its transactions do not take the write
            lock of a SQLite file.
        read_only: create and write nothing (file and folder may be write-protected). A SQLite file
            in WAL mode can be read while another program holds its write lock.
        busy_timeout: seconds to wait for another program's lock; by default 60, or 5 if read_only.

    Raises:
        InputError: the database is missing, locked, not writable, or not one of Optuna.
        TryAgainLater: a server does not answer; a supervisor restarts the worker until it does.
    """
    path = sqlite_path(url)
    timeout = busy_timeout or (READER_TIMEOUT if read_only else BUSY_TIMEOUT)
    if path is not None and (read_only or not create) and not path.exists():
        raise InputError(
            f"--storage {path} does not exist; name the database of a study, or start one with "
            "sweepd train"
        )
    prepared = (
        nullcontext() if path is None or read_only else preparing_sqlite(path, "--storage", timeout)
    )
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
            return connect(url, immediate=immediate, read_only=read_only, busy_timeout=timeout)
        except (*UNUSABLE, ImportError) as error:
            raise _unusable(url, error) from None


def _unusable(url: str, error: Exception) -> InputError | TryAgainLater:
    """Return the error for a database that cannot be opened."""
    shown = hide_password(url)
    if isinstance(error, ImportError):
        return InputError(
            f"--storage {shown}: the driver is missing ({error.name or error}); "
            f"{install_extra('postgres')}"
        )
    reason = reason_of(error)
    if sqlite_path(url) is None and is_away(error) and _may_come_back(reason):
        return TryAgainLater(f"--storage {shown} does not answer now ({reason})")
    return InputError(f"--storage {shown} cannot be used ({reason})")


def require_study(storage: StudyStorage, name: str) -> int:
    """Return the row id of a study. Raises InputError that lists the existing studies."""
    try:
        return storage.get_study_id_from_name(name)
    except KeyError:
        names = ", ".join(study.study_name for study in storage.get_all_studies()[:8]) or "none"
        raise InputError(
            f"--study-name {name!r} is not in {hide_password(storage.url)}; there are: {names}"
        ) from None
