"""Reigns of champions, and entries and days of challengers in the arena.

The present champion of each slot gets the first reign, without entries.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from sweepd.deploy.registry.migrations.shared import columns, make_append_only

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Create the tables."""
    op.add_column(
        "challengers", sa.Column("refit", sa.Boolean, nullable=False, server_default=sa.false())
    )
    op.create_table(
        "reigns",
        *columns(sa.Text, "slot"),
        *columns(sa.Integer, "number"),
        *columns(sa.Text, "champion", "at", "why"),
        sa.PrimaryKeyConstraint("slot", "number", name="pk_reigns"),
        sa.ForeignKeyConstraint(["champion"], ["bundles.hash"], name="fk_reigns_champion"),
    )
    op.execute(
        "INSERT INTO reigns SELECT slots.name, 1, slots.champion, COALESCE((SELECT MAX(events.at) "
        "FROM events WHERE events.slot = slots.name AND events.kind IN ('promoted', 'rolled-back')"
        "), ''), 'it was the champion before reigns were recorded' FROM slots "
        "WHERE slots.champion IS NOT NULL"
    )
    op.create_table(
        "arena_entries",
        *columns(sa.Text, "slot"),
        *columns(sa.Integer, "reign", "number"),
        *columns(sa.Text, "bundle", "kind", "admitted"),
        *columns(sa.BigInteger, "since"),
        *columns(sa.Double, "worst", "best"),
        sa.Column("left", sa.Text),
        sa.Column("reason", sa.Text),
        sa.PrimaryKeyConstraint("slot", "reign", "bundle", name="pk_arena_entries"),
        sa.ForeignKeyConstraint(["bundle"], ["bundles.hash"], name="fk_arena_entries_bundle"),
    )
    op.create_table(
        "arena_days",
        *columns(sa.Text, "slot"),
        *columns(sa.Integer, "reign"),
        *columns(sa.Text, "bundle"),
        *columns(sa.BigInteger, "day"),
        *columns(sa.Integer, "bars"),
        *columns(sa.Double, "log_e", "log_loss", "relative", "ratio"),
        sa.PrimaryKeyConstraint("slot", "reign", "bundle", "day", name="pk_arena_days"),
    )
    make_append_only("reigns")
    make_append_only("arena_days")
