"""The registry's database: opening, write locks, and migration to the current tables.

The database serialises all writers (SQLite: BEGIN IMMEDIATE; PostgreSQL: an advisory lock). Readers
do not wait for writers. Migrations run in one transaction under the same lock, so concurrent
processes may open a new or an old registry, and a crash leaves the old tables or the new ones.
"""

from __future__ import annotations

import datetime as dt
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import QueuePool

from sweepd.deploy.registry.tables import TABLES, VERSION_TABLE, metadata
from sweepd.envs.support.database_file import (
    check_sqlite_place,
    connect_read_only,
    preparing_sqlite,
)
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.invocation import install_extra

BASELINE, HEAD = "0008", "0014"  # the oldest and the newest migration
_ADVISORY_LOCK = 0x73776565  # arbitrary; other programs on the PostgreSQL server must not use it
_BUSY_TIMEOUT = 60.0  # seconds

State = Literal["absent", "old", "current"]


class RegistryDatabase:
    """Transactions on a registry's tables.

    Args:
        url: SQLAlchemy URL.
        create: if True, missing tables read as an empty registry; they are created, and tables of
            an older revision are upgraded, before the first write. If False, an absent registry
            is refused, and older tables are upgraded at once.

    Raises:
        InputError: the database cannot be used, is absent (without `create`), belongs to another
            program, or has the tables of a revision that is not known.
    """

    def __init__(self, url: str, *, create: bool) -> None:
        self.url = _parse_url(url)
        self._create = create
        self._path = Path(self.url.database) if self._sqlite and self.url.database else None
        if not (create or self._file_exists):
            raise InputError(
                f"there is no registry at {self._path}: nothing has been promoted yet (sweepd "
                "promote), or name it with --deployments"
            )
        self.engine = self._make_engine()
        self._readers = (
            self.engine
            if self._sqlite
            else self.engine.execution_options(isolation_level="REPEATABLE READ")
        )
        self._current = False  # whether the tables are known to be the newest
        try:
            if create:
                with self.reading():
                    pass  # refuses the database of another program
            elif not self._is_current():
                self._bring_up_to_date()
        except RunError as error:
            raise InputError(str(error)) from error

    @property
    def shown(self) -> str:
        """The URL without its password, for messages."""
        return self.url.render_as_string(hide_password=True)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A read-only transaction with one consistent state; it does not wait for writers."""
        if self._is_current():
            with self._reported(), self._readers.connect() as connection:
                yield connection
        elif self._state() == "absent":
            # Empty tables in memory, so that a reader needs no case for an absent registry.
            engine = create_engine("sqlite://")
            metadata.create_all(engine)
            with engine.connect() as connection:
                yield connection
        else:  # the tables are upgraded for this transaction only
            with self._reported(), self._copy() if self._sqlite else self._writer() as connection:
                self._migrate(connection)
                yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that holds the write lock; it is rolled back if an exception is raised."""
        if not self._is_current():
            self._bring_up_to_date()
        with self._reported(), self._writer() as connection:
            yield connection
            connection.commit()

    def check_writable(self) -> None:
        """Raise InputError if the registry is evidently not writable; nothing is written."""
        if self._path is not None:
            check_sqlite_place(self._path, "the registry")

    @contextmanager
    def _writer(self) -> Iterator[Connection]:
        """A transaction that holds the write lock and is rolled back unless it is committed."""
        with self.engine.execution_options(writes=True).connect() as connection:
            if self._sqlite:
                connection.begin()  # now, not with the first statement
            else:
                lock = text("SELECT pg_advisory_xact_lock(:key)")
                connection.execute(lock, {"key": _ADVISORY_LOCK})
            yield connection

    @contextmanager
    def _copy(self) -> Iterator[Connection]:
        """A transaction on a copy of the SQLite file in memory."""
        assert self._path is not None
        engine = create_engine("sqlite://")
        with (
            closing(connect_read_only(self._path, _BUSY_TIMEOUT)) as file,
            engine.connect() as connection,
        ):
            memory = connection.connection.driver_connection
            assert isinstance(memory, sqlite3.Connection)
            file.backup(memory)
            yield connection

    @property
    def _file_exists(self) -> bool:
        return self._path is None or self._path.exists()

    @property
    def _sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            problem = str(error.orig).splitlines()[0]
            raise RunError(f"the registry {self.shown} cannot be used: {problem}") from error

    def _make_engine(self) -> Engine:
        if not self._sqlite:
            try:
                return create_engine(self.url, pool_pre_ping=True)
            except ModuleNotFoundError as error:
                raise InputError(
                    f"the registry needs {error.name}: {install_extra('postgres')}"
                ) from error
        path = Path(self.url.database or "")
        if path.exists() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
            engine = create_engine(self.url, creator=partial(connect_read_only, path))
        else:
            engine = create_engine(self.url, connect_args={"timeout": _BUSY_TIMEOUT})

        @event.listens_for(engine, "connect")
        def _connect(connection: Any, _record: Any) -> None:
            connection.isolation_level = None  # `_begin` begins transactions, not the driver
            # A reported promotion survives a power loss.
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA foreign_keys=ON")

        @event.listens_for(engine, "begin")
        def _begin(connection: Connection) -> None:
            writes = connection.get_execution_options().get("writes")
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

        return engine

    def _is_current(self) -> bool:
        # Tables never go back to an older revision, so "current" is remembered.
        self._current = self._current or self._state() == "current"
        return self._current

    def _state(self) -> State:
        if not self._file_exists:
            return "absent"
        with self._reported(), self._readers.connect() as connection:
            return self._state_of(connection)

    def _state_of(self, connection: Connection) -> State:
        """Find out whether tables exist and are up to date.

        Raises:
            InputError: the database belongs to another program.
        """
        revision = _revision(connection)
        if revision is not None:
            return "current" if revision == HEAD else "old"
        found = set(inspect(connection).get_table_names())
        taken = sorted(found & set(TABLES))
        if taken:
            raise InputError(
                f"the registry {self.shown} is the database of another program: it has a table "
                f"{taken[0]}"
            )
        return "absent"

    def _bring_up_to_date(self) -> None:
        """Create or upgrade the tables, unless a concurrent process has done it."""
        prepared = (
            nullcontext()
            if self._path is None
            else preparing_sqlite(self._path, "the registry", _BUSY_TIMEOUT)
        )
        with prepared, self._reported(), self._writer() as connection:
            # Read again under the lock: another process may have migrated meanwhile.
            state = self._state_of(connection)
            if state == "absent" and not self._create:
                raise InputError(
                    f"there is no registry in {self.shown}: nothing has been promoted yet "
                    "(sweepd promote)"
                )
            if state != "current":
                self._migrate(connection)
                connection.commit()
        self._current = True

    def _migrate(self, connection: Connection) -> None:
        # Alembic takes a second to import, and a registry needs it once.
        from alembic import command
        from alembic.config import Config
        from alembic.script import ScriptDirectory

        config = Config()
        config.set_main_option("script_location", "sweepd.deploy.registry:migrations")
        config.attributes["connection"] = connection
        known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
        revision = _revision(connection)
        if revision is not None and revision not in known:
            raise InputError(
                f"the registry {self.shown} has the tables of another version of sweepd (revision "
                f"{revision}; this one knows {BASELINE} to {HEAD}); use that version"
            )
        command.upgrade(config, "head")


class MemoryDatabase(RegistryDatabase):
    """A registry's tables in memory, empty at first, which all threads share."""

    def __init__(self) -> None:
        self.url, self._path, self._create, self._current = make_url("sqlite://"), None, True, True
        # Each thread has a connection of its own to the same memory.
        place = f"file:{secrets.token_hex(8)}?mode=memory&cache=shared"
        self.engine = self._readers = create_engine(
            "sqlite://",
            creator=lambda: sqlite3.connect(place, uri=True, check_same_thread=False),
            poolclass=QueuePool,
        )
        self._kept = self.engine.connect()  # SQLite frees the memory with its last connection
        metadata.create_all(self._kept)
        self._kept.commit()


def utc_now() -> str:
    """The present time as the tables store it."""
    return utc_text(time.time())


def utc_text(seconds: float) -> str:
    """Seconds since the epoch as UTC text in milliseconds, which sorts by time."""
    moment = dt.datetime.fromtimestamp(seconds, dt.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _revision(connection: Connection) -> str | None:
    """The stored revision of the tables, None if there is none."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    revision: str | None = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}"))
    return revision


def _parse_url(url: str) -> URL:
    try:
        parsed = make_url(url)
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError) as error:
        raise InputError(
            f"--registry {url!r} is not a database URL like sqlite:///deployments/registry.db"
        ) from error
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise InputError(
            f"--registry {parsed.render_as_string(hide_password=True)}: a registry is stored in "
            "SQLite (sqlite:///deployments/registry.db) or PostgreSQL "
            "(postgresql://user@host/database)"
        )
    return parsed
