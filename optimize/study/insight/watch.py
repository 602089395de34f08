"""A study as the dashboard's pages for researchers show it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from sweepd.optimize.study.insight.axes import Axis, ordered, study_axes
from sweepd.optimize.study.insight.comparison import (
    best_so_far,
    common_parameters,
    differences,
    summary,
)
from sweepd.optimize.study.insight.curves import (
    MOST_SHOWN,
    SHOWN,
    best_first,
    curve,
    heat,
    member_curves,
    table_row,
)
from sweepd.optimize.study.insight.importance import LatestImportances
from sweepd.optimize.study.insight.parameters import MOST_POINTS, frontier, parallel, racing
from sweepd.optimize.study.population import schedule_table
from sweepd.optimize.study.record.configurations import Configuration
from sweepd.optimize.study.record.frontier import frontier_of
from sweepd.optimize.study.record.reader import StudyReader, count_states
from sweepd.optimize.study.record.rows import TrialRow
from sweepd.optimize.study.record.specs import GameSpec
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.space.parsing import study_space

SHOWN_RACE = 12  # configurations


class StudyInsight:
    """Views of one study. What was computed is kept until a trial changes.

    Args:
        handle: the study.
    """

    def __init__(self, handle: StudyReader) -> None:
        self.handle = handle
        self.rows = handle.rows
        self.importances = LatestImportances()
        self.axes = study_axes(study_space(handle.spec))
        # By name: the rows and the key that a view was computed from, and the view.
        self._kept: dict[str, tuple[Sequence[TrialRow], object, Any]] = {}
        self._lock = threading.Lock()

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the study's trials.

        Returns:
            `head` (see `head`), `importances` (see `LatestImportances.get`), `parallel`, `frontier`
            and `racing` (see those functions), `values` (see `values_view`), `best`: the best trial's number, value and
            parameters, or None, `race` (see the function), and `schedule`: of a study with
            `--search pbt` that of the best trial (see `schedule_table`), else None.
        """
        rows = self.rows.read()
        found = self.importances.get(rows, self.axes)
        axes = ordered(self.axes, found["shares"] or {})
        names = tuple(axis.name for axis in axes)
        best = _best(self.handle.best(), self.axes)
        number = None if best is None else best["trial"]
        return {
            "head": self.head(rows),
            "importances": found,
            "parallel": self._keep(
                "parallel", rows, (names, number), lambda: parallel(rows, axes, number)
            ),
            "frontier": self._keep("frontier", rows, (), lambda: frontier(rows)),
            "racing": self._keep("racing", rows, (), lambda: racing(rows, self.handle.spec)),
            "values": self._keep("values", rows, (), lambda: values_view(self.handle, rows)),
            "best": best,
            "race": race(self.handle),
            "schedule": self._keep("schedule", rows, number, lambda: self._schedule(number)),
        }

    def trials(self, chosen: Sequence[int] | None) -> dict[str, Any]:
        """Return the study's trials, and the learning curves of some.

        Args:
            chosen: numbers of trials; None for the best ones.

        Returns:
            `head` (see `head`), `chosen` (numbers of existing trials), `curves` (see `curve`) and
            `axis` (what their values are), `rungs` (of the study), `metrics` (of the chosen ones by
            number), `heat` (see the function) and `table`: all trials as `table_row`, the best first.
        """
        rows, spec = self.rows.read(), self.handle.spec
        table = self._keep("table", rows, (), lambda: best_first(rows))
        if chosen is None:
            chosen = [row.number for row in table if row.judged][:SHOWN]
        numbers = {row.number for row in rows}
        known = [number for number in dict.fromkeys(chosen) if number in numbers][:MOST_SHOWN]
        return {
            "head": self.head(rows),
            "chosen": known,
            "curves": self._keep("curves", rows, tuple(known), lambda: self._curves(rows, known)),
            "axis": spec.rung_text,
            "rungs": spec.rungs,
            "metrics": self._keep("metrics", rows, tuple(known), lambda: self.rows.metrics(known)),
            "heat": self._keep("heat", rows, tuple(known), lambda: heat(rows, known, spec)),
            "table": self._keep("rows", rows, (), lambda: [table_row(row) for row in table]),
        }

    def _curves(self, rows: Sequence[TrialRow], chosen: Sequence[int]) -> list[dict[str, Any]]:
        members, by_number = self.rows.curves(chosen), {row.number: row for row in rows}
        return [
            curve(by_number[number], members.get(number, {}), self.handle.spec) for number in chosen
        ]

    def trial(self, number: int) -> dict[str, Any] | None:
        """Return everything about one trial; None if there is no such trial.

        Returns:
            `head` (see `head`), `axis` (what the values of the curves are), `rungs` (of the study),
            `row` (see `table_row`), `curves` (see `member_curves`) of the trials with the same
            parameters, whose numbers are `same`, `params` (name, value and axis, which is None if
            the space has no such parameter), `metrics`, `started` and `ended` (seconds since the
            epoch, or None), `record` (a `TrialRecord`), `files` (names in `folder`), `study_id`,
            and `playable`: whether its best member can play the game.
        """
        rows, spec = self.rows.read(), self.handle.spec
        row = next((one for one in rows if one.number == number), None)
        if row is None:
            return None
        same = [one for one in rows if one.params == row.params and one.params] or [row]
        numbers = [one.number for one in same]
        record = TrialRecord.from_attributes(self.rows.attributes(row))
        folder = self.handle.run_dir / row.folder
        axes = {axis.name: axis for axis in self.axes}
        return {
            "head": self.head(rows),
            "axis": spec.rung_text,
            "rungs": spec.rungs,
            "row": table_row(row),
            "same": numbers,
            "curves": member_curves(same, self.rows.curves(numbers), spec),
            "params": [(name, value, axes.get(name)) for name, value in row.params.items()],
            "metrics": record.metrics or {},
            "started": row.started,
            "ended": row.ended,
            "record": record,
            "folder": str(folder),
            "files": sorted(one.name for one in folder.iterdir()) if folder.is_dir() else [],
            "study_id": self.handle.study_id,
            "playable": row.judged and isinstance(spec, GameSpec) and record.members is not None,
        }

    def compared(self) -> dict[str, Any]:
        """Return this study's side of a comparison: `head`, `so_far` and `summary`."""
        rows = self.rows.read()
        so_far = self._keep("so_far", rows, (), lambda: best_so_far(rows))
        selected = self.handle.best()
        return {
            "head": self.head(rows),
            "so_far": so_far,
            "summary": self._keep("summary", rows, (), lambda: summary(rows, so_far, selected)),
            "best": _best(selected, self.axes),
        }

    def _schedule(self, number: int | None) -> dict[str, Any] | None:
        if number is None or not self.handle.spec.evolves:
            return None
        return schedule_table(self.handle, number)

    def head(self, rows: Sequence[TrialRow]) -> dict[str, Any]:
        """Return name, objective, further values and numbers of trials, which every page shows."""
        spec = self.handle.spec
        return {
            "study": self.handle.name,
            "about": spec.about,
            "objective": spec.objective_text,
            "further": [value.name for value in spec.values[1:]],
            "member": spec.member,
            "synthetic": spec.synthetic,
            "trials": count_states(row.state for row in rows),
        }

    def _keep(
        self, name: str, rows: Sequence[TrialRow], key: object, compute: Callable[[], Any]
    ) -> Any:
        """Return what `compute` returned last, or its new result if a trial or `key` changed."""
        with self._lock:
            before = self._kept.get(name)
            # `TrialRows` makes another list when a trial has changed.
            if before is None or before[0] is not rows or before[1] != key:
                before = self._kept[name] = rows, key, compute()
            return before[2]


def compare(first: StudyInsight, second: StudyInsight) -> dict[str, Any]:
    """Return two studies side by side.

    Returns:
        `sides`: see `StudyInsight.compared`. `settings`: see `differences`. `parameters`: see
        `common_parameters`.
    """
    studies = (first, second)
    sides = [study.compared() for study in studies]
    return {
        "sides": sides,
        "settings": differences([study.handle for study in studies]),
        "parameters": common_parameters(
            [study.axes for study in studies], [side["best"] for side in sides]
        ),
    }


def values_view(handle: StudyReader, rows: Sequence[TrialRow]) -> dict[str, Any] | None:
    """Return the frontier of several values, and the other trials.

    Returns:
        None if the study has one value and no constraint; else the result of `frontier_of`, and
        `points`: of several values, the complete trials as `trial`, `values` and `feasible`.
    """
    found = frontier_of(handle)
    if found is None:
        return None
    judged = [row for row in rows if row.judged and row.further]
    every = -(-len(judged) // MOST_POINTS) or 1
    points = [
        {"trial": row.number, "values": list(row.values), "feasible": row.feasible}
        for row in judged[::every]
    ]
    return found | {"points": points}


def race(handle: StudyReader) -> list[dict[str, Any]]:
    """Return the best configurations of a race, the best first; none of another study.

    Returns:
        `trials` (their numbers, the best first), `seeds` (their number), `value` (mean over them),
        `between` (see `intervals.between`) and `behind`, of all but the first: how far it is
        ahead, see `Configuration.lead_words`.
    """
    spec = handle.spec
    found = handle.configurations()[:SHOWN_RACE] if spec.selection.racing else []
    return [
        {
            "trials": [trial.number for trial in one.trials],
            "seeds": len(one.scores),
            "value": one.value,
            "between": one.to_dict(spec.solved)["between"],
            "behind": "" if one is found[0] else found[0].lead_words(one),
        }
        for one in found
    ]


def _best(best: Configuration | None, axes: Sequence[Axis]) -> dict[str, Any] | None:
    if best is None:
        return None
    params = best.best_trial.params
    values = {axis.name: "off" if axis.is_off(params) else params.get(axis.name) for axis in axes}
    return {"trial": best.best_trial.number, "value": best.value, "params": values}
