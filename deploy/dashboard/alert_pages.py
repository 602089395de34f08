"""The page of alerts."""

from __future__ import annotations

import time
from collections.abc import Mapping

from werkzeug.wrappers import Request, Response

from sweepd.deploy.dashboard.alerts import Alert, slot_alerts, sorted_alerts, study_alerts
from sweepd.deploy.dashboard.pages import Handler, Pages
from sweepd.deploy.dashboard.source import PaperSource, StudySource
from sweepd.envs.support.errors import InputError, RunError


class AlertPages:
    """The alerts of all slots and of the newest study."""

    def __init__(self, pages: Pages, paper: PaperSource, search: StudySource) -> None:
        self._pages, self._paper, self._search = pages, paper, search

    def routes(self) -> Mapping[str, Handler]:
        """Return the pages by path."""
        return {"/alerts": self._alerts}

    def _alerts(self, _request: Request) -> Response:
        alerts: list[Alert] = []
        missing: list[str] = []
        checked: list[str] = []
        # Without studies, slots still have alerts, and the other way round.
        try:
            opened, slots = self._paper.open(), self._paper.slots()
            for name, state in slots.items():
                trader = opened.store.trader(name)
                alerts += slot_alerts(opened.records, trader, name, state, time.time())
            checked += [
                f"slot {name} ({state.state}{', synthetic market' * state.synthetic})"
                for name, state in slots.items()
            ]
        except RunError as problem:
            return self._pages.render("alerts.html", "/alerts", problem, alerts=None)
        except InputError as problem:
            missing.append(str(problem))
        try:
            names = self._search.studies()
            if names:
                alerts += study_alerts(self._search.progress(names[0]))
                checked.append(f"study {names[0]}")
        except (InputError, RunError) as problem:
            missing.append(str(problem))
        return self._pages.render(
            "alerts.html", "/alerts", alerts=sorted_alerts(alerts), checked=checked, missing=missing
        )
