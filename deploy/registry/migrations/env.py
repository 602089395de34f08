"""Alembic environment: runs the migrations on the connection of
`sweepd.deploy.registry.database`.
"""

from __future__ import annotations

from alembic import context

from sweepd.deploy.registry.models import VERSION_TABLE, Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
