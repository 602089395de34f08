"""Alembic migrations of the registry's tables; `sweepd.deploy.registry.database` runs them.

To change a table: change its record (`sweepd.deploy.registry.tables` says where they are), add the
next revision under `versions/` (copy the newest one), and set `HEAD` in
`sweepd.deploy.registry.database`. A test compares the tables that all revisions make on each
database with the records. Never change a revision after a release.
"""
