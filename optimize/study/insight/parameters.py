"""Parameters of a study's trials: parallel coordinates, objective against cost, training received."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from sweepd.optimize.study.insight.axes import Axis
from sweepd.optimize.study.record.rows import TrialRow
from sweepd.optimize.study.record.specs import StudySpec

MOST_LINES, BEST_LINES = 240, 40  # more lines hide each other
MOST_POINTS = 1500
# Upper ends of the bands in which complete trials are drawn, as shares of them from the best.
BANDS = (0.05, 0.25, 0.5, 1.0)
FAR = 3.0  # the lower end of the objective's axis cuts off values this many times as far away


def parallel(
    rows: Sequence[TrialRow], axes: Sequence[Axis], selected: int | None = None
) -> dict[str, Any]:
    """Return finished trials as lines of parallel coordinates.

    Of many trials only some are lines: the best ones, the selected one, and every k-th other one.

    Returns:
        `axes`: the parameters, see `Axis`. `objective`: `low` and `high` end of the objective's
        axis, and `cut`, whether lower values are drawn at its lower end. `lines`, the worst first:
        `trial`, `state`, `value`, `band` (index into `BANDS`; None if not complete), `at` (place of
        the value, None without one), `params`, `places` (one per axis; None if there is none) and
        `off` (per axis). `of`: number of finished trials. `best`, `every`: the rule, if not all
        are lines. `selected`: number of the trial that the study selects, None without one.
    """
    finished = [row for row in rows if row.finished]
    judged = _best_first(finished)
    low, high, cut = _ends([_value(row) for row in judged])
    shown, every = _sample(finished, judged, selected)
    ranks = {row.number: rank for rank, row in enumerate(judged)}
    lines = []
    for row in sorted(shown, key=lambda row: -ranks.get(row.number, len(judged))):
        rank, places = ranks.get(row.number), [axis.place(row.params) for axis in axes]
        value = None if rank is None else _value(row)
        lines.append(
            {
                "trial": row.number,
                "state": row.state,
                "value": value,
                "band": None if rank is None else _band(rank, len(judged)),
                "at": None if value is None else _place(value, low, high),
                "params": {axis.name: row.params.get(axis.name) for axis in axes},
                "places": places,
                "off": [axis.is_off(row.params) for axis in axes],
            }
        )
    return {
        "axes": [axis.to_dict() for axis in axes],
        "objective": {"low": low, "high": high, "cut": cut},
        "lines": lines,
        "of": len(finished),
        "best": BEST_LINES,
        "every": every,
        "selected": selected,
    }


def _best_first(rows: Sequence[TrialRow]) -> list[TrialRow]:
    """Return the judged trials, those that break a constraint last."""
    judged = [row for row in rows if row.judged]
    return sorted(judged, key=lambda row: (not row.feasible, -_value(row), row.number))


def _value(row: TrialRow) -> float:
    assert row.value is not None
    return row.value


def _sample(
    finished: Sequence[TrialRow], judged: Sequence[TrialRow], selected: int | None
) -> tuple[Sequence[TrialRow], int]:
    """Return the trials that are lines, and k of the rule (1: all)."""
    if len(finished) <= MOST_LINES:
        return finished, 1
    # A race selects by the mean over seeds: not always the trial with the highest value.
    chosen = [row for row in judged[BEST_LINES:] if row.number == selected]
    best = [*judged[:BEST_LINES], *chosen]
    kept = {row.number for row in best}
    others = [row for row in finished if row.number not in kept]
    every = -(-len(others) // (MOST_LINES - len(best)))
    return [*best, *others[::every]], every


def _ends(values: Sequence[float]) -> tuple[float, float, bool]:
    """Return the ends of the objective's axis, and whether far lower values are cut off."""
    if not values:
        return 0.0, 1.0, False
    found = np.array([value for value in values if np.isfinite(value)] or [0.0])
    low, high = float(found.min()), float(found.max())
    usual = float(np.quantile(found, 0.05))
    if usual - low > FAR * (high - usual):
        return usual, high, True
    return low, high, False


def _place(value: float, low: float, high: float) -> float:
    return 0.5 if high <= low else float(np.clip((value - low) / (high - low), 0.0, 1.0))


def _band(rank: int, count: int) -> int:
    return next(index for index, end in enumerate(BANDS) if rank < max(1.0, end * count))


def frontier(rows: Sequence[TrialRow]) -> dict[str, Any]:
    """Return the objective against cost.

    Returns:
        `points`: complete trials that meet the constraints, with their training time: `trial`,
        `seconds`, `value`. `front`:
        those than which no cheaper one is as good, by cost. `of`: number of trials that `points`
        are taken from; of many, every k-th is a point, and all of the front.
    """
    costed = [row for row in rows if row.selectable and row.seconds]
    costed.sort(key=lambda row: (row.seconds or 0.0, -_value(row)))
    front: list[TrialRow] = []
    for row in costed:
        if not front or _value(row) > _value(front[-1]):
            front.append(row)
    every = -(-len(costed) // MOST_POINTS) or 1
    return {
        "points": [_point(row) for row in costed[::every]],
        "front": [_point(row) for row in front],
        "of": len(costed),
    }


def _point(row: TrialRow) -> dict[str, Any]:
    return {"trial": row.number, "seconds": row.seconds, "value": row.value}


def racing(rows: Sequence[TrialRow], spec: StudySpec) -> list[dict[str, Any]]:
    """Return how much training trials received, the most first.

    Trials with the same parameters are one configuration: its members add up.

    Returns:
        Per number of rungs and of members: `rungs`, `steps` (per member), `members`,
        `configurations`, `complete`, `pruned`, `failed` (numbers of trials), `best` (value of a
        complete trial) and `trial`.
    """
    configurations: dict[tuple[Any, ...], list[TrialRow]] = defaultdict(list)
    for row in rows:
        if row.finished and row.ours:
            configurations[tuple(sorted(row.params.items(), key=str))].append(row)
    groups: dict[tuple[int, int], list[list[TrialRow]]] = defaultdict(list)
    for own in configurations.values():
        groups[
            max(max(row.rungs, default=0) for row in own), sum(len(r.scores) for r in own)
        ].append(own)
    found = []
    for (rungs, members), parts in sorted(groups.items(), reverse=True):
        trials = [row for own in parts for row in own]
        best = _best_first(trials)[:1]
        found.append(
            {
                "rungs": rungs,
                "steps": spec.rung_end(rungs) * spec.transitions,
                "members": members,
                "configurations": len(parts),
                "complete": sum(row.state == "COMPLETE" for row in trials),
                "pruned": sum(row.state == "PRUNED" for row in trials),
                "failed": sum(row.state == "FAIL" for row in trials),
                "best": best[0].value if best else None,
                "trial": best[0].number if best else None,
            }
        )
    return found
