"""All tables of development versions up to November 2026: bundles, slots, looks, live traders.

Revisions 0001 to 0003 were merged into this one; `deploy.registry.database` refuses their tables.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from deploy.registry.migrations.append_only import make_append_only

revision = "0004"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    _create_registry()
    _create_traders()
    for table in ("bundles", "versions", "events", "looks", "lane_bars", "trader_events"):
        make_append_only(table)


def _create_registry() -> None:
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
    op.create_table(
        "challengers",
        sa.Column("slot", sa.Text, nullable=False),
        sa.Column("bundle", sa.Text, nullable=False),
        sa.Column("at", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("slot", "bundle", name="pk_challengers"),
        sa.ForeignKeyConstraint(["bundle"], ["bundles.hash"], name="fk_challengers_bundle"),
    )


def _create_traders() -> None:
    op.create_table(
        "traders",
        sa.Column("slot", sa.Text, nullable=False),
        *(
            sa.Column("token", sa.Text, nullable=False),
            sa.Column("pid", sa.Integer, nullable=False),
        ),
        *(
            sa.Column(name, sa.Text, nullable=False)
            for name in ("host", "broker", "feed", "timeframe")
        ),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("started", "beat", "status")),
        sa.Column("account", sa.Text),
        sa.Column("last_bar", sa.BigInteger),
        sa.Column("halt", sa.Text),
        sa.Column("halt_sells", sa.Boolean, nullable=False),
        sa.Column("session", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("slot", name="pk_traders"),
    )
    op.create_table(
        "lanes",
        *(sa.Column(name, sa.Text, nullable=False) for name in ("slot", "name", "kind")),
        sa.Column("bundle", sa.Text),
        sa.Column("since", sa.BigInteger, nullable=False),
        sa.Column("retired", sa.Text),
        sa.Column("state", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("slot", "name", name="pk_lanes"),
        sa.ForeignKeyConstraint(["slot"], ["traders.slot"], name="fk_lanes_slot"),
        sa.ForeignKeyConstraint(["bundle"], ["bundles.hash"], name="fk_lanes_bundle"),
    )
    op.create_table(
        "lane_bars",
        *(sa.Column(name, sa.Text, nullable=False) for name in ("slot", "lane")),
        sa.Column("time", sa.BigInteger, nullable=False),
        sa.Column("bundle", sa.Text),
        *(
            sa.Column(name, sa.Double, nullable=False)
            for name in ("value", "cash", "fees", "notional")
        ),
        sa.Column("flow", sa.Double, nullable=False, server_default="0"),
        *(
            sa.Column(name, sa.Integer, nullable=False)
            for name in ("trades", "unfilled", "dropped")
        ),
        sa.Column("crossed", sa.Double, nullable=False),
        sa.Column("units", sa.JSON, nullable=False),
        sa.Column("action", sa.JSON),
        sa.PrimaryKeyConstraint("slot", "lane", "time", name="pk_lane_bars"),
    )
    op.create_table(
        "orders",
        *(sa.Column(name, sa.Text, nullable=False) for name in ("client_id", "slot", "lane")),
        sa.Column("decided", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("ticker", "side")),
        *(sa.Column(name, sa.Double, nullable=False) for name in ("units", "notional")),
        *(sa.Column(name, sa.Boolean, nullable=False) for name in ("whole", "restart_clock")),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("at", sa.BigInteger),
        *(
            sa.Column(name, sa.Double, nullable=False)
            for name in ("filled_units", "filled_notional", "fee", "price")
        ),
        sa.Column("reason", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("client_id", name="pk_orders"),
    )
    op.create_index("ix_orders_slot", "orders", ["slot"])
    op.create_table(
        "trader_events",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("slot", "at")),
        sa.Column("bar", sa.BigInteger),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("kind", "text")),
        sa.PrimaryKeyConstraint("id", name="pk_trader_events"),
    )
    op.create_index("ix_trader_events_slot", "trader_events", ["slot"])
