"""Transfers into accounts and out of them, and which account of a venue a trader trades."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the columns."""
    op.add_column("lane_bars", sa.Column("flow", sa.Double, nullable=False, server_default="0"))
    op.add_column("traders", sa.Column("account", sa.Text))
