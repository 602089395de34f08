"""The baseline: all tables of the registry and of the live traders."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from sweepd.deploy.registry.migrations.shared import columns, make_append_only, row_id

revision = "0008"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    _create_bundles_and_slots()
    _create_history()
    _create_traders()
    _create_trader_records()
    for table in (
        "bundles",
        "versions",
        "events",
        "evaluations",
        "lane_bars",
        "trader_events",
        "trader_bars",
        "trader_adjustments",
    ):
        make_append_only(table)


def _create_bundles_and_slots() -> None:
    op.create_table(
        "bundles",
        *columns(sa.Text, "hash", "members_sha256", "environment", "study", "study_uid"),
        *columns(sa.Integer, "trial"),
        *columns(sa.Text, "data_dir", "at"),
        sa.Column("kind", sa.Text, nullable=False, server_default="market"),
        sa.Column("timeframe", sa.Text),
        sa.Column("tickers", sa.JSON),
        sa.Column("last_seen", sa.BigInteger),
        sa.PrimaryKeyConstraint("hash", name="pk_bundles"),
    )
    op.create_index("ix_bundles_members_sha256", "bundles", ["members_sha256"])
    op.create_table(
        "slots",
        *columns(sa.Text, "name"),
        sa.Column("champion", sa.Text),
        sa.Column("previous", sa.Text),
        *columns(sa.Integer, "revision"),
        sa.PrimaryKeyConstraint("name", name="pk_slots"),
        sa.ForeignKeyConstraint(["champion"], ["bundles.hash"], name="fk_slots_champion"),
        sa.ForeignKeyConstraint(["previous"], ["bundles.hash"], name="fk_slots_previous"),
    )
    op.create_table(
        "challengers",
        *columns(sa.Text, "slot", "bundle", "at"),
        sa.PrimaryKeyConstraint("slot", "bundle", name="pk_challengers"),
        sa.ForeignKeyConstraint(["bundle"], ["bundles.hash"], name="fk_challengers_bundle"),
    )


def _create_history() -> None:
    op.create_table(
        "versions",
        *columns(sa.Text, "slot"),
        *columns(sa.Integer, "number"),
        *columns(sa.Text, "bundle", "at"),
        sa.PrimaryKeyConstraint("slot", "number", name="pk_versions"),
        sa.UniqueConstraint("slot", "bundle", name="uq_versions_slot"),
        sa.ForeignKeyConstraint(["bundle"], ["bundles.hash"], name="fk_versions_bundle"),
    )
    op.create_table(
        "events",
        row_id(),
        *columns(sa.Text, "slot", "kind", "at"),
        sa.Column("bundle", sa.Text),
        sa.Column("previous", sa.Text),
        *columns(sa.Text, "reason"),
        sa.Column("report", sa.JSON),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sa.ForeignKeyConstraint(["bundle"], ["bundles.hash"], name="fk_events_bundle"),
        sa.ForeignKeyConstraint(["previous"], ["bundles.hash"], name="fk_events_previous"),
    )
    op.create_index("ix_events_slot", "events", ["slot"])
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


def _create_traders() -> None:
    op.create_table(
        "traders",
        *columns(sa.Text, "slot", "token"),
        *columns(sa.Integer, "pid"),
        *columns(sa.Text, "host", "broker", "feed", "timeframe", "started", "beat", "status"),
        sa.Column("account", sa.Text),
        sa.Column("last_bar", sa.BigInteger),
        sa.Column("halt", sa.Text),
        *columns(sa.Boolean, "halt_sells"),
        *columns(sa.JSON, "session"),
        sa.PrimaryKeyConstraint("slot", name="pk_traders"),
    )
    op.create_table(
        "lanes",
        *columns(sa.Text, "slot", "name", "kind"),
        sa.Column("bundle", sa.Text),
        *columns(sa.BigInteger, "since"),
        sa.Column("retired", sa.Text),
        *columns(sa.JSON, "state"),
        sa.PrimaryKeyConstraint("slot", "name", name="pk_lanes"),
        sa.ForeignKeyConstraint(["slot"], ["traders.slot"], name="fk_lanes_slot"),
        sa.ForeignKeyConstraint(["bundle"], ["bundles.hash"], name="fk_lanes_bundle"),
    )
    op.create_table(
        "lane_bars",
        *columns(sa.Text, "slot", "lane"),
        *columns(sa.BigInteger, "time"),
        sa.Column("bundle", sa.Text),
        *columns(sa.Double, "value", "cash", "fees", "notional"),
        sa.Column("flow", sa.Double, nullable=False, server_default="0"),
        *columns(sa.Integer, "trades", "unfilled", "dropped"),
        *columns(sa.Double, "crossed"),
        *columns(sa.JSON, "units"),
        sa.Column("action", sa.JSON),
        sa.PrimaryKeyConstraint("slot", "lane", "time", name="pk_lane_bars"),
    )
    op.create_table(
        "orders",
        *columns(sa.Text, "client_id", "slot", "lane"),
        *columns(sa.BigInteger, "decided"),
        *columns(sa.Text, "ticker", "side"),
        *columns(sa.Double, "units", "notional"),
        *columns(sa.Boolean, "whole", "restart_clock"),
        *columns(sa.Text, "status"),
        sa.Column("at", sa.BigInteger),
        *columns(sa.Double, "filled_units", "filled_notional", "fee", "price"),
        *columns(sa.Text, "reason"),
        sa.PrimaryKeyConstraint("client_id", name="pk_orders"),
    )
    op.create_index("ix_orders_slot", "orders", ["slot"])
    op.create_index("ix_orders_newest", "orders", ["slot", "lane", "decided", "client_id"])


def _create_trader_records() -> None:
    op.create_table(
        "trader_events",
        row_id(),
        *columns(sa.Text, "slot", "at"),
        sa.Column("bar", sa.BigInteger),
        *columns(sa.Text, "kind", "text"),
        sa.PrimaryKeyConstraint("id", name="pk_trader_events"),
    )
    op.create_index("ix_trader_events_slot", "trader_events", ["slot"])
    op.create_table(
        "trader_bars",
        *columns(sa.Text, "slot", "ticker"),
        *columns(sa.BigInteger, "time"),
        *columns(sa.Double, "open", "high", "low", "close", "volume"),
        *columns(sa.Boolean, "hole"),
        sa.PrimaryKeyConstraint("slot", "ticker", "time", name="pk_trader_bars"),
    )
    op.create_index("ix_trader_bars_time", "trader_bars", ["slot", "time"])
    op.create_table(
        "trader_adjustments",
        row_id(),
        *columns(sa.Text, "slot", "at", "ticker"),
        *columns(sa.BigInteger, "time"),
        *columns(sa.Double, "price", "volume"),
        sa.PrimaryKeyConstraint("id", name="pk_trader_adjustments"),
    )
    op.create_index("ix_trader_adjustments_slot", "trader_adjustments", ["slot"])
    op.create_table(
        "parity_days",
        *columns(sa.Text, "slot"),
        *columns(sa.BigInteger, "day"),
        *columns(sa.Integer, "bars", "decisions"),
        *columns(sa.Double, "action", "growth", "simulated", "bar"),
        *columns(sa.Text, "at"),
        sa.Column("unexplained", sa.Double, nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("slot", "day", name="pk_parity_days"),
    )
