"""Accounts have the name that they have everywhere else: tables and columns said "lane".

Columns of `traders` get the names of the record's fields. Nothing is rewritten, so a long record is
renamed at once.
"""

from __future__ import annotations

from alembic import op

from sweepd.deploy.registry.migrations.shared import drop_append_only, make_append_only

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Rename tables and columns."""
    drop_append_only("lane_bars")
    op.rename_table("lanes", "accounts")
    op.rename_table("lane_bars", "account_bars")
    for table, before, after in (
        ("account_bars", "lane", "account"),
        ("orders", "lane", "account"),
        ("traders", "account", "venue_account"),
        ("traders", "session", "state"),
    ):
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {before} TO {after}")
    make_append_only("account_bars")
    if op.get_bind().dialect.name == "sqlite":
        return  # it cannot rename constraints, and nothing needs their names
    for table, name in (
        ("accounts", "pk_{}"),
        ("accounts", "fk_{}_slot"),
        ("accounts", "fk_{}_bundle"),
        ("account_bars", "pk_{}"),
    ):
        before = name.format(table.replace("account", "lane"))
        op.execute(f"ALTER TABLE {table} RENAME CONSTRAINT {before} TO {name.format(table)}")
