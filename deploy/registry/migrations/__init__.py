"""The history of the registry's tables, as Alembic migrations; `deploy.registry.database` runs them when a registry is opened.

To change the tables: change `deploy.registry.models`, add the next revision under `versions/` (copy the newest one), and set
`HEAD` in `deploy.registry.database`. A test compares what all revisions make, on each database, with the models. A revision that
was released is never changed.
"""
