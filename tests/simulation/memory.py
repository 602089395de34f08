"""A registry's tables in memory, each of whose transactions is an effect."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import sqlalchemy as sa

from sweepd.deploy.registry.database import RegistryDatabase
from sweepd.deploy.registry.tables import metadata
from sweepd.envs.support.errors import RunError
from tests.simulation.scheduler import Fault, Scheduler

Rows = TypeVar("Rows")


def nothing(*_: object) -> None:
    """Read or check nothing."""


class MemoryRegistry(RegistryDatabase, Generic[Rows]):
    """The tables of a registry, without the triggers that keep rows: runs delete them.

    Args:
        scheduler: decides what happens to each transaction.
        rows: reads what `check` compares.
        check: receives it before a transaction and after it, before the commit.
        reads: whether reading is an effect, too.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        rows: Callable[[sa.Connection], Rows],
        check: Callable[[Rows, Rows], None],
        reads: bool,
    ) -> None:
        # Not `RegistryDatabase.__init__`, which opens a file.
        self._scheduler, self._rows, self._check = scheduler, rows, check
        self._reads, self.engine = reads, _engine()
        with self.engine.begin() as connection:
            for table in reversed(metadata.sorted_tables):
                connection.execute(table.delete())

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        if self._reads:
            self._refuse(self._scheduler.effect("read"))
        with self.engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        scheduler = self._scheduler
        fault = scheduler.effect("write")
        self._refuse(fault)
        with self.engine.connect() as connection:
            before = self._rows(connection)
            yield connection
            if scheduler.now < scheduler.full_until:
                raise RunError("the registry cannot be used: database or disk is full")
            self._check(before, self._rows(connection))
            connection.commit()
        if fault is Fault.ANSWER_LOST:
            raise RunError("the registry cannot be used: connection lost")

    @staticmethod
    def _refuse(fault: Fault) -> None:
        if fault is Fault.REFUSED:
            raise RunError("the registry cannot be used: database is locked")


@functools.cache
def _engine() -> sa.Engine:
    engine = sa.create_engine(
        "sqlite://", poolclass=sa.StaticPool, connect_args={"check_same_thread": False}
    )
    metadata.create_all(engine)
    return engine
