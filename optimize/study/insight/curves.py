"""Learning curves of trials, and the scores of their members."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sweepd.optimize.study.record.rows import TrialRow
from sweepd.optimize.study.record.specs import StudySpec
from sweepd.optimize.study.record.values import broken_words

SHOWN = 3  # trials of whose curves are shown if none is chosen: the best
MOST_SHOWN = 6  # lines that can be told apart
HEAT_ROWS = 20  # trials of the table of members' scores
# Order of the states in the table of trials.
STATES = ("COMPLETE", "RUNNING", "WAITING", "PRUNED", "FAIL")


def best_first(rows: Sequence[TrialRow]) -> list[TrialRow]:
    """Return the trials: complete ones by value, those that break a constraint last, then those in
    work, pruned ones by how far they got and by their last value, and failed ones.
    """

    def key(row: TrialRow) -> tuple[float, ...]:
        last = list(row.rungs.values())[-1] if row.rungs else -math.inf
        value = row.value if row.judged and row.value is not None else -math.inf
        # A NaN has no place in an order.
        last = -math.inf if math.isnan(last) else last
        below = (not row.judged, not row.feasible and row.finished)
        return (STATES.index(row.state), *below, -value, -len(row.rungs), -last, row.number)

    return sorted(rows, key=key)


def curve(row: TrialRow, members: Mapping[int, Sequence[float]], spec: StudySpec) -> dict[str, Any]:
    """Return a trial's learning curve.

    Args:
        row: the trial.
        members: scores per member by rung.
        spec: the study's spec.

    Returns:
        `trial`, `state`, `value` (objective, None if not complete), `reason`, `points`, one per
        rung: `rung`, `steps` (per member), `value`, and `low`, `high`, `mean`, `deviation` and
        `members` (scores) where those are recorded, and `beside`, one per evaluation beside rungs:
        `steps` and `value`.
    """
    points = []
    for rung, value in row.rungs.items():
        scores = [score for score in members.get(rung, ()) if math.isfinite(score)]
        point: dict[str, Any] = {
            "rung": rung,
            "steps": spec.rung_end(rung) * spec.transitions,
            "value": value if math.isfinite(value) else None,
        }
        if scores:
            point |= {
                "low": min(scores),
                "high": max(scores),
                "mean": float(np.mean(scores)),
                "deviation": float(np.std(scores, ddof=1)) if len(scores) > 1 else None,
                "members": scores,
            }
        points.append(point)
    return {
        "trial": row.number,
        "state": row.state,
        "value": row.value if row.judged else None,
        "reason": row.reason,
        "points": points,
        "beside": [{"steps": steps, "value": value} for steps, value in row.evaluations],
    }


def member_curves(
    rows: Sequence[TrialRow], members: Mapping[int, Mapping[int, Sequence[float]]], spec: StudySpec
) -> dict[str, Any]:
    """Return the learning curve of every member of some trials, and their mean.

    Args:
        rows: the trials, of one configuration.
        members: scores per member by trial and rung.
        spec: the study's spec.

    Returns:
        `lines`: one per member with a finite score, `trial`, `name` and `points`; `mean`: points.
        A point has `rung`, `steps` (per member) and `value`; the mean has also `members`, their
        number at that rung; `beside`: the evaluations beside rungs, per trial with some: `trial`
        and `points`.
    """
    names = spec.member_names(
        max((len(scores) for own in members.values() for scores in own.values()), default=0)
    )
    lines: dict[tuple[int, int], list[dict[str, Any]]] = {}
    at_rung: dict[int, list[float]] = {}
    for row in rows:
        for rung, scores in members.get(row.number, {}).items():
            for member, score in enumerate(scores):
                if math.isfinite(score):
                    lines.setdefault((row.number, member), []).append(_point(spec, rung, score))
                    at_rung.setdefault(rung, []).append(score)
    several = len({trial for trial, _ in lines}) > 1
    return {
        "lines": [
            {
                "trial": trial,
                "name": f"trial {trial}" + (f", {names[member]}" if len(names) > 1 else "")
                if several
                else names[member],
                "points": points,
            }
            for (trial, member), points in sorted(lines.items())
        ],
        "mean": [
            _point(spec, rung, float(np.mean(scores))) | {"members": len(scores)}
            for rung, scores in sorted(at_rung.items())
        ],
        "beside": [
            {
                "trial": row.number,
                "points": [{"steps": steps, "value": value} for steps, value in row.evaluations],
            }
            for row in rows
            if row.evaluations
        ],
    }


def _point(spec: StudySpec, rung: int, value: float) -> dict[str, Any]:
    return {"rung": rung, "steps": spec.rung_end(rung) * spec.transitions, "value": value}


def heat(rows: Sequence[TrialRow], chosen: Sequence[int], spec: StudySpec) -> dict[str, Any]:
    """Return the members' scores of the best complete trials and of the chosen ones.

    Returns:
        `members` (names of the columns), `rows` (`trial`, `state`, `value`, `scores`, and
        `shades`, 0 … 1 from the lowest to the highest score), `low` and `high` score.
    """
    judged = [row for row in rows if row.judged and row.scores]
    ranked = sorted(judged, key=lambda row: (not row.feasible, -(row.value or 0.0), row.number))
    best = ranked[:HEAT_ROWS]
    shown = {row.number for row in best}
    best += [row for row in rows if row.number in chosen and row.scores and row.number not in shown]
    finite = [score for row in best for score in row.scores if math.isfinite(score)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return {
        "members": spec.member_names(max((len(row.scores) for row in best), default=0)),
        "rows": [
            {
                "trial": row.number,
                "state": row.state,
                "value": row.value if row.judged else None,
                "scores": list(row.scores),
                "shades": [_shade(score, low, high) for score in row.scores],
            }
            for row in best
        ],
        "low": low,
        "high": high,
    }


def _shade(score: float, low: float, high: float) -> float:
    if not math.isfinite(score):
        return 0.0
    return 0.5 if high <= low else (score - low) / (high - low)


def table_row(row: TrialRow) -> dict[str, Any]:
    """Return a row of the table of trials."""
    return {
        "trial": row.number,
        "state": row.state,
        "ours": row.ours,
        "value": row.value if row.state == "COMPLETE" else None,
        "further": list(row.further),
        "broken": broken_words(row.violations) if row.state == "COMPLETE" else "",
        "last": list(row.rungs.values())[-1] if row.rungs else None,
        "rungs": max(row.rungs, default=0),
        "members": len(row.scores),
        "seconds": row.seconds,
        "reason": row.reason,
    }
