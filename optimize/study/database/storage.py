"""The study's database: Optuna's `RDBStorage`, made safe for concurrent workers.

Additions, all within transactions of the same database:

- On SQLite every transaction starts with BEGIN IMMEDIATE, in WAL mode with a long busy timeout.
  Otherwise two workers that claim the same WAITING trial would both succeed.
- An *attempt* holds a trial: a token in the table `sweepd_attempts`. Every write to a held trial
  checks in its own transaction that the token is unchanged and the trial RUNNING, and raises
  `TrialLost` otherwise.
- A deleted study is detected (`StudyGone`), even if its row id was reused.
- The number of trials is exact: the transaction that creates or claims a trial counts them.
- Heartbeats use the database's clock, so the clocks of the workers do not matter.
"""

from __future__ import annotations

import secrets
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from optuna.distributions import BaseDistribution
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.orm import Session

from sweepd.envs.support.database_file import BUSY_TIMEOUT
from sweepd.envs.support.database_url import sqlite_path
from sweepd.optimize.study.database.gone import DatabaseFile, StudyGone
from sweepd.optimize.study.database.patience import Patience, patient
from sweepd.optimize.study.database.tables import RELEASED, attempts, delete_orphans, make_tables
from sweepd.optimize.study.record.database import StudyDatabase
from sweepd.optimize.study.record.keys import UID_KEY
from sweepd.optimize.study.record.optuna_tables import (
    add_params,
    add_rungs,
    add_trials,
    changed_rows,
    end_trials,
    has_study,
    stored_now,
    studies,
    study_attributes,
    trial_attributes,
    trial_system_attributes,
    trials,
    trials_of,
)

NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class TrialWrite:
    """What `StudyStorage.write` writes to one held trial.

    Attributes:
        trial_id: row id of the trial.
        attributes: user attributes.
        system: system attributes.
        params: parameters by name: the value as Optuna stores it, and the range.
        report: a rung (1 …) that the trial has reached, and its value.
        end: COMPLETE, PRUNED or FAIL to finish and release the trial; None if it goes on.
        values: of a trial that ends; None: those of a PRUNED trial are its last report.
    """

    trial_id: int
    attributes: Mapping[str, Any] = field(default_factory=dict)
    system: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, tuple[float, BaseDistribution]] = field(default_factory=dict)
    report: tuple[int, float] | None = None
    end: TrialState | None = None
    values: Sequence[float] | None = None


class TrialLost(Exception):
    """The trial no longer belongs to this worker, which drops its copy.

    Another worker has taken it, another program has finished it, or it was deleted.
    """

    def __init__(self, trial_id: int) -> None:
        super().__init__(f"trial with id {trial_id} is no longer held by this worker")
        self.trial_id = trial_id


@patient(
    "attributes",
    "claim_new",
    "claim_waiting",
    "get_all_studies",
    "get_all_trials",
    "get_study_directions",
    "get_study_id_from_name",
    "get_study_name_from_id",
    "get_study_system_attrs",
    "get_study_user_attrs",
    "get_trial",
    "get_trial_id_from_study_id_trial_number",
    "set_study_system_attr",
    "set_study_user_attr",
    "set_trial_intermediate_value",
    "set_trial_state_values",
    "set_trial_system_attr",
    "set_trial_user_attr",
    "study_ids",
    "write",
    "_get_trials",
    "_release",
    "_set_trial_param",
)
class StudyStorage(StudyDatabase, RDBStorage):
    """`StudyDatabase` with fenced writes to held trials and retries while the database is unavailable.

    Every write checks the attempt's token. `patience` retries operations; its default limit of 0
    means no retries.
    """

    def __init__(
        self, url: str, *, immediate: bool = True, busy_timeout: float = BUSY_TIMEOUT
    ) -> None:
        self.patience = Patience()
        self._tokens: dict[int, str] = {}
        self._gone: set[int] = set()  # trials that were dropped: writes to them are refused
        self._studies: dict[int, tuple[str, str]] = {}
        self.file = DatabaseFile(url)
        on_sqlite = sqlite_path(url) is not None
        options: dict[str, Any] = {"connect_args": {"timeout": busy_timeout}}
        begin = "BEGIN IMMEDIATE" if immediate else "BEGIN"
        engine = options if on_sqlite else {"pool_pre_ping": True}
        RDBStorage.__init__(self, url, engine_kwargs=engine)
        self._use(self.engine, begin)
        if on_sqlite:
            # Not `self`: SQLAlchemy keeps this listener for good, and with it the connections of a
            # storage that nobody uses any more.
            file = self.file

            @sa.event.listens_for(self.engine, "do_connect")
            def _no_new_file(*_: Any) -> None:
                file.check()  # SQLite would create an empty file

        make_tables(self.engine, tidy=immediate)
        self.file.remember()

    def optuna(self) -> RDBStorage:
        return self

    def _session(self) -> Session:
        # Optuna's methods write through the thread's session, so they join its transaction.
        session: Session = self.scoped_session()
        return session

    def tidy(self) -> None:
        """Delete the rows of deleted trials and studies, if that is possible now."""
        with suppress(sa.exc.SQLAlchemyError, StudyGone), self.engine.begin() as connection:
            delete_orphans(connection)

    def _get_trials(
        self,
        study_id: int,
        states: Container[TrialState] | None,
        included_trial_ids: set[int],
        trial_id_greater_than: int,
    ) -> list[FrozenTrial]:
        # Of Optuna's cached storage, too; in a third of the time of Optuna's own method.
        row = trials.c
        # As literals: a query may have some thousand parameters.
        included: sa.BindParameter[int] = sa.bindparam(
            "included", sorted(included_trial_ids), expanding=True, literal_execute=True
        )
        wanted = (row.trial_id > trial_id_greater_than) | row.trial_id.in_(included)
        if states is not None:
            wanted &= row.state.in_([state for state in TrialState if state in states])
        with self.transaction() as session:
            found = list(trials_of(session, study_id, wanted))
            if not found and not has_study(session, study_id):
                raise KeyError(f"there is no study with id {study_id}")
        return found

    # -- holding trials

    def held(self) -> dict[int, str]:
        """Return the trials that this worker holds: trial id to token."""
        return dict(self._tokens)

    def drop(self, trial_id: int) -> None:
        """Release a trial: writes to it raise TrialLost until it is claimed again."""
        self._tokens.pop(trial_id, None)
        self._gone.add(trial_id)

    def give_up(self, trial_id: int) -> str:
        """Release a lost trial. Returns what happened to it, as part of a sentence."""
        token = self._tokens.get(trial_id)
        self.drop(trial_id)
        return self._release(trial_id, token)

    def _release(self, trial_id: int, token: str | None) -> str:
        with self.transaction() as session:
            state = session.execute(
                sa.select(trials.c.state).where(trials.c.trial_id == trial_id)
            ).scalar_one_or_none()
            ours = (attempts.c.trial_id == trial_id) & (attempts.c.token == token)
            # A program that does not know attempts has changed the state but not the token.
            unnoticed = changed_rows(session, attempts.update().where(ours).values(**RELEASED)) == 1
        if state is None:
            return "was deleted"
        if unnoticed and state.is_finished():
            return f"was set to {state.name} by another program"
        return "was given to another worker"

    def _took(self, trial_id: int, token: str) -> None:
        self._gone.discard(trial_id)
        self._tokens[trial_id] = token

    def known_as(self, study_id: int, name: str, uid: str) -> None:
        """Record name and uid of a study, for `check_study`."""
        self._studies[study_id] = (name, uid)

    def check_study(self, session: Session, study_id: int, *, lock: bool = False) -> None:
        """Raise StudyGone if the study was deleted, or its row id was given to another."""
        self.file.check()
        query = sa.select(studies.c.study_id).where(studies.c.study_id == study_id)
        found = session.execute(query.with_for_update() if lock else query).scalar_one_or_none()
        name, uid = self._studies.get(study_id, (str(study_id), None))
        if found is not None and uid is not None:
            found = study_attributes.get(session, study_id, UID_KEY) == uid or None
        if found is None:
            raise StudyGone(
                f"study {name!r} was deleted from its database while this process worked on it"
            )

    def lock_study(self, session: Session, study_id: int) -> None:
        """Lock the study for the rest of the transaction.

        On SQLite, BEGIN IMMEDIATE has done so already. Raises StudyGone.
        """
        self.check_study(session, study_id, lock=True)

    def _count(self, session: Session, study_id: int, states: Sequence[TrialState]) -> int:
        query = sa.select(sa.func.count(trials.c.trial_id)).where(
            trials.c.study_id == study_id, trials.c.state.in_(states)
        )
        return int(session.execute(query).scalar_one())

    def claim_new(self, study_id: int, worker: str, total: int, count: int = 1) -> list[int]:
        """Create up to `count` RUNNING trials held by `worker`, in one transaction.

        Returns:
            Their row ids in the order of their numbers; fewer than `count` if the study would have
                more than `total` trials.
        """
        with self.transaction() as session:
            self.lock_study(session, study_id)
            # Under the study's lock, so that concurrent workers cannot both create the last trial.
            number = self._count(session, study_id, list(TrialState))
            numbers = range(number, min(total, number + count))
            if not numbers:
                return []
            created = add_trials(session, study_id, numbers)
            # SQLite may have given these trials the ids of deleted ones.
            session.execute(attempts.delete().where(attempts.c.trial_id.in_(created)))
            tokens = {trial_id: secrets.token_hex(16) for trial_id in created}
            first = {"worker": worker, "beat": self.now(session), "tries": 0, "rung": 0}
            session.execute(
                sa.insert(attempts),
                [{"trial_id": own, "token": token, **first} for own, token in tokens.items()],
            )
        for trial_id, token in tokens.items():
            self._took(trial_id, token)
        return created

    def claim_waiting(self, study_id: int, trial_id: int, worker: str, total: int) -> bool:
        """Claim a WAITING trial for `worker`.

        Returns:
            False if another worker has claimed it, or if `total` trials are finished or running.
        """
        with self.transaction() as session:
            self.lock_study(session, study_id)
            if (
                self._count(session, study_id, [s for s in TrialState if s != TrialState.WAITING])
                >= total
            ):
                return False
            # With a heartbeat: that of an earlier attempt would be too old.
            token = secrets.token_hex(16)
            held = {"token": token, "worker": worker, "beat": self.now(session)}
            again = attempts.update().where(attempts.c.trial_id == trial_id).values(held)
            if changed_rows(session, again) == 0:
                session.execute(
                    attempts.insert().values(trial_id=trial_id, tries=0, rung=0, **held)
                )
            begin = (
                trials.update()
                .where(trials.c.trial_id == trial_id, trials.c.state == TrialState.WAITING)
                .values(state=TrialState.RUNNING, datetime_start=stored_now())
            )
            if changed_rows(session, begin) != 1:
                session.rollback()
                return False
        self._took(trial_id, token)
        return True

    # -- fenced writes

    def lost_of(self, session: Session, held: Mapping[int, str | None]) -> set[int]:
        """Return the trials that are no longer held, and lock the others for the transaction.

        Args:
            session: the transaction.
            held: token by row id; None for a trial that was released.
        """
        self.file.check()  # an open connection would write into the deleted file
        # In one order everywhere, so that two transactions never wait for each other.
        query = (
            sa.select(attempts.c.trial_id, attempts.c.token, trials.c.state)
            .join(trials, trials.c.trial_id == attempts.c.trial_id)
            .where(attempts.c.trial_id.in_(list(held)))
            .order_by(attempts.c.trial_id)
            .with_for_update()
        )
        ours = {
            trial_id
            for trial_id, token, state in session.execute(query)
            if state == TrialState.RUNNING and token == held[trial_id]
        }
        return set(held) - ours

    @contextmanager
    def _fence(self, trial_id: int) -> Iterator[Session | None]:
        """Check a held trial's token in the transaction that the caller's write joins.

        `RDBStorage` writes through the thread's scoped session, so it commits the transaction that
        was opened here.
        """
        if trial_id in self._gone:
            raise TrialLost(trial_id)
        if trial_id not in self._tokens:
            yield None
            return
        session: Session = self.scoped_session()
        try:
            if self.lost_of(session, {trial_id: self._tokens.get(trial_id)}):
                raise TrialLost(trial_id)
            yield session
        except BaseException:
            session.rollback()
            raise
        finally:
            session.close()

    def _set_trial_param(self, trial_id: int, *args: Any, **kwargs: Any) -> None:
        # Called by `set_trial_param`, and by Optuna's cached storage.
        with self._fence(trial_id):
            super()._set_trial_param(trial_id, *args, **kwargs)

    def set_trial_intermediate_value(
        self, trial_id: int, step: int, intermediate_value: float
    ) -> None:
        with self._fence(trial_id):
            super().set_trial_intermediate_value(trial_id, step, intermediate_value)

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        with self._fence(trial_id):
            super().set_trial_user_attr(trial_id, key, value)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        with self._fence(trial_id):
            super().set_trial_system_attr(trial_id, key, value)

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        with self._fence(trial_id) as session:
            if session is not None and state != TrialState.RUNNING:
                session.execute(
                    attempts.update().where(attempts.c.trial_id == trial_id).values(**RELEASED)
                )
            done = super().set_trial_state_values(trial_id, state, values)
        if state != TrialState.RUNNING and trial_id in self._tokens:
            self.drop(trial_id)
        return done

    # -- several writes in one transaction

    def write(self, writes: Sequence[TrialWrite]) -> set[int]:
        """Write to held trials in one transaction, and release those that end.

        Returns:
            The row ids of the trials that are no longer held; nothing is written to them.
        """
        with self.transaction() as session:
            lost = self.lost_of(
                session, {one.trial_id: self._tokens.get(one.trial_id) for one in writes}
            )
            kept = {one.trial_id: one for one in writes if one.trial_id not in lost}
            trial_attributes.put(session, {own: one.attributes for own, one in kept.items()})
            trial_system_attributes.put(session, {own: one.system for own, one in kept.items()})
            add_params(session, {own: one.params for own, one in kept.items()})
            reports = {own: one.report for own, one in kept.items() if one.report is not None}
            ends = {own: (one.end, one.values) for own, one in kept.items() if one.end is not None}
            if reports:
                add_rungs(session, reports)
                session.execute(
                    attempts.update()
                    .where(attempts.c.trial_id == sa.bindparam("own"))
                    .where(attempts.c.rung < sa.bindparam("reached"))
                    .values(rung=sa.bindparam("reached")),
                    [{"own": own, "reached": rung} for own, (rung, _) in reports.items()],
                )
            if ends:
                end_trials(session, ends)
                ended = attempts.c.trial_id.in_(list(ends))
                session.execute(attempts.update().where(ended).values(**RELEASED))
        for trial_id in ends:
            self.drop(trial_id)
        return lost

    def write_one(self, write: TrialWrite) -> None:
        """Write to one held trial, see `write`. Raises TrialLost."""
        if self.write([write]):
            raise TrialLost(write.trial_id)

    def set_trial_user_attrs(
        self, trial_id: int, attributes: Mapping[str, Any], system: Mapping[str, Any] = NOTHING
    ) -> None:
        """Write user attributes and system attributes. Raises TrialLost."""
        self.write_one(TrialWrite(trial_id, attributes, system))
