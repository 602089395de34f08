"""Enqueue parameters that a study shall try next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna
from optuna.trial import TrialState

from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.database.storage import StudyStorage
from sweepd.optimize.study.space.search_space import SearchSpace
from sweepd.optimize.study.spec import refuse_schedules
from sweepd.optimize.study.study import StudyHandle


def enqueue(
    storage: StudyStorage, study_id: int, space: SearchSpace, guess: Mapping[str, Any]
) -> int:
    """Add a waiting trial with these parameters; workers take it before they draw new ones.

    Args:
        storage: database of the study, open for writing.
        study_id: row id of the study.
        space: the study's search space.
        guess: values of some or all parameters of the space, by name. The sampler draws the others.
            A range that can be off takes that value, too.

    Returns:
        The number of the trial.

    Raises:
        InputError: a name is not a parameter of the space, or a value cannot be drawn from it.
    """
    fixed = space.fixed_params(guess)
    trial = optuna.trial.create_trial(
        state=TrialState.WAITING, system_attrs={"fixed_params": fixed}
    )
    trial_id = storage.create_new_trial(study_id, template_trial=trial)
    number: int = storage.get_trial(trial_id).number
    return number


def best_guesses(source: StudyHandle, space: SearchSpace, count: int) -> list[dict[str, Any]]:
    """Return the parameters of a study's best trials that another search space has, too.

    Args:
        source: the study whose trials are used.
        space: the search space of the study to be warm started.
        count: number of trials, the best complete ones.

    Raises:
        InputError: the study has no complete trial, or shares no parameter with the space.
    """
    refuse_schedules(source, "--from-study")
    trials = source.judged()
    if not trials:
        raise InputError(f"study {source.name!r} has no complete trial to start from")
    best = [one.best_trial for one in source.spec.selection.configurations(trials)]
    known = {own.name: own for own in source.space.dimensions}
    shared = [own.name for own in space.dimensions if own.value is None and own.name in known]
    if not shared:
        raise InputError(f"study {source.name!r} shares no parameter with space {space.name!r}")
    return [{name: known[name].resolve(t.params) for name in shared} for t in best[:count]]


def parse_guess(words: list[str]) -> dict[str, Any]:
    """Return parameters from words such as `learning_rate=1e-3`.

    Raises:
        InputError: a word is not NAME=VALUE.
    """
    guess: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not (name and equals and text):
            raise InputError(f"{word!r} is not a parameter; write NAME=VALUE")
        guess[name] = _value(text)
    return guess


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
