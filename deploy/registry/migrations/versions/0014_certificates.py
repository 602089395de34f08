"""Certificates of the days of traders."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from sweepd.deploy.registry.migrations.shared import columns, make_append_only

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "certificates",
        *columns(sa.Text, "slot"),
        *columns(sa.Integer, "number"),
        *columns(sa.BigInteger, "day"),
        *columns(sa.Text, "hash", "previous"),
        *columns(sa.JSON(none_as_null=True), "content"),
        *columns(sa.Text, "verdict"),
        sa.Column("signature", sa.JSON(none_as_null=True)),
        *columns(sa.Text, "at"),
        sa.PrimaryKeyConstraint("slot", "number", name="pk_certificates"),
        sa.UniqueConstraint("hash", name="uq_certificates_hash"),
    )
    make_append_only("certificates")
