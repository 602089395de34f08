"""A study as the dashboard's pages for researchers show it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from optimize.study.insight.axes import Axis, ordered, study_axes
from optimize.study.insight.importance import LatestImportances
from optimize.study.insight.parameters import frontier, parallel, racing
from optimize.study.insight.rows import TrialRow, TrialRows
from optimize.study.study import StudyHandle


class StudyInsight:
    """Views of one study. What was computed is kept until a trial changes.

    Args:
        handle: the study.
    """

    def __init__(self, handle: StudyHandle) -> None:
        self.handle = handle
        self.rows = TrialRows(handle.storage, handle.study_id)
        self.importances = LatestImportances()
        self.axes = study_axes(handle.space)
        # By name: the rows and the key that a view was computed from, and the view.
        self._kept: dict[str, tuple[Sequence[TrialRow], object, Any]] = {}
        self._lock = threading.Lock()

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the study's trials.

        Returns:
            `head` (see `head`), `importances` (see `LatestImportances.get`), `parallel`, `frontier`
            and `racing` (see those functions), and `best`: the best trial's number, value and
            parameters, or None.
        """
        rows = self.rows.read()
        found = self.importances.get(rows, self.axes)
        axes = ordered(self.axes, found["shares"] or {})
        names = tuple(axis.name for axis in axes)
        return {
            "head": self.head(rows),
            "importances": found,
            "parallel": self._keep("parallel", rows, names, lambda: parallel(rows, axes)),
            "frontier": self._keep("frontier", rows, (), lambda: frontier(rows)),
            "racing": self._keep("racing", rows, (), lambda: racing(rows, self.handle.spec)),
            "best": self._keep("best", rows, (), lambda: _best(rows, self.axes)),
        }

    def head(self, rows: Sequence[TrialRow]) -> dict[str, Any]:
        """Return name, objective and numbers of trials, which every page shows."""
        spec = self.handle.spec
        counts = dict.fromkeys(("COMPLETE", "PRUNED", "FAIL", "RUNNING", "WAITING"), 0)
        for row in rows:
            counts[row.state] += 1
        return {
            "study": self.handle.name,
            "about": spec.about,
            "objective": spec.objective,
            "member": spec.member,
            "synthetic": spec.synthetic,
            "trials": counts,
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


def _best(rows: Sequence[TrialRow], axes: Sequence[Axis]) -> dict[str, Any] | None:
    judged = [row for row in rows if row.judged]
    if not judged:
        return None
    best = max(judged, key=lambda row: (row.value, -row.number))
    values = {
        axis.name: "off" if axis.is_off(best.params) else best.params.get(axis.name)
        for axis in axes
    }
    return {"trial": best.number, "value": best.value, "params": values}
