"""The newest comparison of live accounts with the simulator, day by day."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from sweepd.deploy.registry.migrations.shared import columns

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "parity_days",
        *columns(sa.Text, "slot"),
        *columns(sa.BigInteger, "day"),
        *columns(sa.Integer, "bars", "decisions"),
        *columns(sa.Double, "action", "growth", "simulated", "bar"),
        *columns(sa.Text, "at"),
        sa.PrimaryKeyConstraint("slot", "day", name="pk_parity_days"),
    )
