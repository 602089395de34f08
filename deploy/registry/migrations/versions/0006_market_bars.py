"""The bars that live traders received, and an index for the newest orders of an account.

Candles, and the recomputation of decisions, need the bars of feeds that keep none.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from sweepd.deploy.registry.migrations.shared import columns, make_append_only

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Create the table and the index."""
    op.create_table(
        "trader_bars",
        *columns(sa.Text, "slot", "ticker"),
        *columns(sa.BigInteger, "time"),
        *columns(sa.Double, "open", "high", "low", "close", "volume"),
        *columns(sa.Boolean, "hole"),
        sa.PrimaryKeyConstraint("slot", "ticker", "time", name="pk_trader_bars"),
    )
    op.create_index("ix_trader_bars_time", "trader_bars", ["slot", "time"])
    make_append_only("trader_bars")
    op.create_index("ix_orders_newest", "orders", ["slot", "lane", "decided", "client_id"])
