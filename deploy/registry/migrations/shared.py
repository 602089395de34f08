"""What the migrations share: columns, and triggers that make tables append-only."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op


def columns(type_: Any, *names: str) -> list[sa.Column[Any]]:
    """Columns of one type that are not NULL."""
    return [sa.Column(name, type_, nullable=False) for name in names]


def row_id() -> sa.Column[Any]:
    """The column of a row number that the database counts up."""
    return sa.Column("id", sa.Integer, nullable=False, autoincrement=True)


def make_append_only(table: str) -> None:
    """Add triggers that refuse every UPDATE and DELETE of the table's rows."""
    for action in ("UPDATE", "DELETE"):
        refusal = f"rows of {table} are append-only"
        name = f"{table}_no_{action.lower()}"
        if op.get_bind().dialect.name == "sqlite":
            op.execute(
                f"CREATE TRIGGER {name} BEFORE {action} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{refusal}'); END"
            )
        else:
            op.execute(
                f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger AS $$ "
                f"BEGIN RAISE EXCEPTION '{refusal}'; END $$ LANGUAGE plpgsql"
            )
            op.execute(
                f"CREATE TRIGGER {name} BEFORE {action} ON {table} "
                f"FOR EACH ROW EXECUTE FUNCTION {name}()"
            )


def drop_append_only(table: str) -> None:
    """Allow UPDATE and DELETE again, for a migration that ends with `make_append_only`."""
    for action in ("update", "delete"):
        name = f"{table}_no_{action}"
        if op.get_bind().dialect.name == "sqlite":
            op.execute(f"DROP TRIGGER {name}")
        else:
            op.execute(f"DROP FUNCTION {name} CASCADE")  # and its trigger
