"""The first tables: bundles, slots, their versions, events and looks.

Registries from before the migrations have exactly these, with a row in `schema_version` and no revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from deploy.registry.migrations.append_only import make_append_only

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make them."""
    op.create_table(
        "schema_version",
        sa.Column("version", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("version", name="pk_schema_version"),
    )
    op.create_table(
        "bundles",
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("members_sha256", sa.Text, nullable=False),
        sa.Column("environment", sa.Text, nullable=False),
        sa.Column("timeframe", sa.Text, nullable=False),
        sa.Column("tickers", sa.JSON, nullable=False),
        sa.Column("study", sa.Text, nullable=False),
        sa.Column("study_uid", sa.Text, nullable=False),
        sa.Column("trial", sa.Integer, nullable=False),
        sa.Column("last_seen", sa.BigInteger, nullable=False),
        sa.Column("data_dir", sa.Text, nullable=False),
        sa.Column("at", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_bundles"),
    )
    op.create_index("ix_bundles_members_sha256", "bundles", ["members_sha256"])
    op.create_table(
        "slots",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("champion", sa.Text),
        sa.Column("previous", sa.Text),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_slots"),
        sa.ForeignKeyConstraint(["champion"], ["bundles.hash"], name="fk_slots_champion"),
        sa.ForeignKeyConstraint(["previous"], ["bundles.hash"], name="fk_slots_previous"),
    )
    op.create_table(
        "versions",
        sa.Column("slot", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("bundle", sa.Text, nullable=False),
        sa.Column("at", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("slot", "number", name="pk_versions"),
        sa.UniqueConstraint("slot", "bundle", name="uq_versions_slot"),
        sa.ForeignKeyConstraint(["bundle"], ["bundles.hash"], name="fk_versions_bundle"),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=True),
        sa.Column("slot", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("at", sa.Text, nullable=False),
        sa.Column("bundle", sa.Text),
        sa.Column("previous", sa.Text),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("report", sa.JSON),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sa.ForeignKeyConstraint(["bundle"], ["bundles.hash"], name="fk_events_bundle"),
        sa.ForeignKeyConstraint(["previous"], ["bundles.hash"], name="fk_events_previous"),
    )
    op.create_index("ix_events_slot", "events", ["slot"])
    op.create_table(
        "looks",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=True),
        sa.Column("asset_set", sa.Text, nullable=False),
        sa.Column("timeframe", sa.Text, nullable=False),
        sa.Column("first", sa.BigInteger, nullable=False),
        sa.Column("last", sa.BigInteger, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("members_sha256", sa.Text, nullable=False),
        sa.Column("study", sa.Text, nullable=False),
        sa.Column("study_uid", sa.Text, nullable=False),
        sa.Column("trial", sa.Integer, nullable=False),
        sa.Column("at", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_looks"),
    )
    op.create_index("ix_looks_asset_set", "looks", ["asset_set"])
    for table in ("bundles", "versions", "events", "looks"):
        make_append_only(table)
