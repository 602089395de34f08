"""The database of studies: opening it for reading, and transactions over several tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy as sa
from optuna.storages import RDBStorage
from sqlalchemy.orm import Session

from sweepd.envs.support.database_file import READER_TIMEOUT, connect_read_only
from sweepd.envs.support.database_url import database_url, sqlite_path
from sweepd.envs.support.errors import InputError, TryAgainLater
from sweepd.envs.support.invocation import install_extra
from sweepd.envs.support.passwords import hide_password
from sweepd.optimize.study.record.folder import RUNS
from sweepd.optimize.study.record.keys import CREATED_KEY, SPEC_KEY
from sweepd.optimize.study.record.optuna_tables import has_known_tables, study_attributes, study_ids

# What SQLAlchemy and Optuna raise for a database that cannot be opened.
UNUSABLE = (sa.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError, RuntimeError)


class StudyDatabase:
    """A database of studies: its transactions, and what they say about studies.

    A reader needs no more. Optuna's own storage of it checks the version of its tables with alembic,
    which takes longer than the rest of `sweepd status`.

    Args:
        url: SQLAlchemy URL of the database.
        engine: arguments of `sqlalchemy.create_engine`.
    """

    def __init__(self, url: str, engine: Mapping[str, Any]) -> None:
        self.url, self._arguments = url, engine
        self._use(sa.create_engine(url, **engine), "BEGIN")
        self._optuna: RDBStorage | None = None

    def _use(self, engine: sa.Engine, begin: str) -> None:
        """Use an engine, the transactions of which begin with this statement on SQLite."""
        self.engine = engine
        on_sqlite = sqlite_path(self.url) is not None
        if on_sqlite:
            explicit_transactions(engine, begin)
        self._now: sa.ColumnElement[float] = (
            sa.literal_column("(julianday('now') - 2440587.5) * 86400.0")
            if on_sqlite
            else sa.cast(sa.func.extract("epoch", sa.func.clock_timestamp()), sa.Float)
        )

    def optuna(self) -> RDBStorage:
        """Return Optuna's storage of this database."""
        if self._optuna is None:
            self._optuna = RDBStorage(
                self.url, engine_kwargs=dict(self._arguments), skip_table_creation=True
            )
            if sqlite_path(self.url) is not None:
                explicit_transactions(self._optuna.engine, "BEGIN")
        return self._optuna

    def _session(self) -> Session:
        return Session(self.engine)

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Open a transaction; commit it at the end, roll it back after an exception."""
        session = self._session()
        try:
            yield session
            session.commit()
        except BaseException:
            session.rollback()
            raise
        finally:
            session.close()

    def now(self, session: Session) -> float:
        """Return the time of the database's clock, in seconds since the epoch."""
        return float(session.execute(sa.select(self._now)).scalar_one())

    def study_ids(self) -> dict[str, int]:
        """Return the row ids of all studies by name, the oldest first."""
        with self.transaction() as session:
            return study_ids(session)

    def attributes(self, study_id: int) -> dict[str, Any]:
        """Return the user attributes of a study."""
        with self.transaction() as session:
            return study_attributes.of(session, [study_id])[study_id]


def explicit_transactions(engine: sa.Engine, begin: str) -> None:
    """Let the transactions of a SQLite database begin with this statement.

    By default, pysqlite opens a transaction itself, only before the first write.
    """

    @sa.event.listens_for(engine, "connect")
    def _explicit_transactions(connection: Any, _record: Any) -> None:
        connection.isolation_level = None

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql(begin)

    engine.dispose()  # connections that were opened before lack these listeners


def storage_url(storage: str | None, runs_dir: Path | None = None) -> str:
    """Return the database URL for `--storage`, see `database_url`.

    Args:
        storage: value of the flag; None is `sweepd.db` in the runs folder.
        runs_dir: the runs folder; None is `runs`.
    """
    return database_url(str((runs_dir or RUNS) / "sweepd.db") if storage is None else storage)


def open_to_read(url: str) -> StudyDatabase:
    """Open a study database; nothing is created or written.

    File and folder of SQLite may be write-protected. A file in WAL mode can be read while another
    program holds its write lock; for that of another one it waits `READER_TIMEOUT` seconds.

    Args:
        url: SQLAlchemy URL of the database.

    Raises:
        InputError: the database is missing, locked, or not one of Optuna.
        TryAgainLater: a server does not answer.
    """
    engine: dict[str, Any] = {"pool_pre_ping": True}
    path = sqlite_path(url)
    if path is not None:
        require_file(path)
        connect = partial(connect_read_only, path, READER_TIMEOUT)
        engine = {"creator": connect, "poolclass": sa.NullPool}
    try:
        database = StudyDatabase(url, engine)
        with database.transaction() as session:
            known = has_known_tables(session)
        if not known:
            database.optuna()  # another version of Optuna made them: it says what to do, or takes them
    except (*UNUSABLE, ImportError) as error:
        raise unusable(url, error) from None
    return database


def require_file(path: Path) -> None:
    """Raise InputError if there is no SQLite file."""
    if not path.exists():
        raise InputError(
            f"--storage {path} does not exist; name the database of a study, or start one with "
            "sweepd train"
        )


def unusable(url: str, error: Exception) -> InputError | TryAgainLater:
    """Return the error for a database that cannot be opened or read."""
    shown = hide_password(url)
    if isinstance(error, ImportError):
        return InputError(
            f"--storage {shown}: the driver is missing ({error.name or error}); "
            f"{install_extra('postgres')}"
        )
    reason = reason_of(error)
    if sqlite_path(url) is None and is_away(error) and _may_come_back(reason):
        return TryAgainLater(f"--storage {shown} does not answer now ({reason})")
    # The first of Optuna's tables that are read, as SQLite and PostgreSQL name them.
    tables = "(alembic_version|version_info)"
    if re.search(f'no such table: {tables}|"{tables}" does not exist', reason):
        return InputError(f"--storage {shown} is not a database of studies")
    return InputError(f"--storage {shown} cannot be used ({reason})")


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


def is_away(error: BaseException | None) -> bool:
    """Return whether the error says that the database is unavailable, not that it refused."""
    if isinstance(error, optuna.exceptions.StorageInternalError):
        return is_away(error.__cause__)
    if isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated:
        return True
    return isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError | sa.exc.TimeoutError)


def reason_of(error: BaseException) -> str:
    """Return the first line of the database driver's message."""
    cause = error.__cause__ if isinstance(error, optuna.exceptions.StorageInternalError) else error
    return str(getattr(cause, "orig", None) or cause).strip().splitlines()[0]


def require_study(storage: StudyDatabase, name: str) -> int:
    """Return the row id of a study. Raises InputError that lists the existing studies."""
    known = storage.study_ids()
    if name not in known:
        raise InputError(
            f"--study-name {name!r} is not in {hide_password(storage.url)}; there are: "
            f"{', '.join(list(known)[:8]) or 'none'}"
        )
    return known[name]


def study_exists(storage: StudyDatabase, name: str) -> bool:
    """Return whether the database has a study of this name."""
    return name in storage.study_ids()


def our_studies(storage: StudyDatabase) -> dict[str, dict[str, Any]]:
    """Return the attributes of the studies that sweepd made, by name, the newest first."""
    with storage.transaction() as session:
        known = study_ids(session)
        found = study_attributes.of(session, list(known.values()))
    ours = {name: found[one] for name, one in known.items() if SPEC_KEY in found[one]}
    # The order of creation decides between equal dates.
    ordered = sorted(ours, key=lambda name: (str(ours[name].get(CREATED_KEY, "")), known[name]))
    return {name: ours[name] for name in reversed(ordered)}
