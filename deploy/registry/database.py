"""The registry's database: how it is opened, locked for writing, and brought to the present tables.

All writers are serialised by the database (SQLite: BEGIN IMMEDIATE; PostgreSQL: an advisory lock). Readers of an open
registry do not wait for writers. Migrations run in one transaction under the same lock, so that any number of processes
may open a new or an old registry at once, and a kill leaves the old tables or the new ones.
"""

from __future__ import annotations

import datetime as dt
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.orm import Session

from deploy.registry.models import VERSION_TABLE, Base
from envs.support.database_file import check_sqlite_place, connect_read_only, preparing_sqlite
from envs.support.errors import InputError, RunError
from envs.support.invocation import install_extra

HEAD = "0004"  # the newest of the migrations: what the models say
_ADVISORY_LOCK = (
    0x73776565  # any number that other programs on the same PostgreSQL are unlikely to use
)
_BUSY_TIMEOUT = 60.0
_BEFORE_MIGRATIONS = "schema_version"  # a table of registries that are older than the migrations

State = Literal["absent", "old", "current"]


class RegistryDatabase:
    """Sessions on a registry's tables.

    url: SQLAlchemy URL. create: where the database or its tables are missing, they read as an empty registry and are
    created before the first write; tables of an older version are upgraded then, too. Without `create` an absent
    registry is refused, and older tables are upgraded at once.

    Raises InputError, one sentence, where the database cannot be used, is absent (without `create`), holds something
    else, or was written by a newer sweepd.
    """

    def __init__(self, url: str, *, create: bool) -> None:
        self.url = _parse_url(url)
        self._create = create
        self._path = Path(self.url.database) if self._sqlite and self.url.database else None
        if not (create or self._file_exists):
            raise InputError(
                f"there is no registry at {self._path}: nothing has been promoted yet (sweepd promote), or name it "
                "with --deployments"
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
    def reading(self) -> Iterator[Session]:
        """A transaction that only reads: one state of the registry, without waiting for writers."""
        if self._is_current():
            with self._reported(), Session(self._readers) as session:
                yield session
        elif self._state() == "absent":
            engine = create_engine("sqlite://")
            Base.metadata.create_all(engine)
            with Session(engine) as session:
                yield session
        else:  # the tables are upgraded for this session only
            with self._reported(), self._copy() if self._sqlite else self._writer() as session:
                self._migrate(session.connection())
                yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A transaction that no other writer can interleave with; rolled back where anything is raised in it."""
        if not self._is_current():
            self._bring_up_to_date()
        with self._reported(), self._writer() as session:
            yield session
            session.commit()

    def check_writable(self) -> None:
        """Raises InputError where nothing can be written to the registry, as far as that can be told without trying."""
        if self._path is not None:
            check_sqlite_place(self._path, "the registry")

    @contextmanager
    def _writer(self) -> Iterator[Session]:
        """A session that holds the lock of all writers, and is rolled back unless it is committed."""
        with Session(self.engine.execution_options(writes=True)) as session:
            if self._sqlite:
                session.connection()  # begins the transaction now, and not with the first statement
            else:
                session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
            yield session

    @contextmanager
    def _copy(self) -> Iterator[Session]:
        """A session on a copy of the SQLite file in memory."""
        assert self._path is not None
        engine = create_engine("sqlite://")
        with (
            closing(connect_read_only(self._path, _BUSY_TIMEOUT)) as file,
            engine.connect() as connection,
        ):
            memory = connection.connection.driver_connection
            assert isinstance(memory, sqlite3.Connection)
            file.backup(memory)
            with Session(connection) as session:
                yield session

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
            connection.isolation_level = None  # transactions are begun below, not by the driver
            connection.execute(
                "PRAGMA synchronous=FULL"
            )  # a promotion that was reported survives a power loss
            connection.execute("PRAGMA foreign_keys=ON")

        @event.listens_for(engine, "begin")
        def _begin(connection: Connection) -> None:
            writes = connection.get_execution_options().get("writes")
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

        return engine

    def _is_current(self) -> bool:
        self._current = self._current or self._state() == "current"
        return self._current

    def _state(self) -> State:
        if not self._file_exists:
            return "absent"
        with self._reported(), Session(self._readers) as session:
            return self._state_of(session.connection())

    def _state_of(self, connection: Connection) -> State:
        """Raises InputError for the database of another program."""
        revision = _revision(connection)
        if revision is not None:
            return "current" if revision == HEAD else "old"
        found = set(inspect(connection).get_table_names())
        if _BEFORE_MIGRATIONS in found:
            if not {"bundles", "slots", "versions", "events", "looks"} <= found:
                raise InputError(f"the registry {self.shown} is the database of another program")
            return "old"
        taken = sorted(found & set(Base.metadata.tables))
        if taken:
            raise InputError(
                f"the registry {self.shown} is the database of another program: it has a table {taken[0]}"
            )
        return "absent"

    def _bring_up_to_date(self) -> None:
        """Create or upgrade the tables, unless another process was faster."""
        prepared = (
            nullcontext()
            if self._path is None
            else preparing_sqlite(self._path, "the registry", _BUSY_TIMEOUT)
        )
        with prepared, self._reported(), self._writer() as session:
            connection = session.connection()
            state = self._state_of(connection)
            if state == "absent" and not self._create:
                raise InputError(
                    f"there is no registry in {self.shown}: nothing has been promoted yet (sweepd promote)"
                )
            if state != "current":
                self._migrate(connection)
                session.commit()
        self._current = True

    def _migrate(self, connection: Connection) -> None:
        from alembic import (
            command,
        )  # takes a second to import, and is needed once in a registry's life
        from alembic.config import Config
        from alembic.script import ScriptDirectory

        config = Config()
        config.set_main_option("script_location", "deploy.registry:migrations")
        config.attributes["connection"] = connection
        known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
        revision = _revision(connection)
        if revision is not None and revision not in known:
            raise InputError(
                f"the registry {self.shown} has the tables of a newer sweepd (revision {revision}; this one knows up "
                f"to {HEAD}); use that version"
            )
        if revision is None and inspect(connection).has_table(_BEFORE_MIGRATIONS):
            command.stamp(config, "0001")
        command.upgrade(config, "head")


def utc_now() -> str:
    """This moment, as the tables have it: UTC text to the millisecond, which sorts as it is."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _revision(connection: Connection) -> str | None:
    """The revision that the database remembers, None for one without."""
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
            f"--registry {parsed.render_as_string(hide_password=True)}: a registry is kept in SQLite "
            "(sqlite:///deployments/registry.db) or PostgreSQL (postgresql://user@host/database)"
        )
    return parsed
