"""Checks of a study's spec: the number of folds, and joining a study with other settings."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from sweepd.envs.crypto.splits import CrossValidation
from sweepd.envs.support import nested
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.record.reader import StudyReader
from sweepd.optimize.study.record.specs import StudySpec

# A trial trains one member per fold: more than MANY_FOLDS give a warning, more than MOST_FOLDS
# are refused.
MANY_FOLDS, MOST_FOLDS = 45, 128
# Fields that may differ between the workers of a study: the folder of the data (its fingerprint
# may not differ), the CPU threads (results do not depend on them), and the kind of processor
# (results agree to rounding; the worker says so).
NOT_COMPARED = ("data.dir", "threads", "processor")


def check_folds(cv: CrossValidation, budget: int) -> str | None:
    """Check the number of folds of a trial.

    Args:
        cv: the cross-validation.
        budget: environment steps per fold.

    Returns:
        A warning if there are very many folds, else None.

    Raises:
        InputError: there are more than `MOST_FOLDS`.
    """
    if cv.folds <= MANY_FOLDS:
        return None
    tests = f" and --test-groups {cv.test_groups}" if cv.scheme == "cpcv" else ""
    costs = (
        f"--groups {cv.groups}{tests} make {cv.folds:,} folds: every trial would train "
        f"{cv.folds:,} members, {cv.folds * budget:,} steps in all"
    )
    if cv.folds > MOST_FOLDS:
        advice = (
            "use --groups 5 to 10 with --test-groups 2"
            if cv.scheme == "cpcv"
            else "use --groups 5 to 10"
        )
        raise InputError(f"{costs}; at most {MOST_FOLDS} folds are allowed: {advice}")
    return f"{costs}; --groups 5 to 10 are usual"


def differences(recorded: StudySpec, requested: StudySpec) -> list[tuple[str, Any, Any]]:
    """Return (dotted name, recorded, requested value) of all fields that differ and matter."""
    ours, theirs = json.loads(recorded.to_json()), json.loads(requested.to_json())
    every = nested.differences(ours, theirs, absent="nothing")
    return [one for one in every if one[0] not in NOT_COMPARED]


def field_of(record: Any, path: str) -> Any:
    """Return a field of a spec by its dotted name; None if there is no such field."""
    for name in path.split("."):
        own = record if isinstance(record, Mapping) else vars(record)
        if name not in own:
            return None
        record = own[name]
    return record


def with_field(record: Any, path: str, value: Any) -> Any:
    """Return a spec, or a part of it, with another value of a field by its dotted name."""
    name, _, rest = path.partition(".")
    mapping = isinstance(record, Mapping)
    if rest:
        value = with_field(record[name] if mapping else getattr(record, name), rest, value)
    return {**record, name: value} if mapping else dataclasses.replace(record, **{name: value})


def refuse_other(study_name: str, recorded: StudySpec, requested: StudySpec, free: str) -> None:
    """Raise InputError that names the first difference between a study and a request.

    Args:
        study_name: name of the study.
        recorded: its spec.
        requested: what is asked for now.
        free: name for a study of its own, see `free_name`.
    """
    found = differences(recorded, requested)
    if found:
        # A difference in a flag is named before the differences that follow from it.
        name, was, given = min(
            found,
            key=lambda d: (d[0].startswith(("data.f", "data.l", "data.b", "first_bar")), d[0]),
        )
        also = f" ({len(found) - 1} more differ)" if len(found) > 1 else ""
        raise InputError(
            f"study {study_name!r} was created with {name} = {_short(was)}, and now it is "
            f"{_short(given)}{also}; leave that as it was, or make a study of its own with "
            f"--study-name {free}"
        )


def refuse_schedules(study: StudyReader, wanted: str) -> None:
    """Raise InputError if the trials of a study have schedules in place of parameters.

    Args:
        study: the study.
        wanted: the flag or command that asks for parameters.
    """
    if study.changes_with:
        raise InputError(
            f"{wanted}: the trials of study {study.name!r} ({study.changes_with}) changed their "
            "hyperparameters during their training, so none of them stands for one set of "
            "parameters; name another study"
        )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"
