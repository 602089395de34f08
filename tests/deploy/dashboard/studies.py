"""Studies with finished trials, for the pages of studies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import optuna
from optuna.trial import TrialState

from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.keys import rung_key
from sweepd.optimize.study.record.specs import StudySpec
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.space.parsing import load_space
from sweepd.optimize.study.space.subject import Subject
from sweepd.optimize.study.study import StudyHandle, create_study
from tests.optimize.objectives.test_game_study import make_spec

STATES = (TrialState.COMPLETE, TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


def game_spec(**changes: object) -> StudySpec:
    """The spec of a study of CartPole with the preset space."""
    space = load_space("game", Subject("cartpole")).to_dict()
    return make_spec(**{"space": space, "rungs": 3, "seeds": 3} | changes)


def filled_study(
    folder: Path,
    trials: int,
    name: str = "s",
    *,
    spec: StudySpec | None = None,
    states: Sequence[TrialState] = STATES,
    seed: int = 0,
) -> StudyHandle:
    """Make a study whose trials have random parameters and curves; `states` repeat."""
    storage = open_storage(storage_url(None, folder))
    spec = spec or game_spec()
    assert create_study(storage, name, spec, folder, {})
    handle, rng = StudyHandle(storage, name), np.random.default_rng(seed)
    drawing = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed))
    for number in range(trials):
        trial, state = drawing.ask(), states[number % len(states)]
        handle.space.suggest(trial)
        reached = spec.rungs if state == TrialState.COMPLETE else 1
        scores = {
            rung: rng.normal(100.0 * rung, 20.0, 3).tolist() for rung in range(1, reached + 1)
        }
        record = TrialRecord(
            seed=number,
            scores=tuple(scores[reached]),
            seconds=float(rng.uniform(1.0, 30.0)),
            reason="" if state == TrialState.COMPLETE else "worse than its peers",
        )
        handle.study.add_trial(
            optuna.trial.create_trial(
                state=state,
                value=float(np.mean(scores[reached])) if state == TrialState.COMPLETE else None,
                params=trial.params,
                distributions=trial.distributions,
                intermediate_values={rung: float(np.mean(own)) for rung, own in scores.items()},
                user_attrs=record.to_attributes(spec)
                | {rung_key(rung): own for rung, own in scores.items()},
            )
        )
    return handle
