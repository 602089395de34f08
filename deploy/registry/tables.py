"""Tables of the registry's database, each derived from the frozen dataclass of its records.

Moments are UTC text, bar times seconds since the epoch. The packages that own the records make
their tables: `sweepd.deploy.registry.records`, and of live traders
`sweepd.deploy.trading.live.records`, and of nights `sweepd.deploy.night.records`. The migrations of
`sweepd.deploy.registry.migrations` make them in a database.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Delete,
    Double,
    Integer,
    MetaData,
    Select,
    Table,
    Text,
    Update,
    select,
)
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

# The table of the revision. It has not Alembic's default name, because the database may also be
# that of an Optuna study, which Optuna migrates.
VERSION_TABLE: Final = "sweepd_registry_version"
# Triggers refuse to change or delete rows of these tables. The others hold present state.
APPEND_ONLY: Final = (
    "bundles",
    "versions",
    "events",
    "evaluations",
    "account_bars",
    "trader_events",
    "trader_bars",
    "trader_adjustments",
    "trader_inputs",
    "night_steps",
    "reigns",
    "arena_days",
    "certificates",
)
# All names, because a process that trades nothing does not import the tables of traders.
TABLES: Final = (
    *APPEND_ONLY,
    "slots",
    "challengers",
    "arena_entries",
    "traders",
    "accounts",
    "orders",
    "parity_days",
    "nights",
)
Long = Annotated[int, BigInteger()]  # an integer that may exceed 32 bits, such as a bar's time
Record = TypeVar("Record")
metadata = MetaData(
    naming_convention={  # the names that the migrations use
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class RecordTable(Generic[Record]):
    """A table whose rows are records of a frozen dataclass.

    Each field is a column: of text for `str` and literals, JSON for dictionaries and lists, and
    NULL where the field may be None.

    Args:
        name: of the table.
        record: the dataclass.
        items: keys, constraints and indexes, and columns that the record does not have.

    Attributes:
        table: the SQLAlchemy table.
        c: its columns.
    """

    def __init__(self, name: str, record: type[Record], *items: SchemaItem) -> None:
        hints = get_type_hints(record, include_extras=True)
        self._names = [field.name for field in dataclasses.fields(record)]  # type: ignore[arg-type]
        self._record = record
        own = [item for item in items if isinstance(item, Column)]
        constraints = [item for item in items if not isinstance(item, Column)]
        columns = [_column(one, hints[one]) for one in self._names]
        self.table = Table(name, metadata, *own, *columns, *constraints)
        self.c = self.table.c

    def select(self, *clauses: ColumnElement[bool]) -> Select[Any]:
        """Return a query of the records for which all clauses are true."""
        return select(*(self.c[name] for name in self._names)).where(*clauses)

    def read(self, connection: Connection, query: Select[Any]) -> list[Record]:
        """Return the records that a query made by `select` finds."""
        return [self._record(*row) for row in connection.execute(query)]

    def get(self, connection: Connection, **key: object) -> Record | None:
        """Return the record with these values, None if there is none."""
        found = self.read(connection, self.select(*self._equal(key)).limit(1))
        return found[0] if found else None

    def add(self, connection: Connection, records: Iterable[Record], **more: object) -> None:
        """Insert records; `more`: values of the columns that they do not have."""
        rows = [more | vars(record) for record in records]
        if rows:  # no rows would insert a row of defaults
            connection.execute(self.table.insert(), rows)

    def update(self, **key: object) -> Update:
        """Return a statement that changes the rows with these values."""
        return self.table.update().where(*self._equal(key))

    def delete(self, **key: object) -> Delete:
        """Return a statement that deletes the rows with these values."""
        return self.table.delete().where(*self._equal(key))

    def _equal(self, key: dict[str, object]) -> list[ColumnElement[bool]]:
        return [self.c[name] == value for name, value in key.items()]


def _column(name: str, hint: Any) -> Column[Any]:
    """Return the column of a field."""
    union = get_origin(hint) in (Union, types.UnionType)
    [kind] = [one for one in get_args(hint) if one is not type(None)] if union else [hint]
    return Column(name, _type_of(kind), nullable=union)


def _type_of(kind: Any) -> TypeEngine[Any]:
    origin = get_origin(kind) or kind
    if origin is Annotated:
        found: TypeEngine[Any] = kind.__metadata__[0]
        return found
    if origin in (dict, list):
        return JSON(none_as_null=True)
    if origin in (str, Literal):
        return Text()
    numbers: dict[Any, TypeEngine[Any]] = {bool: Boolean(), int: Integer(), float: Double()}
    return numbers[origin]
