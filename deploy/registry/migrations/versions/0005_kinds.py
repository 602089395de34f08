"""A `kind` column: games are no longer told from markets by empty market fields.

Bundles get `kind`, and the market fields of games become NULL. The table `looks` becomes
`evaluations`; its games were marked by the prefix `panel of ` of the asset set and had their number
in the column `last`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from sweepd.deploy.registry.migrations.shared import (
    columns,
    drop_append_only,
    make_append_only,
    row_id,
)

revision = "0005"
down_revision = "0004"

PANEL = "panel of "


def upgrade() -> None:
    """Add the columns, and move the rows of `looks`."""
    _add_kind_of_bundles()
    _create_evaluations()
    same = "number, members_sha256, study, study_uid, trial, at"
    is_game = f"substr(asset_set, 1, {len(PANEL)}) = '{PANEL}'"
    op.execute(
        f"INSERT INTO evaluations (kind, subject, timeframe, first, last, {same}) "
        f"SELECT 'market', asset_set, timeframe, first, last, {same} FROM looks "
        f"WHERE NOT {is_game} ORDER BY id"
    )
    op.execute(
        f"INSERT INTO evaluations (kind, subject, games, {same}) "
        f"SELECT 'game', substr(asset_set, {len(PANEL) + 1}), last, {same} FROM looks "
        f"WHERE {is_game} ORDER BY id"
    )
    op.drop_table("looks")


def _add_kind_of_bundles() -> None:
    drop_append_only("bundles")
    op.add_column("bundles", sa.Column("kind", sa.Text, nullable=False, server_default="market"))
    op.execute("UPDATE bundles SET kind = 'game' WHERE timeframe = ''")
    # Columns are replaced by nullable ones one at a time: other tables reference `bundles`, so
    # SQLite cannot rebuild it in a transaction.
    for name, type_ in (
        ("timeframe", sa.Text()),
        ("tickers", sa.JSON()),
        ("last_seen", sa.BigInteger()),
    ):
        op.add_column("bundles", sa.Column(f"market_{name}", type_))
        op.execute(f"UPDATE bundles SET market_{name} = {name} WHERE kind = 'market'")
        op.drop_column("bundles", name)
        op.execute(f"ALTER TABLE bundles RENAME COLUMN market_{name} TO {name}")
    make_append_only("bundles")


def _create_evaluations() -> None:
    op.create_table(
        "evaluations",
        row_id(),
        *columns(sa.Text, "kind", "subject"),
        sa.Column("timeframe", sa.Text),
        sa.Column("first", sa.BigInteger),
        sa.Column("last", sa.BigInteger),
        sa.Column("games", sa.Integer),
        *columns(sa.Integer, "number"),
        *columns(sa.Text, "members_sha256", "study", "study_uid"),
        *columns(sa.Integer, "trial"),
        *columns(sa.Text, "at"),
        sa.PrimaryKeyConstraint("id", name="pk_evaluations"),
    )
    op.create_index("ix_evaluations_subject", "evaluations", ["subject"])
    make_append_only("evaluations")
