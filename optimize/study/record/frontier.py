"""The frontier of a study with several values, and the trials that break constraints, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweepd.optimize.study.record.reader import StudyReader
from sweepd.optimize.study.record.values import rule_words

SHOWN = 12  # points of a frontier in a text


def frontier_of(study: StudyReader) -> dict[str, Any] | None:
    """Return what a study with several values or constraints selects from.

    Returns:
        None for another study. `values`: `name` and `direction` of each; `constraints` as texts.
        `complete`, `infeasible`: numbers of complete trials, and of those that do not meet the
        constraints. `frontier`: of several values, the trials than which none is as good in every
        value and better in one, the highest objective first, as `trial` and `values`; empty with
        one value. `chosen`: number of the selected trial, None without one. `rule`: how it was
        selected, in words; "" with one value.
    """
    spec = study.spec
    if not (spec.several or spec.constraints):
        return None
    judged = [row for row in study.rows.read() if row.judged]
    best = study.best()
    front = [one.best_trial for one in study.frontier()] if spec.several else []
    front.sort(key=lambda trial: (-trial.values[0], trial.number))
    return {
        "values": [{"name": one.name, "direction": one.direction} for one in spec.values],
        "constraints": list(spec.constraints),
        "complete": len(judged),
        "infeasible": sum(not row.feasible for row in judged),
        "frontier": [{"trial": own.number, "values": list(own.values)} for own in front],
        "chosen": None if best is None else best.best_trial.number,
        "rule": rule_words(spec.choose, spec.values, spec.limits) if spec.several else "",
    }


def frontier_lines(found: Mapping[str, Any], most: int = SHOWN) -> list[str]:
    """Return the result of `frontier_of` as lines. most: points that are shown."""
    lines = []
    if found["constraints"]:
        text = " and ".join(found["constraints"])
        kept = found["complete"] - found["infeasible"]
        lines.append(f"constraints: {kept} of {found['complete']} complete trials meet {text}")
    if found["frontier"]:
        count = len(found["frontier"])
        trials = "trial" if count == 1 else "trials"
        lines.append(
            f"frontier: {count} of {found['complete']} complete {trials}; selected: trial "
            f"{found['chosen']}, {found['rule']}"
        )
        names = [f"{one['name']} ({one['direction']})" for one in found["values"]]
        for point in found["frontier"][:most]:
            shown = ", ".join(
                f"{name} {value:+.4f}" for name, value in zip(names, point["values"], strict=True)
            )
            lines.append(f"  trial {point['trial']}: {shown}")
        if count > most:
            lines.append(f"  … and {count - most} more")
    return lines
