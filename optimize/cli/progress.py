"""The studies of a database, as `sweepd watch` and the dashboard show them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.invocation import install_extra
from sweepd.envs.support.passwords import hide_password
from sweepd.optimize.cli.status import reading, study_status
from sweepd.optimize.objectives.outlook import CountLooks, sentence
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.insight.history import history
from sweepd.optimize.study.insight.watch import StudyInsight, compare
from sweepd.optimize.study.record.database import (
    StudyDatabase,
    open_to_read,
    our_studies,
    storage_url,
)
from sweepd.optimize.study.record.keys import ACTIONS_KEY, ORIGIN_KEY
from sweepd.optimize.study.record.reader import StudyReader

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


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

        Training runs of a trial come last: a study that trains its selection on fresh seeds makes
        one that is newer than itself.

        Raises:
            InputError: there is no database or no such study.
        """
        with reading(self.url):
            ours = our_studies(self._open())
        names = sorted(ours, key=lambda name: ORIGIN_KEY in ours[name])
        if self.study_name is not None:
            if self.study_name not in names:
                raise InputError(
                    f"study {self.study_name!r} is not in {hide_password(self.url)}; there are: "
                    f"{', '.join(names[:8]) or 'none'}"
                )
            names = [self.study_name, *(name for name in names if name != self.study_name)]
        return names

    def first(self) -> str:
        """Return the name of the study to show first.

        Raises:
            InputError: there is no database or no study.
        """
        names = self.studies()
        if not names:
            raise InputError(
                f"there is no study in {hide_password(self.url)}; start one with sweepd train"
            )
        return names[0]

    def progress(self, name: str) -> dict[str, Any]:
        """See `study_progress`."""
        with reading(self.url):
            return study_progress(self._handle(name), self._count_looks)

    def parameters(self, name: str) -> dict[str, Any]:
        """See `StudyInsight.parameters`."""
        with reading(self.url):
            return self._insight(name).parameters()

    def trials(self, name: str, chosen: Sequence[int] | None) -> dict[str, Any]:
        """See `StudyInsight.trials`."""
        with reading(self.url):
            return self._insight(name).trials(chosen)

    def trial(self, name: str, number: int) -> dict[str, Any] | None:
        """See `StudyInsight.trial`."""
        with reading(self.url):
            return self._insight(name).trial(number)

    def reader(self, name: str) -> StudyReader:
        """Return a study."""
        with reading(self.url):
            return self._handle(name)

    def compare(self, name: str, other: str) -> dict[str, Any]:
        """See `compare`."""
        with reading(self.url):
            return compare(self._insight(name), self._insight(other))

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
        from sweepd.optimize.objectives.trial_files import StudyArtifacts  # imports torch

        store = StudyArtifacts(self._handle(self.first()))
        try:  # it also edits notes and tags
            storage: StudyDatabase = open_storage(self.url, create=False, immediate=False)
        except InputError:
            storage = self._open()
        application: WSGIApplication = optuna_dashboard.wsgi(storage.optuna(), artifact_store=store)
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
