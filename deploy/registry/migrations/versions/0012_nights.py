"""Nights of slots and their steps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from sweepd.deploy.registry.migrations.shared import columns, make_append_only

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "nights",
        *columns(sa.Text, "slot", "night", "token"),
        *columns(sa.JSON(none_as_null=True), "config"),
        *columns(sa.Text, "started"),
        *columns(sa.Integer, "failures"),
        sa.Column("problem", sa.Text),
        sa.Column("ended", sa.Text),
        sa.Column("outcome", sa.Text),
        sa.PrimaryKeyConstraint("slot", "night", name="pk_nights"),
    )
    op.create_table(
        "night_steps",
        *columns(sa.Text, "slot", "night", "step", "at"),
        *columns(sa.Double, "seconds"),
        *columns(sa.Text, "outcome"),
        *columns(sa.JSON(none_as_null=True), "facts"),
        sa.PrimaryKeyConstraint("slot", "night", "step", name="pk_night_steps"),
        sa.ForeignKeyConstraint(
            ["slot", "night"], ["nights.slot", "nights.night"], name="fk_night_steps_slot"
        ),
    )
    make_append_only("night_steps")
