"""Optuna's tables: the only module that imports them.

They are private, but Optuna offers no conditional change of a trial's state, no transaction over
several rows, and no reading of some columns only.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import sqlalchemy as sa
from optuna.distributions import BaseDistribution, distribution_to_json, json_to_distribution
from optuna.storages._rdb import models
from optuna.study import StudyDirection
from optuna.study.study import _SYSTEM_ATTR_METRIC_NAMES
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from sweepd.optimize.study.record.values import Value

CHUNK = 500  # trials that are read together: a query may have some thousand parameters
REVISION = "v3.2.0.a"  # of these tables, as Optuna writes it into `alembic_version`

studies = cast(sa.Table, models.StudyModel.__table__)
trials = cast(sa.Table, models.TrialModel.__table__)
trial_params = cast(sa.Table, models.TrialParamModel.__table__)
trial_values = cast(sa.Table, models.TrialValueModel.__table__)
rung_values = cast(sa.Table, models.TrialIntermediateValueModel.__table__)


def changed_rows(session: Session, statement: sa.Update | sa.Delete) -> int:
    """Execute a statement and return the number of rows that it changed."""
    return cast(sa.CursorResult[Any], session.execute(statement)).rowcount


@dataclass(frozen=True)
class Attributes:
    """Attributes of studies, or of trials; their values are JSON.

    Attributes:
        table: the table.
        owner: its column with the row id of the study or the trial.
    """

    table: sa.Table
    owner: sa.Column[int]

    def get(self, session: Session, owner: int, key: str) -> Any:
        """Return a value, None if it is not set."""
        table = self.table
        query = sa.select(table.c.value_json).where(self.owner == owner, table.c.key == key)
        text = session.execute(query).scalar_one_or_none()
        return None if text is None else json.loads(text)

    def put(self, session: Session, values: Mapping[int, Mapping[str, Any]]) -> None:
        """Write values by row id within the caller's transaction, in place of earlier ones."""
        rows = [
            {self.owner.name: owner, "key": key, "value_json": json.dumps(value)}
            for owner, own in values.items()
            for key, value in own.items()
        ]
        _replace(session, self.table, (self.owner.name, "key"), rows)

    def delete(self, session: Session, owner: int, key: str) -> bool:
        """Delete a value within the caller's transaction. Returns False if it was not set."""
        wanted = self.table.delete().where(self.owner == owner, self.table.c.key == key)
        return changed_rows(session, wanted) > 0

    def of(
        self, session: Session, owners: Sequence[int], keys: sa.ColumnElement[bool] | None = None
    ) -> dict[int, dict[str, Any]]:
        """Return the values of several studies or trials, by row id.

        Args:
            session: the transaction.
            owners: row ids; not more than a query may have parameters.
            keys: condition on the column `table.c.key`; None for all values.
        """
        table = self.table
        query = sa.select(self.owner, table.c.key, table.c.value_json)
        found: dict[int, dict[str, Any]] = {owner: {} for owner in owners}
        query = query.where(self.owner.in_(owners), sa.true() if keys is None else keys)
        for owner, key, text in session.execute(query):
            found[owner][key] = json.loads(text)
        return found


def _replace(
    session: Session, table: sa.Table, keys: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Write rows in place of those that equal them in the columns `keys`."""
    if rows:
        session.execute(_upsert(session.get_bind().dialect.name, table, tuple(keys)), rows)


@functools.cache
def _upsert(dialect: str, table: sa.Table, keys: Sequence[str]) -> sa.Insert:
    """Return the statement that inserts a row, or updates the one that equals it in `keys`."""
    insert = sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)
    own = {c.name for c in table.primary_key}
    new = {c.name: insert.excluded[c.name] for c in table.c if c.name not in own}
    return insert.on_conflict_do_update(index_elements=keys, set_=new)


def _attributes(model: Any, owner: str) -> Attributes:
    return Attributes(model.__table__, model.__table__.c[owner])


study_attributes = _attributes(models.StudyUserAttributeModel, "study_id")
trial_attributes = _attributes(models.TrialUserAttributeModel, "trial_id")
trial_system_attributes = _attributes(models.TrialSystemAttributeModel, "trial_id")


def has_known_tables(session: Session) -> bool:
    """Return whether Optuna's tables are of the revision that is declared here."""
    query = sa.text("SELECT version_num FROM alembic_version")
    return session.execute(query).scalars().all() == [REVISION]


def study_ids(session: Session) -> dict[str, int]:
    """Return the row ids of all studies by name, the oldest first."""
    query = sa.select(studies.c.study_name, studies.c.study_id).order_by(studies.c.study_id)
    return {row.study_name: row.study_id for row in session.execute(query)}


def has_study(session: Session, study_id: int) -> bool:
    """Return whether there is a study with this row id."""
    query = sa.select(studies.c.study_id).where(studies.c.study_id == study_id)
    return session.execute(query).scalar_one_or_none() is not None


def add_study(
    session: Session, name: str, values: Sequence[Value], attributes: Mapping[str, Any]
) -> int:
    """Write a study within the caller's transaction, and return its row id.

    Args:
        session: the transaction.
        name: name of the study.
        values: what it optimises.
        attributes: user attributes.

    Raises:
        sqlalchemy.exc.IntegrityError: there is a study of that name.
    """
    directions = [
        models.StudyDirectionModel(
            objective=index, direction=StudyDirection[value.direction.upper()]
        )
        for index, value in enumerate(values)
    ]
    row = models.StudyModel(study_name=name, directions=directions)
    session.add(row)
    session.flush()
    study_attributes.put(session, {int(row.study_id): attributes})
    # As `optuna.Study.set_metric_names` does; plots and optuna-dashboard show the names.
    names = json.dumps([value.name for value in values])
    session.add(
        models.StudySystemAttributeModel(
            study_id=row.study_id, key=_SYSTEM_ATTR_METRIC_NAMES, value_json=names
        )
    )
    return int(row.study_id)


def add_waiting(session: Session, study_id: int, params: Sequence[Mapping[str, Any]]) -> None:
    """Write the first trials of a new study, WAITING, within the caller's transaction.

    Args:
        session: the transaction.
        study_id: row id of the study, which has no trial.
        params: per trial, the parameters that it will use; the sampler draws the others.
    """
    if not params:
        return
    insert = sa.insert(trials).returning(trials.c.trial_id, sort_by_parameter_order=True)
    rows = [
        {"study_id": study_id, "state": TrialState.WAITING, "number": number}
        for number in range(len(params))
    ]
    added = session.execute(insert, rows).scalars()
    # As `optuna.Study.enqueue_trial` does.
    trial_system_attributes.put(
        session, {one: {"fixed_params": own} for one, own in zip(added, params, strict=True)}
    )


def add_trials(session: Session, study_id: int, numbers: Sequence[int]) -> list[int]:
    """Write RUNNING trials within the caller's transaction.

    Args:
        session: the transaction, which has locked the study.
        study_id: row id of the study.
        numbers: of the trials, beginning with how many the study has, as Optuna counts them.

    Returns:
        The trials' row ids, in the order of their numbers.
    """
    new = {"study_id": study_id, "state": TrialState.RUNNING, "datetime_start": stored_now()}
    insert = sa.insert(trials).returning(trials.c.trial_id, sort_by_parameter_order=True)
    rows = [{**new, "number": number} for number in numbers]
    return list(session.execute(insert, rows).scalars())


def add_params(
    session: Session, params: Mapping[int, Mapping[str, tuple[float, BaseDistribution]]]
) -> None:
    """Write parameters of trials within the caller's transaction, in place of earlier ones.

    Args:
        session: the transaction.
        params: by row id and name, the value as Optuna stores it, and the range.
    """
    rows = [
        {
            "trial_id": trial_id,
            "param_name": name,
            "param_value": value,
            "distribution_json": distribution_to_json(kind),
        }
        for trial_id, own in params.items()
        for name, (value, kind) in own.items()
    ]
    _replace(session, trial_params, ("trial_id", "param_name"), rows)


def add_rungs(session: Session, reports: Mapping[int, tuple[int, float]]) -> None:
    """Write a rung and its value by row id within the caller's transaction.

    An earlier value of the rung is replaced.
    """
    stored = models.TrialIntermediateValueModel.intermediate_value_to_stored_repr
    names = ("intermediate_value", "intermediate_value_type")
    rows = [
        {"trial_id": trial_id, "step": rung, **dict(zip(names, stored(value), strict=True))}
        for trial_id, (rung, value) in reports.items()
    ]
    _replace(session, rung_values, ("trial_id", "step"), rows)


def end_trials(
    session: Session, ends: Mapping[int, tuple[TrialState, Sequence[float] | None]]
) -> None:
    """Write state and values of trials that end, by row id, within the caller's transaction.

    Values of None are the last report of a PRUNED trial, and none of another one.
    """
    reports = rungs_of(session, [own for own, (_, values) in ends.items() if values is None])
    rows = []
    for trial_id, (state, values) in ends.items():
        own = values or ()
        if values is None and state == TrialState.PRUNED and (known := reports[trial_id]):
            own = (known[max(known)],)
        for index, value in enumerate(own):
            stored, kind = models.TrialValueModel.value_to_stored_repr(value)
            rows.append(
                {"trial_id": trial_id, "objective": index, "value": stored, "value_type": kind}
            )
    if rows:
        session.execute(sa.insert(trial_values), rows)
    session.execute(
        trials.update()
        .where(trials.c.trial_id == sa.bindparam("own"))
        .values(state=sa.bindparam("new"), datetime_complete=stored_now()),
        [{"own": trial_id, "new": state} for trial_id, (state, _) in ends.items()],
    )


def stored_now() -> datetime:
    """Return the present time as Optuna stores it: UTC without a zone."""
    return datetime.now(UTC).replace(tzinfo=None)


def values_of(session: Session, trial_ids: Sequence[int]) -> dict[int, tuple[float, ...]]:
    """Return the values of these trials in the order of the study's directions, by row id."""
    row, stored = trial_values.c, models.TrialValueModel.stored_repr_to_value
    query = (
        sa.select(row.trial_id, row.value, row.value_type)
        .where(row.trial_id.in_(trial_ids))
        .order_by(row.objective)
    )
    found: dict[int, tuple[float, ...]] = dict.fromkeys(trial_ids, ())
    for trial_id, value, kind in session.execute(query):
        found[trial_id] += (stored(value, kind),)
    return found


def rungs_of(session: Session, trial_ids: Sequence[int]) -> dict[int, dict[int, float]]:
    """Return the reported values of these trials, by row id and rung."""
    row = rung_values.c
    stored = models.TrialIntermediateValueModel.stored_repr_to_intermediate_value
    query = (
        sa.select(row.trial_id, row.step, row.intermediate_value, row.intermediate_value_type)
        .where(row.trial_id.in_(trial_ids))
        .order_by(row.step)
    )
    found: dict[int, dict[int, float]] = {trial_id: {} for trial_id in trial_ids}
    for trial_id, step, value, kind in session.execute(query):
        found[trial_id][step] = stored(value, kind)
    return found


def params_of(
    session: Session, trial_ids: Sequence[int]
) -> dict[int, dict[str, tuple[Any, BaseDistribution]]]:
    """Return the sampled parameters of these trials with their ranges, by row id and name."""
    row = trial_params.c
    query = (
        sa.select(row.trial_id, row.param_name, row.param_value, row.distribution_json)
        .where(row.trial_id.in_(trial_ids))
        .order_by(row.param_id)
    )
    found: dict[int, dict[str, tuple[Any, BaseDistribution]]] = {one: {} for one in trial_ids}
    for trial_id, name, value, text in session.execute(query):
        kind = _distribution(text)
        found[trial_id][name] = (kind.to_external_repr(value), kind)
    return found


def trials_of(
    session: Session, study_id: int, wanted: sa.ColumnElement[bool]
) -> Iterator[FrozenTrial]:
    """Read trials of a study as Optuna has them, in the order of their row ids.

    Args:
        session: the transaction.
        study_id: row id of the study.
        wanted: condition on the columns of `trials`.
    """
    query = sa.select(trials).where(trials.c.study_id == study_id, wanted)
    found = session.execute(query.order_by(trials.c.trial_id)).all()
    for begin in range(0, len(found), CHUNK):
        part = found[begin : begin + CHUNK]
        ids = [row.trial_id for row in part]
        values, rungs = values_of(session, ids), rungs_of(session, ids)
        params = params_of(session, ids)
        user, system = (
            kind.of(session, ids) for kind in (trial_attributes, trial_system_attributes)
        )
        for row in part:
            own = row.trial_id
            yield FrozenTrial(
                number=row.number,
                state=row.state,
                value=None,
                values=list(values[own]) or None,
                datetime_start=_local(row.datetime_start),
                datetime_complete=_local(row.datetime_complete),
                params={name: value for name, (value, _) in params[own].items()},
                distributions={name: kind for name, (_, kind) in params[own].items()},
                user_attrs=user[own],
                system_attrs=system[own],
                intermediate_values=rungs[own],
                trial_id=own,
            )


def _local(moment: datetime | None) -> datetime | None:
    """Return a stored time as Optuna shows it: local, without a zone."""
    return None if moment is None else moment.replace(tzinfo=UTC).astimezone().replace(tzinfo=None)


@functools.lru_cache(maxsize=4096)
def _distribution(text: str) -> BaseDistribution:
    return json_to_distribution(text)
