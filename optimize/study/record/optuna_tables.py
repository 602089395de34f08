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

    def put(self, session: Session, owner: int, values: Mapping[str, Any]) -> None:
        """Write values within the caller's transaction, in place of earlier ones."""
        if not values:
            return
        theirs = (self.owner == owner) & self.table.c.key.in_(list(values))
        session.execute(self.table.delete().where(theirs))
        rows = [
            {self.owner.name: owner, "key": key, "value_json": json.dumps(value)}
            for key, value in values.items()
        ]
        session.execute(sa.insert(self.table), rows)

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
) -> None:
    """Write a study within the caller's transaction.

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
    study_attributes.put(session, int(row.study_id), attributes)
    # As `optuna.Study.set_metric_names` does; plots and optuna-dashboard show the names.
    names = json.dumps([value.name for value in values])
    session.add(
        models.StudySystemAttributeModel(
            study_id=row.study_id, key=_SYSTEM_ATTR_METRIC_NAMES, value_json=names
        )
    )


def add_trial(session: Session, study_id: int) -> int:
    """Write a RUNNING trial with the next number within the caller's transaction.

    The caller has locked the study.

    Returns:
        The trial's row id.
    """
    trial = models.TrialModel(
        study_id=study_id, number=None, state=TrialState.RUNNING, datetime_start=datetime.now()
    )
    session.add(trial)
    session.flush()
    trial.number = trial.count_past_trials(session)
    session.flush()
    return int(trial.trial_id)


def add_params(
    session: Session, trial_id: int, params: Mapping[str, tuple[float, BaseDistribution]]
) -> None:
    """Write parameters of a trial within the caller's transaction, in place of earlier ones.

    Args:
        session: the transaction.
        trial_id: row id of the trial.
        params: by name, the value as Optuna stores it, and the range.
    """
    row = trial_params.c
    theirs = (row.trial_id == trial_id) & row.param_name.in_(list(params))
    session.execute(trial_params.delete().where(theirs))
    rows = [
        {
            "trial_id": trial_id,
            "param_name": name,
            "param_value": value,
            "distribution_json": distribution_to_json(kind),
        }
        for name, (value, kind) in params.items()
    ]
    session.execute(sa.insert(trial_params), rows)


def add_rung(session: Session, trial_id: int, rung: int, value: float) -> None:
    """Write the value of a rung within the caller's transaction, in place of an earlier one."""
    row = rung_values.c
    session.execute(rung_values.delete().where(row.trial_id == trial_id, row.step == rung))
    stored, kind = models.TrialIntermediateValueModel.intermediate_value_to_stored_repr(value)
    session.execute(
        rung_values.insert().values(
            trial_id=trial_id, step=rung, intermediate_value=stored, intermediate_value_type=kind
        )
    )


def end_trial(session: Session, trial_id: int, state: TrialState, values: Sequence[float]) -> None:
    """Write the end of a trial, and its values, within the caller's transaction."""
    for index, value in enumerate(values):
        stored, kind = models.TrialValueModel.value_to_stored_repr(value)
        session.execute(
            trial_values.insert().values(
                trial_id=trial_id, objective=index, value=stored, value_type=kind
            )
        )
    session.execute(
        trials.update()
        .where(trials.c.trial_id == trial_id)
        .values(state=state, datetime_complete=stored_now())
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
