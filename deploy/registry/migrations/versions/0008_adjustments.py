"""Changes of units (splits, dividends), and returns that no record explains."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from sweepd.deploy.registry.migrations.shared import columns, make_append_only, row_id

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Create the table of adjustments; add a column to the comparison with the simulator."""
    op.create_table(
        "trader_adjustments",
        row_id(),
        *columns(sa.Text, "slot", "at", "ticker"),
        *columns(sa.BigInteger, "time"),
        *columns(sa.Double, "price", "volume"),
        sa.PrimaryKeyConstraint("id", name="pk_trader_adjustments"),
    )
    op.create_index("ix_trader_adjustments_slot", "trader_adjustments", ["slot"])
    make_append_only("trader_adjustments")
    op.add_column(
        "parity_days", sa.Column("unexplained", sa.Double, nullable=False, server_default="0")
    )
