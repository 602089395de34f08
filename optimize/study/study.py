"""The study as a worker sees it: create it, ask for a batch, report, judge and finish trials."""

from __future__ import annotations

import functools
import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy as sa
from optuna.trial import FrozenTrial, TrialState

from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.support.errors import InputError, TryAgainLater
from sweepd.optimize.study.database.cache import StudyCache
from sweepd.optimize.study.database.gone import StudyGone
from sweepd.optimize.study.database.storage import NOTHING, StudyStorage, TrialLost, TrialWrite
from sweepd.optimize.study.record.configurations import Configuration
from sweepd.optimize.study.record.database import study_exists
from sweepd.optimize.study.record.folder import recorded_folder
from sweepd.optimize.study.record.keys import (
    CHANGES_KEY,
    CHECKPOINT_KEY,
    CREATED_KEY,
    FLAGS_KEY,
    FOLDER_KEY,
    LEAGUE_KEY,
    ORIGIN_KEY,
    PRIOR_KEY,
    REASON_KEY,
    SPEC_KEY,
    UID_KEY,
    fitness_key,
    source_key,
)
from sweepd.optimize.study.record.optuna_tables import add_study, add_waiting
from sweepd.optimize.study.record.reader import StudyReader
from sweepd.optimize.study.record.rows import FINISHED
from sweepd.optimize.study.record.specs import StudySpec
from sweepd.optimize.study.recovery.deaths import is_suspect
from sweepd.optimize.study.sampling.evolution import Change, Fitness, changes_of
from sweepd.optimize.study.sampling.prior import read_known
from sweepd.optimize.study.search import Search
from sweepd.optimize.study.space.search_space import SearchSpace, Settings


@dataclass(frozen=True)
class Plan:
    """A trial to train.

    Attributes:
        trial_id: row id of the trial.
        number: number of the trial.
        params: its parameters, as Optuna stores them.
        settings: the parameters, resolved.
        seed: its seed.
        trial: None outside a study.
        reported: values that earlier attempts reported, by rung.
        checkpoint: its newest recorded checkpoint.
        league: its opponents from the study's league; None until they are recorded.
        changes: of a member of a population, what it went on with after its rungs.
        written: the attributes that this attempt has reported.
    """

    trial_id: int
    number: int
    params: dict[str, Any]
    settings: Settings
    seed: int
    trial: optuna.Trial | None = None
    reported: dict[int, float] = field(default_factory=dict)
    checkpoint: dict[str, Any] | None = None
    league: dict[str, Any] | None = None
    changes: list[Change] = field(default_factory=list)
    written: dict[str, Any] = field(default_factory=dict)

    @property
    def note(self) -> dict[str, Any]:
        """What identifies the trial in its checkpoint."""
        return {"number": self.number, "seed": self.seed, "params": self.params}


@dataclass(frozen=True)
class RungReport:
    """What a trial reports of a rung.

    Attributes:
        plan: of the trial.
        rung: the rung (1 …).
        value: its value.
        attributes: user attributes to write with it.
        system: system attributes.
    """

    plan: Plan
    rung: int
    value: float
    attributes: Mapping[str, Any] = field(default_factory=dict)
    system: Mapping[str, Any] = field(default_factory=dict)


def create_study(
    storage: StudyStorage,
    name: str,
    spec: StudySpec,
    runs_dir: Path,
    flags: Mapping[str, Any],
    origin: Mapping[str, Any] | None = None,
    prior: Mapping[str, Any] | None = None,
    sources: Sequence[Mapping[str, Any]] = (),
    first: Sequence[Mapping[str, Any]] = (),
) -> bool:
    """Write a new study with its spec in one transaction.

    Args:
        storage: database of the study.
        name: its name.
        spec: what it is.
        runs_dir: folder in which its folder will be.
        flags: flags to record.
        origin: the trial that the study repeats or continues, see `sweepd.optimize.worker.trial_run`
            and `sweepd.optimize.worker.fork`, or the weights that its networks start from.
        prior: what it learns from earlier studies, see `sweepd.optimize.study.prior`.
        sources: the studies from which its search space and its first trials came, see
            `StudyHandle.as_source`.
        first: the parameters of its first trials, as Optuna stores them.

    Returns:
        False if a study of that name exists.
    """
    uid = uuid.uuid4().hex
    attributes: dict[str, Any] = {
        SPEC_KEY: spec.to_json(),
        UID_KEY: uid,
        FOLDER_KEY: recorded_folder(storage.url, runs_dir / f"{name}-{uid[:8]}"),
        FLAGS_KEY: dict(flags),
        CREATED_KEY: datetime.now(UTC).isoformat(timespec="microseconds"),
    }
    if origin is not None:
        attributes[ORIGIN_KEY] = dict(origin)
    if prior is not None:
        attributes[PRIOR_KEY] = dict(prior)
    attributes |= {source_key(source["uid"]): dict(source) for source in sources}
    try:
        with storage.transaction() as session:
            study_id = add_study(session, name, spec.values, attributes)
            add_waiting(session, study_id, first)
    except sa.exc.IntegrityError:
        return False
    return True


def free_name(storage: StudyStorage, name: str) -> str:
    """Return the first of NAME-2, NAME-3, … that the database has no study of.

    For NAME-2 it is NAME-3 if NAME is a study, too.
    """
    stem, _, number = name.rpartition("-")
    if number.isdecimal() and stem and study_exists(storage, stem):
        name = stem
    names = (f"{name}-{number}" for number in itertools.count(2))
    return next(one for one in names if not study_exists(storage, one))


class StudyHandle(StudyReader):
    """An open study, to ask for trials and to tell about them.

    Args:
        storage: its database.
        name: its name.
        runs_dir: see `StudyReader`.

    Raises:
        InputError: as `StudyReader`.
    """

    storage: StudyStorage

    def __init__(self, storage: StudyStorage, name: str, runs_dir: Path | None = None) -> None:
        super().__init__(storage, name, runs_dir)
        storage.known_as(self.study_id, name, self.uid)
        self.cached = StudyCache(storage)

    @functools.cached_property
    def study(self) -> optuna.Study:
        return optuna.load_study(study_name=self.name, storage=self.cached)

    @functools.cached_property
    def space(self) -> SearchSpace:
        """The search space; building it imports the environment, the algorithm, and torch."""
        # Not at the top: processes that only read a study need neither torch nor this module.
        from sweepd.optimize.study.space.parsing import study_space

        return study_space(self.spec)

    @functools.cached_property
    def search(self) -> Search:
        """The decisions of the search."""
        return Search(
            self.space,
            sampler=self.spec.sampler,
            pruner=self.spec.pruner,
            rungs=self.spec.rungs,
            seed=self.spec.seed,
            selection=self.spec.selection,
            prior=read_known(self.prior),
        )

    # -- looking

    def best(self) -> Configuration | None:
        """Return the configuration that the study selects, with all that its trials recorded."""
        return self.spec.selection.best(self.judged())

    def gone(self) -> StudyGone | None:
        """Return the error that the study or its database was deleted.

        Returns:
            None if it exists, or if the database does not answer.
        """
        try:
            with self.storage.transaction() as session:
                self.storage.check_study(session, self.study_id)
        except StudyGone as error:
            return error
        except sa.exc.SQLAlchemyError:
            pass
        return None

    def as_source(self) -> dict[str, Any]:
        """Return the record of this study in one whose parameters its trials led to.

        The gate counts its finished trials, and those of other studies that it depends on.
        """
        counts = self.counts()
        finished = sum(counts[state] for state in FINISHED) + self.chosen_from
        return {"study": self.name, "uid": self.uid, "finished": finished}

    # -- asking

    def ask_batch(self, size: int, worker: str, total: int) -> list[Plan]:
        """Claim up to `size` trials of one shape.

        Waiting trials come first, by id, and the oldest determines the shape, and the opponents
        from the study's league, where trials have such; new trials follow. A
        batch that was interrupted continues without new trials, so that a single worker asks for
        the same trials after the same history, however often it was interrupted.

        Trials whose parameters are not in the space are failed here. A trial that may have killed a
        worker comes alone (`deaths.is_suspect`). After an error the claimed trials are WAITING
        again.

        Args:
            size: largest number of trials.
            worker: name of the worker.
            total: number of trials that the study shall have.
        """
        with self.claiming():
            return self._ask_batch(size, worker, total)

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """Return a context after whose failure the trials claimed in it are WAITING again."""
        before = set(self.storage.held())  # trials of an earlier batch stay claimed
        try:
            yield
        except TryAgainLater:  # without a database nothing can be put back
            raise
        except BaseException:
            for trial_id in set(self.storage.held()) - before:
                with suppress(Exception):  # one error is enough
                    self.put_back(trial_id)
            raise

    def _ask_batch(self, size: int, worker: str, total: int) -> list[Plan]:
        plans: list[Plan] = []
        shape: dict[str, Any] | None = None
        for waiting in [t for t in self.trials() if t.state == TrialState.WAITING]:
            if len(plans) == size:
                break
            # A trial of another shape, or one that must be alone, waits for a later batch.
            alone = is_suspect(waiting.user_attrs)
            if alone and plans:
                continue
            if plans and waiting.user_attrs.get(LEAGUE_KEY) != plans[0].league:
                continue
            known = self.search.shape_known(
                {**waiting.system_attrs.get("fixed_params", {}), **waiting.params}
            )
            if shape is not None and any(shape[name] != value for name, value in known.items()):
                continue
            # False if another worker was faster.
            if self.storage.claim_waiting(self.study_id, waiting._trial_id, worker, total):
                drawn = self.plan([waiting._trial_id], {**(shape or {}), **known}, total)
                if drawn:
                    plans += drawn
                    shape = self.search.shape_known(drawn[0].params)
                    if alone:
                        return plans
        # Trials that have reported, or have opponents from the league, were interrupted: their
        # batch is complete.
        if any(plan.reported or plan.league is not None for plan in plans):
            return plans
        while len(plans) < size:
            created = self.storage.claim_new(self.study_id, worker, total, size - len(plans))
            if not created:
                break
            plans += self.plan(created, shape, total)
            shape = self.search.shape_known(plans[0].params) if plans else None
        return plans

    def plan(
        self, claimed: Sequence[int], shape: Mapping[str, Any] | None, total: int
    ) -> list[Plan]:
        """Draw the missing parameters of claimed trials, and write them in one transaction.

        Args:
            claimed: their row ids, in the order in which they are drawn.
            shape: shape parameters that are given; None: the first one's are drawn, and the others
                get them.
            total: number of trials that the study shall have.

        Returns:
            The trials, without those that failed, for an error of their parameters, or were lost.
        """
        plans: list[Plan] = []
        failed: dict[int, str] = {}
        with self.cached.read_once(self.study_id, only_ours=True) as lost:
            for trial_id in claimed:
                known = self.cached.get_trial(trial_id)
                try:
                    trial, params = self.search.draw(
                        self.cached, self.name, trial_id, known.number, shape, total
                    )
                    settings = self.space.resolve(params)
                    self.space.validate(params)
                except (InputError, ValueError, TypeError) as error:
                    failed[trial_id] = f"parameters: {error}"
                    continue
                shape = self.search.shape_known(params) if shape is None else shape
                plans.append(self._planned(known, params, settings, trial))
        ends = [
            TrialWrite(own, {REASON_KEY: reason}, end=TrialState.FAIL)
            for own, reason in failed.items()
        ]
        for trial_id in lost | (self.end_all(ends) if ends else set()):
            self.storage.drop(trial_id)
        return [plan for plan in plans if plan.trial_id not in lost]

    def recorded_plan(self, trial: FrozenTrial) -> Plan:
        """Return a trial that was begun, as it was planned."""
        return self._planned(trial, dict(trial.params), self.space.resolve(trial.params))

    def _planned(
        self,
        known: FrozenTrial,
        params: dict[str, Any],
        settings: Settings,
        trial: optuna.Trial | None = None,
    ) -> Plan:
        fork = self.fork
        return Plan(
            known._trial_id,
            known.number,
            params,
            settings,
            fork["seed"] if fork else derive_seed(self.spec.seed, "trial", known.number),
            trial,
            dict(known.intermediate_values),
            known.user_attrs.get(CHECKPOINT_KEY),
            known.user_attrs.get(LEAGUE_KEY),
            changes_of(known.user_attrs.get(CHANGES_KEY)),
        )

    # -- telling

    def report(
        self,
        plan: Plan,
        rung: int,
        value: float,
        attributes: Mapping[str, Any] = NOTHING,
        system: Mapping[str, Any] = NOTHING,
    ) -> None:
        """Report a rung of one trial, see `report_all`. Raises TrialLost."""
        if self.report_all([RungReport(plan, rung, value, attributes, system)]):
            raise TrialLost(plan.trial_id)

    def report_all(self, reports: Sequence[RungReport]) -> set[int]:
        """Report a rung of several trials in one transaction.

        A rung that was reported before keeps its value.

        Returns:
            The row ids of the trials that were lost.
        """
        writes = []
        for one in reports:
            known = one.plan.written  # most attributes are the same at every rung
            new = {k: v for k, v in one.attributes.items() if k not in known or known[k] != v}
            value = one.plan.reported.get(one.rung, one.value)
            report = one.rung, value
            writes.append(TrialWrite(one.plan.trial_id, new, one.system, report=report))
        lost = self.storage.write(writes)
        for one, write in zip(reports, writes, strict=True):
            if write.report is not None and write.trial_id not in lost:
                one.plan.reported.update([write.report])
                one.plan.written.update(write.attributes)
        return lost

    def record_fitness(self, rung: int, fitness: Mapping[int, Fitness]) -> set[int]:
        """Record the fitness of the members of a population at a rung, in one transaction.

        Args:
            rung: the rung (1 …).
            fitness: by row id.

        Returns:
            The row ids of the trials that were lost.
        """
        key = fitness_key(rung)
        return self.storage.write(
            [TrialWrite(own, {key: found.to_record()}) for own, found in fitness.items()]
        )

    def record_change(self, plan: Plan, change: Change) -> None:
        """Record what a member of a population goes on with; no effect if repeated.

        Raises TrialLost.
        """
        if change not in plan.changes:
            plan.changes.append(change)
            record = [own.to_record() for own in plan.changes]
            self.storage.set_trial_user_attr(plan.trial_id, CHANGES_KEY, record)

    def judge(self, plans: Sequence[Plan]) -> list[bool]:
        """Return for each trial whether it is pruned at the rung that it has reported.

        Call it after all trials of the batch have reported.
        """
        read = self.cached.read_once(self.study_id, only_ours=True)
        with read if self.search.prunes else nullcontext():
            return self.search.judge([plan.trial for plan in plans])

    def end_all(self, ends: Sequence[TrialWrite]) -> set[int]:
        """End several trials in one transaction; return the row ids of those that were lost."""
        return self.storage.write(ends)

    def fail(self, trial_id: int, reason: str) -> None:
        """Fail a trial for a reason of its own. Raises TrialLost.

        After an error of the machine use `put_back` instead.
        """
        self.storage.write_one(TrialWrite(trial_id, {REASON_KEY: reason}, end=TrialState.FAIL))

    def put_back(self, trial_id: int) -> None:
        """Set a RUNNING trial to WAITING under the same number, for the next worker."""
        self.storage.set_trial_state_values(trial_id, TrialState.WAITING)
