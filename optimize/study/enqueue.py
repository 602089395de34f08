"""Enqueue parameters that a study shall try next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.trial import TrialState

from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.database.storage import StudyStorage
from sweepd.optimize.study.prior import refuse_seen_holdout
from sweepd.optimize.study.record.specs import StudySpec
from sweepd.optimize.study.space.parsing import study_space
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
    return [_guess(source, space, trial.params) for trial in best[:count]]


def _guess(source: StudyHandle, space: SearchSpace, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return those parameters of a study's trial that another search space has, too."""
    known = {own.name: own for own in source.space.dimensions}
    shared = [own.name for own in space.dimensions if own.value is None and own.name in known]
    if not shared:
        raise InputError(f"study {source.name!r} shares no parameter with space {space.name!r}")
    return {name: known[name].resolve(params) for name in shared}


@dataclass(frozen=True)
class FirstTrial:
    """A trial that a new study tries first. params: as Optuna stores them. study: of the trial."""

    params: dict[str, Any]
    study: StudyHandle


def first_trials(storage: StudyStorage, words: Sequence[str], spec: StudySpec) -> list[FirstTrial]:
    """Return the first trials of a new study.

    Args:
        storage: database of the studies.
        words: STUDY#TRIAL, as of --try-first.
        spec: of the new study.

    Raises:
        InputError: a word names no finished trial, or one whose parameters the study cannot draw,
            or that has seen a part of its hold-out.
    """
    space, found = study_space(spec), list[FirstTrial]()
    for word in words:
        name, _, number = word.rpartition("#")
        if not (name and number.isdecimal()):
            raise InputError(f"--try-first {word!r} must be STUDY#TRIAL, for example hourly#7")
        try:
            source = StudyHandle(storage, name)
        except InputError:
            raise InputError(
                f"--try-first {word}: the database has no study of sweepd with this name; see "
                "sweepd studies list"
            ) from None
        refuse_schedules(source, "--try-first")
        refuse_seen_holdout(source, spec, f"--try-first {word}")
        trial = next((one for one in source.judged() if one.number == int(number)), None)
        if trial is None:
            raise InputError(f"--try-first {word}: the study has no complete trial of this number")
        try:
            params = space.fixed_params(_guess(source, space, trial.params))
        except InputError as error:
            raise InputError(f"--try-first {word}: {error}") from None
        found.append(FirstTrial(params, source))
    return found


def refuse_other_first(
    study: str, recorded: Sequence[str] | None, words: Sequence[str], free: str
) -> None:
    """Raise InputError if an existing study was created with other first trials."""
    before = list(recorded or ())
    if before != list(words):
        was = ", ".join(before) or "none"
        raise InputError(
            f"study {study!r} was created with --try-first {was}, and now it is "
            f"{', '.join(words)}; its first trials cannot change: leave the flag out, or make a "
            f"study of its own with --study-name {free}"
        )


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
