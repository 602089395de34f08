"""The trials of a study as rows of what plots and tables need.

`StudyReader.trials` reads everything that is recorded about a trial, which takes many seconds for
thousands of trials. Here only the needed columns are selected, and a finished trial is read once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.orm import Session

from sweepd.optimize.study.record.database import StudyDatabase
from sweepd.optimize.study.record.keys import BLOCKS_KEY, is_ours, rung_key
from sweepd.optimize.study.record.optuna_tables import (
    CHUNK,
    params_of,
    rungs_of,
    trial_attributes,
    trial_system_attributes,
    trials,
    values_of,
)
from sweepd.optimize.study.record.trials import TrialRecord, record_keys
from sweepd.optimize.study.record.values import (
    CONSTRAINT_PREFIX,
    constraint_attributes,
    recorded_violations,
    total_violation,
)

FINISHED = ("COMPLETE", "PRUNED", "FAIL")
# Every trial that a worker finished has at least one of them.
_BLOCKS = BLOCKS_KEY.partition("%")[2]
_KEYS = sa.or_(
    trial_attributes.table.c.key.in_(
        record_keys("seed", "scores", "seconds", "reason", "members", "evaluations")
    ),
    trial_attributes.table.c.key.like(BLOCKS_KEY),
)
_CONSTRAINTS = trial_system_attributes.table.c.key.startswith(CONSTRAINT_PREFIX)


@dataclass(frozen=True)
class TrialRow:
    """A trial.

    Attributes:
        state: as in Optuna, such as "COMPLETE".
        value: objective of a complete trial, its first value.
        ours: False for a trial that another program finished.
        started, ended: seconds since the epoch.
        seconds: training time, all attempts together.
        scores: score per member (fold or seed) in the last evaluation.
        rungs: value of every rung that was reached.
        blocks: what is kept of the episodes of some rungs, see `blocks_key`.
        folder: of the trial's files, in the study's folder.
        params: sampled parameters; a range that is switched off is not among them.
        further: values of a complete trial after the first.
        violations: by the text of a constraint, see `Constraint.violation`.
        evaluations: (environment steps per member, value) of the evaluations beside rungs whose
            value is finite.
    """

    id: int
    number: int
    state: str
    value: float | None = None
    ours: bool = True
    started: float | None = None
    ended: float | None = None
    seconds: float | None = None
    scores: tuple[float, ...] = ()
    reason: str = ""
    folder: str = ""
    rungs: Mapping[int, float] = field(default_factory=dict)
    blocks: Mapping[str, Any] = field(default_factory=dict, repr=False)
    params: Mapping[str, Any] = field(default_factory=dict)
    distributions: Mapping[str, BaseDistribution] = field(default_factory=dict, repr=False)
    further: tuple[float, ...] = ()
    violations: Mapping[str, float] = field(default_factory=dict)
    evaluations: tuple[tuple[int, float], ...] = ()

    @property
    def values(self) -> tuple[float, ...]:
        """The values of a complete trial, in the order of the study's directions."""
        return () if self.value is None else (self.value, *self.further)

    @property
    def feasible(self) -> bool:
        """Whether no recorded constraint is broken."""
        return total_violation(self.violations) == 0.0

    @property
    def finished(self) -> bool:
        """Whether the trial is complete, pruned or failed."""
        return self.state in FINISHED

    @property
    def judged(self) -> bool:
        """Whether the trial is complete and has a value of this study's objective."""
        return self.state == "COMPLETE" and self.value is not None and self.ours

    @property
    def selectable(self) -> bool:
        """Whether the trial is judged and breaks no constraint."""
        return self.judged and self.feasible


class TrialRows:
    """The rows of one study, read from its database; may be used from several threads."""

    def __init__(self, storage: StudyDatabase, study_id: int) -> None:
        self._storage, self._study_id = storage, study_id
        self._known: dict[int, TrialRow] = {}  # by row id
        self._settled = 0  # all trials up to this row id are finished, and known
        self._ordered: list[TrialRow] = []
        self._lock = threading.Lock()

    def read(self) -> list[TrialRow]:
        """Return all trials, ordered by number: the same list until a trial has changed."""
        with self._lock:
            with self._storage.transaction() as session:
                self._update(session)
            return self._ordered

    def _update(self, session: Session) -> None:
        columns = trials.c
        query = sa.select(
            columns.trial_id,
            columns.number,
            columns.state,
            columns.datetime_start,
            columns.datetime_complete,
        ).where(columns.study_id == self._study_id, columns.trial_id > self._settled)
        found = session.execute(query.order_by(columns.trial_id)).all()
        open_ = [
            row
            for row in found
            if (known := self._known.get(row.trial_id)) is None or not known.finished
        ]
        fresh = {row.id: row for row in _rows(session, open_)}
        for row in found:
            if not row.state.is_finished():
                break
            self._settled = row.trial_id
        if any(self._known.get(key) != row for key, row in fresh.items()):
            self._known |= fresh
            self._ordered = sorted(self._known.values(), key=lambda row: row.number)

    def curves(self, numbers: Iterable[int]) -> dict[int, dict[int, list[float]]]:
        """Return the scores per member of these trials: number, rung, member.

        Rungs of which no such scores are recorded are left out.
        """
        wanted = set(numbers)
        chosen = {row.id: row for row in self.read() if row.number in wanted}
        keys = {rung_key(rung): rung for row in chosen.values() for rung in row.rungs}
        found = self._attributes(chosen, keys)
        return {
            row.number: dict(sorted((keys[key], own) for key, own in found[row.id].items()))
            for row in chosen.values()
        }

    def metrics(self, numbers: Sequence[int]) -> dict[int, dict[str, float]]:
        """Return the recorded metrics of these trials by number; trials without any are left out."""
        chosen = {row.id: row.number for row in self.read() if row.number in numbers}
        [key] = record_keys("metrics")
        recorded = self._attributes(chosen, [key])
        found = {chosen[one]: own[key] for one, own in recorded.items() if key in own}
        return {number: found[number] for number in numbers if number in found}

    def attributes(self, row: TrialRow) -> dict[str, Any]:
        """Return all that a trial recorded."""
        with self._storage.transaction() as session:
            return trial_attributes.of(session, [row.id])[row.id]

    def _attributes(
        self, trial_ids: Iterable[int], keys: Iterable[str]
    ) -> dict[int, dict[str, Any]]:
        with self._storage.transaction() as session:
            wanted = trial_attributes.table.c.key.in_(list(keys))
            return trial_attributes.of(session, list(trial_ids), wanted)


def frozen(row: TrialRow) -> FrozenTrial:
    """Return a trial as Optuna has it, without times, with blocks and constraints as attributes."""
    return FrozenTrial(
        number=row.number,
        trial_id=row.id,
        state=TrialState[row.state],
        value=None,
        values=list(row.values) or None,
        datetime_start=None,
        datetime_complete=None,
        params=dict(row.params),
        distributions=dict(row.distributions),
        user_attrs=dict(row.blocks),
        system_attrs=constraint_attributes(row.violations),
        intermediate_values=dict(row.rungs),
    )


def _rows(session: Session, found: Sequence[Any]) -> Iterable[TrialRow]:
    for begin in range(0, len(found), CHUNK):
        part = found[begin : begin + CHUNK]
        ids = [row.trial_id for row in part]
        values, rungs = values_of(session, ids), rungs_of(session, ids)
        params, attributes = params_of(session, ids), trial_attributes.of(session, ids, _KEYS)
        constraints = trial_system_attributes.of(session, ids, _CONSTRAINTS)
        for trial_id, number, state, started, ended in part:
            own = attributes[trial_id]
            record = TrialRecord.from_attributes(own)
            value, *further = (values[trial_id] if state == TrialState.COMPLETE else ()) or (None,)
            yield TrialRow(
                trial_id,
                number,
                state.name,
                value,
                not state.is_finished() or is_ours(own),
                _epoch(started),
                _epoch(ended),
                record.seconds,
                record.scores or (),
                record.reason or "",
                record.folder(number),
                rungs[trial_id],
                {key: value for key, value in own.items() if key.endswith(_BLOCKS)},
                {name: value for name, (value, _) in params[trial_id].items()},
                {name: kind for name, (_, kind) in params[trial_id].items()},
                tuple(further),
                recorded_violations(constraints[trial_id]),
                tuple(
                    (int(steps or 0), value)
                    for steps, value in record.evaluations or ()
                    if value is not None
                ),
            )


def _epoch(moment: datetime | None) -> float | None:
    """Return Optuna's stored time, UTC without a zone, in seconds since the epoch."""
    return None if moment is None else moment.replace(tzinfo=UTC).timestamp()
