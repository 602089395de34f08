"""Alembic environment: runs the migrations on the connection of
`sweepd.deploy.registry.database`.
"""

from __future__ import annotations

from alembic import context

from sweepd.deploy.registry.tables import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
with context.begin_transaction():
    context.run_migrations()
