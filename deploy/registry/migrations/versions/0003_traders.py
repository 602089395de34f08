"""The live traders' tables: how far each is, its lanes with their bars, its orders, and what happened to it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from deploy.registry.migrations.append_only import make_append_only

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make them."""
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
    for table in ("lane_bars", "trader_events"):
        make_append_only(table)
