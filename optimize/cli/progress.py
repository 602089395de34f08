"""History of a study, and the studies shown by the dashboard."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.formatting import duration, hourly, sparkline
from sweepd.envs.support.invocation import install_extra
from sweepd.envs.support.passwords import hide_password
from sweepd.optimize.cli.status import show, study_status
from sweepd.optimize.objectives.outlook import CountLooks, sentence
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.insight.watch import StudyInsight, compare
from sweepd.optimize.study.record.database import (
    StudyDatabase,
    open_to_read,
    our_studies,
    storage_url,
)
from sweepd.optimize.study.record.keys import ACTIONS_KEY
from sweepd.optimize.study.record.reader import StudyReader
from sweepd.optimize.study.record.rows import TrialRow

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

MOST_PARTS = 60  # of the time that a study took
PARTS = (60, 300, 900, 3600, 6 * 3600, 86400, 7 * 86400)  # their length, seconds
SHOWN_PARTS = 24


def study_progress(handle: StudyReader, count_looks: CountLooks | None = None) -> dict[str, Any]:
    """Return `study_status` and `history`; docs/reference/status.md describes the keys."""
    found = study_status(handle, count_looks)
    return found | {
        "objective": handle.spec.objective_text,
        "synthetic": handle.spec.synthetic,
        "outlook": sentence(found["gate"], (found["gate"] or {}).get("looks")),
        "history": history(handle.rows.read()),
        "actions": handle.storage.attributes(handle.study_id).get(ACTIONS_KEY, []),
    }


def history(rows: Sequence[TrialRow]) -> dict[str, Any]:
    """Return the history of a study as plain data. Times are in seconds since the epoch.

    Returns:
        `rates`: finished trials in equal parts of the time from the first trial's start to the last
        one's end: `at` (start of the part), `seconds`, `finished`, `per_hour`. `values`: complete
        trials that meet the constraints, in the order in which they ended: `at`, `trial`, `value`
        (the objective), and `best` (so far).
    """
    ended = [(row.ended, row) for row in rows if row.finished and row.ended is not None]
    ended.sort(key=lambda pair: (pair[0], pair[1].number))
    values, best = [], -math.inf
    for at, row in ended:
        if row.value is not None and row.feasible:
            best = max(best, row.value)
            values.append({"at": at, "trial": row.number, "value": row.value, "best": best})
    begun = [row.started for row in rows if row.started is not None]
    return {"rates": _rates([at for at, _ in ended], min(begun, default=0.0)), "values": values}


def _rates(ended: Sequence[float], begin: float) -> list[dict[str, float]]:
    if not ended:
        return []
    # At least one second before the first end, so that the rate is finite.
    begin, end = min(begin, ended[0] - 1.0), ended[-1]
    length = next((part for part in PARTS if (end - begin) / part <= MOST_PARTS), PARTS[-1])
    # `nextafter` puts the last end inside the last interval.
    edges = np.append(np.arange(begin, end, length), np.nextafter(end, math.inf))
    if len(edges) > 2 and end - edges[-2] < length / 2:  # too short for a rate
        edges = np.delete(edges, -2)
    counts, _ = np.histogram(ended, edges)
    lengths = np.diff(edges)
    return [
        {
            "at": float(at),
            "seconds": float(long),
            "finished": int(count),
            "per_hour": float(3600.0 * count / long),
        }
        for at, long, count in zip(edges[:-1], lengths, counts, strict=True)
    ]


def show_progress(found: dict[str, Any]) -> Group:
    """Format the result of `study_progress` as tables."""
    grid = Table.grid(Column(style="bold", no_wrap=True), "", padding=(0, 2))
    rates, values = found["history"]["rates"], found["history"]["values"]
    if rates:
        shown = rates[-SHOWN_PARTS:]
        most = max(part["per_hour"] for part in shown)
        length = duration(shown[0]["seconds"])
        curve = sparkline([part["per_hour"] for part in shown], lowest=0.0)
        grid.add_row("trials/hour", Text(f"{curve}  up to {hourly(most)}, in parts of {length}"))
    if values:
        # At equal distances, so that curves of long studies fit on a line.
        places = np.linspace(0, len(values) - 1, min(SHOWN_PARTS, len(values))).astype(int)
        curve = sparkline([values[place]["best"] for place in places])
        grid.add_row(
            "best trial so far",
            Text(f"{curve}  {values[0]['best']:+.4f} to {values[-1]['best']:+.4f}"),
        )
    return Group(show(found), grid, "")


class StudyWatch:
    """Read-only access to the studies of a database, for the dashboard.

    Args:
        study_name: the study to show first; None for the newest.
        storage: `--storage`.
        runs_dir: `--runs-dir`.
        count_looks: returns the number of hold-out evaluations used on a study's bars.
    """

    def __init__(
        self,
        study_name: str | None,
        storage: str | None,
        runs_dir: Path | None,
        count_looks: CountLooks | None = None,
    ) -> None:
        self.study_name, self.url, self.runs_dir = (
            study_name,
            storage_url(storage, runs_dir),
            runs_dir,
        )
        self._count_looks = count_looks
        self._storage: StudyDatabase | None = None
        self._handles: dict[str, StudyReader] = {}  # kept, since they cache finished trials
        self._insights: dict[str, StudyInsight] = {}
        self._lock = threading.Lock()

    def studies(self) -> list[str]:
        """Return the names of the studies: the one to show first, then from newest to oldest.

        Raises:
            InputError: there is no database or no such study.
        """
        names = list(our_studies(self._open()))
        if self.study_name is not None:
            if self.study_name not in names:
                raise InputError(
                    f"--study-name {self.study_name!r}: {hide_password(self.url)} has no such study"
                )
            names = [self.study_name, *(name for name in names if name != self.study_name)]
        return names

    def progress(self, name: str) -> dict[str, Any]:
        """See `study_progress`."""
        return study_progress(self._handle(name), self._count_looks)

    def parameters(self, name: str) -> dict[str, Any]:
        """See `StudyInsight.parameters`."""
        return self._insight(name).parameters()

    def trials(self, name: str, chosen: Sequence[int] | None) -> dict[str, Any]:
        """See `StudyInsight.trials`."""
        return self._insight(name).trials(chosen)

    def compare(self, name: str, other: str) -> dict[str, Any]:
        """See `compare`."""
        return compare(self._insight(name), self._insight(other))

    def show(self, found: dict[str, Any]) -> Group:
        """See `show_progress`."""
        return show_progress(found)

    def folder(self, name: str) -> Path:
        """Return the folder of a study's files."""
        return self._handle(name).run_dir

    def application(self) -> WSGIApplication:
        """Return optuna-dashboard, with the artifacts of the study to show first.

        Raises:
            InputError: there is no study, or optuna-dashboard is not installed.
        """
        try:
            import optuna_dashboard
        except ImportError:
            raise InputError(
                f"sweepd dashboard needs optuna-dashboard: {install_extra('dashboard')}"
            ) from None
        from sweepd.optimize.objectives.artifacts import artifact_store  # imports torch

        names = self.studies()
        if not names:
            raise InputError(
                f"there is no study in {hide_password(self.url)}; start one with sweepd train"
            )
        run_dir = StudyReader(self._open(), names[0], self.runs_dir).run_dir
        try:  # it also edits notes and tags
            storage: StudyDatabase = open_storage(self.url, create=False, immediate=False)
        except InputError:
            storage = self._open()
        application: WSGIApplication = optuna_dashboard.wsgi(
            storage.optuna(), artifact_store=artifact_store(run_dir)
        )
        return application

    def _handle(self, name: str) -> StudyReader:
        if name not in self._handles:
            self._handles[name] = StudyReader(self._open(), name, self.runs_dir)
        return self._handles[name]

    def _insight(self, name: str) -> StudyInsight:
        # The web server answers requests in several threads; one of them starts the importances.
        with self._lock:
            if name not in self._insights:
                self._insights[name] = StudyInsight(self._handle(name))
            return self._insights[name]

    def _open(self) -> StudyDatabase:
        if self._storage is None:
            self._storage = open_to_read(self.url)
        return self._storage
