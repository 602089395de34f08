"""Checks of a study's spec: the number of folds, and joining a study with other settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from envs.crypto.splits import CrossValidation
from envs.support.errors import InputError
from envs.support.study_record import StudySpec

# A trial trains one member per fold: more than MANY_FOLDS give a warning, more than MOST_FOLDS
# are refused.
MANY_FOLDS, MOST_FOLDS = 45, 128
# Fields that may differ between the workers of a study: the folder of the data (its fingerprint
# may not differ), the CPU threads (results do not depend on them), and the kind of processor
# (results agree to rounding; the worker says so).
NOT_COMPARED = ("data.dir", "threads", "processor")


def check_folds(cv: CrossValidation, budget: int) -> str | None:
    """A warning where a trial has very many folds. Raises InputError where it has more than any machine should train.

    budget: environment steps per fold.
    """
    if cv.folds <= MANY_FOLDS:
        return None
    tests = f" and --test-groups {cv.test_groups}" if cv.scheme == "cpcv" else ""
    costs = (
        f"--groups {cv.groups}{tests} make {cv.folds:,} folds: every trial would train {cv.folds:,} members, "
        f"{cv.folds * budget:,} steps in all"
    )
    if cv.folds > MOST_FOLDS:
        advice = (
            "use --groups 5 to 10 with --test-groups 2"
            if cv.scheme == "cpcv"
            else "use --groups 5 to 10"
        )
        raise InputError(f"{costs}; at most {MOST_FOLDS} folds are allowed: {advice}")
    return f"{costs}; --groups 5 to 10 are usual"


def differences(frozen: StudySpec, now: StudySpec) -> list[tuple[str, Any, Any]]:
    """(dotted name, frozen value, value now) of everything that differs and matters."""
    ours, theirs = _flat(json.loads(frozen.to_json())), _flat(json.loads(now.to_json()))
    absent = "nothing"
    return [
        (name, ours.get(name, absent), theirs.get(name, absent))
        for name in sorted(set(ours) | set(theirs))
        if ours.get(name, absent) != theirs.get(name, absent) and name not in NOT_COMPARED
    ]


def refuse_other(study_name: str, frozen: StudySpec, now: StudySpec) -> None:
    """Raise InputError naming the first difference between the study as it was frozen and what was asked for."""
    found = differences(frozen, now)
    if found:
        # A difference in a flag is named before those in what follows from it.
        name, was, given = min(
            found,
            key=lambda d: (d[0].startswith(("data.f", "data.l", "data.b", "first_bar")), d[0]),
        )
        also = f" ({len(found) - 1} more differ)" if len(found) > 1 else ""
        raise InputError(
            f"study {study_name!r} was created with {name} = {_short(was)}, and now it is {_short(given)}{also}; "
            "leave that as it was, or choose another --study-name"
        )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping):
        flat: dict[str, Any] = {}
        for key, inner in value.items():
            flat |= _flat(inner, f"{prefix}.{key}" if prefix else str(key))
        return flat
    return {prefix: value}
