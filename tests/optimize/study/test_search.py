"""The search's decisions: the same in a study's database and in any other storage of Optuna."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.study import StudyDirection
from optuna.trial import TrialState

from envs.crypto.data.bars import Bars
from envs.support.study_record import TrialRecord
from optimize.study.search import Search, best_complete
from optimize.study.space.dimension import Dimension
from optimize.study.space.search_space import SearchSpace
from optimize.study.study import StudyHandle, best_trial
from tests.optimize.study_files import make_handle
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
                handle.report(plan, rung, value(plan.params, rung))
            verdicts = handle.judge(plans)
            for plan, pruned in zip(plans, verdicts, strict=True):
                if rung == RUNGS:
                    # As a worker does: a trial without a record is another program's.
                    record = TrialRecord(seed=plan.seed).to_attributes(handle.spec)
                    handle.storage.set_trial_user_attrs(plan.trial_id, record)
                    handle.complete(plan.trial_id, value(plan.params, rung))
                elif pruned:
                    handle.prune(plan.trial_id, "worse than its peers")
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
            trial, params = search.draw(storage, "m", trial_id, number, shape)
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


@pytest.mark.parametrize(("sampler", "pruner"), [("tpe", "hyperband"), ("cmaes", "median")])
def test_decisions_do_not_depend_on_the_storage(
    sampler: str, pruner: str, bars: Bars, tmp_path: Path
) -> None:
    spec = make_spec(
        bars, sampler=sampler, pruner=pruner, rungs=RUNGS, space=SPACE.to_dict(), seed=5
    )
    handle = make_handle(tmp_path, spec)
    search = Search(handle.space, sampler=sampler, pruner=pruner, rungs=RUNGS, seed=5)
    played = in_the_database(handle)
    assert played == in_memory(search)
    states = [state for _, _, state in played]
    assert len(states) == TRIALS
    assert {TrialState.COMPLETE, TrialState.PRUNED} == set(states)
    best = best_trial(handle)
    assert best == best_complete(handle.trials())
    assert best is not None
    assert best.value == max(
        value(params, RUNGS) for params, _, state in played if state == TrialState.COMPLETE
    )
