"""Run by Alembic: the migrations, in the transaction of the connection that `deploy.registry.database` hands over."""

from __future__ import annotations

from alembic import context

from deploy.registry.models import VERSION_TABLE, Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
