"""The pages about slots: the overview of one, the links between its views, and all alerts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Request, Response

from sweepd.deploy.dashboard.alerts import Alert, slot_alerts, sorted_alerts, study_alerts
from sweepd.deploy.dashboard.figures import account_tones, equity_figure
from sweepd.deploy.dashboard.health import Health
from sweepd.deploy.dashboard.pages import Address, Handler, Pages, chosen
from sweepd.deploy.dashboard.source import PaperSource, StudySource
from sweepd.envs.support.errors import InputError, RunError

VIEWS = {
    "/": "Overview",
    "/chart": "Chart",
    "/trades": "Round trips",
    "/days": "Days",
    "/orders": "Orders",
    "/events": "Events",
    "/parity": "Parity",
}
RANGES = {"1": "1 day", "7": "7 days", "30": "30 days", "": "all"}


def known_slots(paper: PaperSource) -> dict[str, Health]:
    """Return the slots for a page that reports a problem: none if they are part of it."""
    try:
        return paper.slots()
    except (InputError, RunError):
        return {}


def slot_links(slots: Mapping[str, Health], slot: str | None, request: Request) -> dict[str, Any]:
    """Return what the template of a slot's pages needs: the slots, and the slot's views.

    The template begins each page with name and state of the slot, by default the first one.
    """
    slot = slot or next(iter(slots), None)
    address = Address.of(request, "account", "asset")
    return {
        "slots": slots,
        "slot": slot,
        "path": request.path,
        "views": [(address.to(path, slot=slot), label) for path, label in VIEWS.items()],
        "shown": VIEWS[request.path],
    }


class SlotPages:
    """The slots, from the registry's database, and the alerts of slots and of the newest study."""

    def __init__(self, pages: Pages, paper: PaperSource, search: StudySource) -> None:
        self._pages, self._paper, self._search = pages, paper, search

    def routes(self) -> Mapping[str, Handler]:
        """Return the pages by path."""
        return {"/": self._overview, "/alerts": self._alerts}

    def _overview(self, request: Request) -> Response:
        days = chosen(request, "days", RANGES)
        try:
            slots = self._paper.slots()
            name = request.args.get("slot", next(iter(slots)))
            if name not in slots:
                raise NotFound(f"There is no slot {name!r}.")
            view = self._paper.view(name, days=float(days) if days else None)
        except (InputError, RunError) as problem:
            links = slot_links(known_slots(self._paper), None, request)
            return self._pages.render("paper.html", "/", problem, view=None, **links)
        return self._pages.render(
            "paper.html",
            "/",
            **slot_links(slots, name, request),
            view=view,
            days=days,
            ranges=RANGES,
            tones=account_tones([(account.name, account.kind) for account in view.accounts]),
            figures={"equity": equity_figure(view)} if view.curves else {},
        )

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
