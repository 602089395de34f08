"""A table of challengers, which until now only the events told; and no `schema_version` any more, which the revision
replaces.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Take the challengers from the events: those that were not promoted since."""
    op.create_table(
        "challengers",
        sa.Column("slot", sa.Text, nullable=False),
        sa.Column("bundle", sa.Text, nullable=False),
        sa.Column("at", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("slot", "bundle", name="pk_challengers"),
        sa.ForeignKeyConstraint(["bundle"], ["bundles.hash"], name="fk_challengers_bundle"),
    )
    op.execute(
        "INSERT INTO challengers (slot, bundle, at) SELECT kept.slot, kept.bundle, MAX(kept.at) FROM events AS kept "
        "WHERE kept.kind = 'challenger' AND NOT EXISTS (SELECT 1 FROM events AS later WHERE later.kind = 'promoted' "
        "AND later.slot = kept.slot AND later.bundle = kept.bundle AND later.id > kept.id) "
        "GROUP BY kept.slot, kept.bundle"
    )
    op.drop_table("schema_version")
