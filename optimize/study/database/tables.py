"""Tables of sweepd in the study's database, in addition to Optuna's."""

from __future__ import annotations

import sqlalchemy as sa

from sweepd.optimize.study.record.optuna_tables import studies, trials

_metadata = sa.MetaData()
attempts = sa.Table(
    "sweepd_attempts",
    _metadata,
    sa.Column("trial_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("token", sa.String(64), nullable=False),  # "" while no worker holds the trial
    sa.Column("worker", sa.String(64), nullable=False),
    # Seconds since the epoch by the database's clock; 0.0 between the end of an attempt and the
    # first heartbeat of the next.
    sa.Column("beat", sa.Float, nullable=False),
    sa.Column("tries", sa.Integer, nullable=False),  # unused
    sa.Column("rung", sa.Integer, nullable=False),  # rungs reached so far
)
workers = sa.Table(
    "sweepd_workers",
    _metadata,
    sa.Column("worker", sa.String(64), primary_key=True),
    sa.Column("study_id", sa.Integer, nullable=False, index=True),
    sa.Column("host", sa.String(256), nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("started", sa.String(128), nullable=False),  # `processes.identity` of the process
    sa.Column("alongside", sa.Boolean, nullable=False),
    sa.Column("state", sa.String(32), nullable=False),
    sa.Column("beat", sa.Float, nullable=False),
    sa.Column("info", sa.Text, nullable=False),  # JSON: device, num_envs, steps_per_second
)
RELEASED = {"token": "", "worker": "", "beat": 0.0}  # values of an attempt that has ended

# SQLite reuses the ids of deleted rows: a new trial would inherit the attempt of a deleted one, a
# new study its workers. Triggers also run if another program deletes: the optuna command,
# optuna-dashboard, sqlite3.
_SQLITE_TRIGGERS = tuple(
    f"CREATE TRIGGER IF NOT EXISTS {ours.name}_forget AFTER DELETE ON {theirs.name} "
    f"BEGIN DELETE FROM {ours.name} WHERE {key} = OLD.{key}; END"
    for ours, theirs, key in ((attempts, trials, "trial_id"), (workers, studies, "study_id"))
)


def make_tables(engine: sa.Engine, *, tidy: bool = True) -> None:
    """Create missing tables.

    Args:
        engine: the database.
        tidy: whether to delete the rows of deleted trials and studies too.
    """
    _metadata.create_all(engine)
    if not tidy:
        return
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            for statement in _SQLITE_TRIGGERS:
                connection.exec_driver_sql(statement)
        delete_orphans(connection)


def delete_orphans(connection: sa.Connection) -> None:
    """Delete the rows of deleted trials and studies.

    On SQLite the triggers do so, except for trials that were deleted before the triggers existed.
    """
    for ours, key, theirs in (
        (attempts, attempts.c.trial_id, trials.c.trial_id),
        (workers, workers.c.study_id, studies.c.study_id),
    ):
        connection.execute(ours.delete().where(key.not_in(sa.select(theirs))))
