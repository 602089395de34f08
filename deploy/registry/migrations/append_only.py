"""Triggers that make tables append-only, on SQLite and PostgreSQL."""

from __future__ import annotations

from alembic import op


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
    place = "" if op.get_bind().dialect.name == "sqlite" else f" ON {table}"
    for action in ("update", "delete"):
        op.execute(f"DROP TRIGGER {table}_no_{action}{place}")
