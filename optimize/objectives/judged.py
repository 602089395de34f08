"""What the trials of a study are judged by: further values and constraints, as they are asked for."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.objective import Objective
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.run import Evaluation
from sweepd.optimize.study.record.configurations import PBT, RACE
from sweepd.optimize.study.record.specs import StudySpec
from sweepd.optimize.study.record.values import BALANCED, FIRST, Constraint, Value

CHOICES = (BALANCED, FIRST)
SINGLE = (RACE, "cmaes")  # samplers of one value


def check_judged(request: Request, kind: Objective[StudySpec]) -> None:
    """Raise InputError for values and constraints that a study cannot have."""
    values = [Value(request.objective), *map(Value.parse, request.also or ())]
    limits = [Constraint.parse(text) for text in request.constraint or ()]
    twice = [name for name, count in Counter(v.name for v in values).items() if count > 1]
    if twice:
        raise InputError(
            f"--also {twice[0]} is a value of the study already (the first one is --objective "
            f"{request.objective}); leave it out"
        )
    known = kind.number_names(request)
    for flag, name, own in (
        *(("also", value.name, ()) for value in values[1:]),
        *(("constraint", limit.name, (request.objective,)) for limit in limits),
    ):
        if known is not None and name not in (*known, *own):
            raise InputError(
                f"--{flag}: no evaluation of {request.env} records {name!r}; choose one of "
                f"{', '.join((*own, *known))}"
            )
    _check_contradiction(limits)
    if request.choose is not None and request.choose not in CHOICES:
        raise InputError(
            f"--choose {request.choose!r} is not known; choose one of {', '.join(CHOICES)}"
        )
    if values[1:] or limits:
        _check_search(request)


def _check_contradiction(limits: Sequence[Constraint]) -> None:
    for low in limits:
        for high in limits:
            if low.name == high.name and high.upper > low.upper and low.limit > high.limit:
                raise InputError(
                    f"--constraint {low.text} and {high.text} exclude each other: no trial can meet "
                    "both"
                )


def _check_search(request: Request) -> None:
    """Raise InputError for a search that cannot use several values, or constraints."""
    flag = "--also" if request.also else "--constraint"
    if request.search == PBT:
        raise InputError(
            f"{flag} cannot be combined with --search {PBT}, which compares trials by one value "
            "between their rungs; leave one of them out"
        )
    if not request.also:
        return
    if request.sampler in SINGLE:
        raise InputError(
            f"--sampler {request.sampler} searches for one value, and --also gives the study "
            "several; use tpe, random, or another package's such as optuna.samplers:NSGAIISampler"
        )
    if "pruner" in request.given and request.pruner != "none":
        raise InputError(
            f"--pruner {request.pruner} compares trials by one value, and --also gives the study "
            "several; use --pruner none, or a constraint in place of the further value"
        )


def judged_by(request: Request) -> dict[str, Any]:
    """Return the fields of a new study's spec that say what its trials are judged by.

    Raises:
        InputError: there is a rule to choose one of a frontier, and trials have one value.
    """
    also, limits = asked_also(request), asked_constraints(request)
    if request.choose is not None and not also:
        raise InputError(
            f"--choose {request.choose} is for studies with several values (--also), and this one "
            "has one; leave it out"
        )
    rule = request.choose or (FIRST if limits else BALANCED)
    return {"also": also, "constraints": limits, "choose": rule if also else ""}


def asked_also(request: Request) -> tuple[str, ...]:
    """Return the further values that are asked for, as a spec has them."""
    return tuple(Value.parse(text).text for text in request.also or ())


def asked_constraints(request: Request) -> tuple[str, ...]:
    """Return the constraints that are asked for, as a spec has them."""
    return tuple(sorted({Constraint.parse(text).text for text in request.constraint or ()}))


def without_pruner(request: Request) -> Request:
    """Return the request for a new study without a pruner if trials have several values."""
    if not request.also:
        return request
    return dataclasses.replace(request, pruner="none")


@dataclasses.dataclass(frozen=True)
class Judged:
    """A trial's evaluation as the study judges it.

    Attributes:
        values: the trial's values, the objective first.
        violations: by the text of a constraint, see `Constraint.violation`.
        fault: why the trial cannot be judged; "" if it can. The others are then empty.
    """

    values: tuple[float, ...] = ()
    violations: Mapping[str, float] = dataclasses.field(default_factory=dict)
    fault: str = ""


def judge(spec: StudySpec, evaluation: Evaluation) -> Judged:
    """Return the values and violations of a trial at a rung."""
    if not (spec.also or spec.constraints):
        return Judged((evaluation.final,))
    values, limits = spec.values, spec.limits
    # A metric comes first: a constraint on `sharpe` is on this metric, whatever the objective is.
    known = {spec.objective: evaluation.final, **(evaluation.record.metrics or {})}
    for name in (*(value.name for value in values[1:]), *(limit.name for limit in limits)):
        if name not in known:
            recorded = ", ".join(known)
            return Judged(fault=f"its evaluation has no {name!r}; it has {recorded}")
        if not math.isfinite(known[name]):
            return Judged(fault=f"its {name} is {known[name]}, which cannot be judged")
    return Judged(
        (evaluation.final, *(float(known[value.name]) for value in values[1:])),
        {limit.text: limit.violation(float(known[limit.name])) for limit in limits},
    )
