"""The search's decisions: the same in a study's database and in any other storage of Optuna."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from optuna.study import StudyDirection
from optuna.trial import TrialState

from sweepd.envs.crypto.data.bars import Bars
from sweepd.optimize.study.database.storage import TrialWrite
from sweepd.optimize.study.database.tables import attempts
from sweepd.optimize.study.record.keys import REASON_KEY, rung_key
from sweepd.optimize.study.record.optuna_tables import trials
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.search import Search
from sweepd.optimize.study.space.dimension import Dimension
from sweepd.optimize.study.space.search_space import SearchSpace
from sweepd.optimize.study.study import StudyHandle
from tests.optimize.study_files import finish, make_handle, open_handle
from tests.optimize.worker.test_batch import make_spec

RUNGS, BATCH, TRIALS = 4, 3, 24
SPACE = SearchSpace(
    "two",
    1,
    {
        "shape": {"minibatch": Dimension("minibatch", choices=(16, 32))},
        "ppo": {
            "learning_rate": Dimension("learning_rate", low=1e-5, high=1e-1, log=True),
            "clip": Dimension("clip", low=0.1, high=0.4),
        },
        "env": {},
    },
)
Decisions = list[tuple[dict[str, Any], dict[int, float], TrialState]]


def value(params: dict[str, Any], rung: int) -> float:
    return rung * (1.0 - abs(math.log10(params["learning_rate"]) + 3.0) - params["clip"])


def decisions(trials: Sequence[optuna.trial.FrozenTrial]) -> Decisions:
    return [(trial.params, trial.intermediate_values, trial.state) for trial in trials]


def in_the_database(handle: StudyHandle) -> Decisions:
    """Play a study through the functions that the worker calls."""
    while plans := handle.ask_batch(BATCH, "w", TRIALS):
        for rung in range(1, RUNGS + 1):
            for plan in plans:
                found = value(plan.params, rung)
                handle.report(plan, rung, found, {rung_key(rung): [found]})
            verdicts = handle.judge(plans)
            for plan, pruned in zip(plans, verdicts, strict=True):
                if rung == RUNGS:
                    # As a worker does: a trial without a record is another program's.
                    record = TrialRecord(seed=plan.seed).to_attributes(handle.spec)
                    found = value(plan.params, rung)
                    finish(handle, plan.trial_id, found, attributes=record)
                elif pruned:
                    ended = TrialWrite(plan.trial_id, {REASON_KEY: "worse"}, end=TrialState.PRUNED)
                    handle.storage.write_one(ended)
            plans = [p for p, pruned in zip(plans, verdicts, strict=True) if not pruned]
    return decisions(handle.trials())


def in_memory(search: Search) -> Decisions:
    """Play the same study through `Search` alone, as the replay of learning curves does."""
    storage = optuna.storages.InMemoryStorage()
    study_id = storage.create_new_study([StudyDirection.MAXIMIZE], "m")
    for _ in range(TRIALS // BATCH):
        batch, shape = [], None
        for _ in range(BATCH):
            trial_id = storage.create_new_trial(study_id)
            number = storage.get_trial_number_from_id(trial_id)
            trial, params = search.draw(storage, "m", trial_id, number, shape, TRIALS)
            shape = search.shape_known(params)
            batch.append((trial, params))
        for rung in range(1, RUNGS + 1):
            for trial, params in batch:
                trial.report(value(params, rung), rung)
            verdicts = search.judge([trial for trial, _ in batch])
            for (trial, params), pruned in zip(batch, verdicts, strict=True):
                if rung == RUNGS:
                    trial.study.tell(trial.number, value(params, rung))
                elif pruned:
                    trial.study.tell(trial.number, state=TrialState.PRUNED)
            batch = [one for one, pruned in zip(batch, verdicts, strict=True) if not pruned]
    return decisions(storage.get_all_trials(study_id))


@pytest.mark.parametrize(
    ("sampler", "pruner"),
    [
        pytest.param("tpe", "hyperband", marks=pytest.mark.extra),
        pytest.param("cmaes", "median", marks=pytest.mark.extra),
        ("race", "hyperband"),
    ],
)
def test_decisions_do_not_depend_on_the_storage(
    sampler: str, pruner: str, bars: Bars, tmp_path: Path
) -> None:
    spec = make_spec(
        bars, sampler=sampler, pruner=pruner, rungs=RUNGS, space=SPACE.to_dict(), seed=5
    )
    handle = make_handle(tmp_path, spec)
    search = Search(
        handle.space, sampler=sampler, pruner=pruner, rungs=RUNGS, seed=5, selection=spec.selection
    )
    played = in_the_database(handle)
    assert played == in_memory(search)
    states = [state for _, _, state in played]
    assert len(states) == TRIALS
    assert {TrialState.COMPLETE, TrialState.PRUNED} == set(states)
    best = handle.best_trial()
    assert best is not None
    if sampler == "race":
        assert len({tuple(params.values()) for params, _, _ in played}) < TRIALS
        return
    assert best.value == max(
        value(params, RUNGS) for params, _, state in played if state == TrialState.COMPLETE
    )


class Killed(Exception):
    """Stands for kill -9."""


def play_killed(folder: Path, kills: random.Random) -> int:
    """Play the study in the folder, killed at any statement; return the number of kills."""
    deaths = 0
    while True:
        handle = open_handle(folder)  # a new process has computed nothing
        assert_whole(handle)
        for trial in handle.trials():
            if trial.state == TrialState.RUNNING:
                requeue(handle, trial._trial_id)
        left = kills.randrange(20, 300)

        def dying(*_: Any) -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                raise Killed

        # SQLite rolls back what a killed process has not committed.
        for event in ("before_cursor_execute", "commit"):
            sa.event.listen(handle.storage.engine, event, dying)
        try:
            in_the_database(handle)
        except Killed:
            deaths += 1
        else:
            return deaths


def assert_whole(handle: StudyHandle) -> None:
    """Check that what belongs together was written as a whole: of a draw, a rung and an end."""
    with handle.storage.transaction() as session:
        reached = dict(session.execute(sa.select(attempts.c.trial_id, attempts.c.rung)).all())
    for trial in handle.trials():
        assert len(trial.params) in (0, 3)
        rungs = list(trial.intermediate_values)
        assert [r for r in range(1, RUNGS + 1) if rung_key(r) in trial.user_attrs] == rungs
        assert reached[trial._trial_id] == max(rungs, default=0)
        assert ("sweepd:seed" in trial.user_attrs) == (trial.state == TrialState.COMPLETE)


def requeue(handle: StudyHandle, trial_id: int) -> None:
    """Set a trial of a dead worker to WAITING, as `recover_stale` does."""
    with handle.storage.transaction() as session:
        session.execute(
            trials.update().where(trials.c.trial_id == trial_id).values(state=TrialState.WAITING)
        )


def test_a_race_decides_the_same_however_often_it_is_killed(bars: Bars, tmp_path: Path) -> None:
    spec = make_spec(
        bars, sampler="race", pruner="none", rungs=RUNGS, space=SPACE.to_dict(), seed=5
    )
    whole = in_the_database(make_handle(tmp_path / "whole", spec))
    make_handle(tmp_path / "killed", spec)
    assert play_killed(tmp_path / "killed", random.Random(1)) > 10
    assert decisions(open_handle(tmp_path / "killed").trials()) == whole
