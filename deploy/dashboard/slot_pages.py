"""The pages about slots: the overview of one, the links between its views, and all alerts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Request, Response

from sweepd.deploy.dashboard.alerts import Alert, slot_alerts, sorted_alerts, study_alerts
from sweepd.deploy.dashboard.figures import account_tones, equity_figure
from sweepd.deploy.dashboard.health import Health
from sweepd.deploy.dashboard.pages import DOCUMENT, Address, Handler, Pages, chosen
from sweepd.deploy.dashboard.replays import REPLAY, Replay
from sweepd.deploy.dashboard.source import Opened, PaperSource, StudySource
from sweepd.deploy.dashboard.view import SlotView
from sweepd.deploy.promotion.verdict_file import read_verdict
from sweepd.deploy.registry.flags import registry_flags
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.formatting import counted

VIEWS = {
    "/": "Overview",
    "/chart": "Chart",
    "/trades": "Round trips",
    "/days": "Days",
    "/orders": "Orders",
    "/events": "Events",
    "/parity": "Parity",
    "/night": "Night",
}
GATE_REPORT = Path("gate", "gate.html")  # in a study's folder
OF_TRADERS = ("/events", "/parity", "/night")  # views that a replay does not have
RANGES = {"1": "1 day", "7": "7 days", "30": "30 days", "": "all"}


def known_slots(paper: PaperSource) -> dict[str, Health]:
    """Return the slots for a page that reports a problem: none if they are part of it."""
    try:
        return paper.slots()
    except (InputError, RunError):
        return {}


def slot_links(
    slots: Mapping[str, Health],
    slot: str | None,
    request: Request,
    opened: Opened | None = None,
    replays: Mapping[str, Replay] = MappingProxyType({}),
    alerts: Sequence[Alert] = (),
) -> dict[str, Any]:
    """Return what the template of a slot's pages needs: the slots, and the slot's views.

    The template begins each page with name and state of the slot, by default the first one.

    Args:
        slots: the state of each slot.
        slot: the slot.
        request: of the page.
        opened: sources of the account that is shown.
        replays: those of the slot, which are accounts beside its trader's.
        alerts: shown at the top of the page, the worst first.
    """
    slot = slot or next(iter(slots), "")
    address = Address.of(request, "account", "asset", "replay")
    replay = None if opened is None else opened.replay
    place = Address(request.path, {"slot": slot})
    traded = slot in slots and slots[slot].state != REPLAY
    trader = [(place.to(), "paper account")] if traded and replays else []
    return {
        "slots": slots,
        "slot": slot,
        "state": slots.get(slot) if replay is None else replay.health,
        "path": request.path,
        "views": {
            path: (address.to(path, slot=slot), label)
            for path, label in VIEWS.items()
            if replay is None or path not in OF_TRADERS
        },
        "shown": VIEWS[request.path],
        "alerts": alerts,
        "sources": [
            *trader,
            *((place.to(replay=name), f"replay {one.label}") for name, one in replays.items()),
        ],
        "source": "paper account" if replay is None else f"replay {replay.label}",
        "replay": replay,
    }


def alerts_of(opened: Opened, slot: str, state: Health) -> list[Alert]:
    """Return the alerts of a slot. opened: the registry's trader, also beside a replay."""
    trader, where = opened.store.trader(slot), registry_flags(opened.registry)
    return sorted_alerts(slot_alerts(opened.records, trader, slot, state, time.time(), where=where))


@dataclass(frozen=True)
class StudyCard:
    """A study as the start page shows it.

    state: its trials and its best one, in a sentence. verdict: of its newest promotion, as
    `read_verdict` returns it. report: link to the report of the gate.
    """

    name: str
    about: str
    synthetic: bool
    state: str
    verdict: dict[str, Any] | None
    report: str | None

    @property
    def link(self) -> str:
        return Address("/training", {"study": self.name}).to()


class SlotPages:
    """The slots, from the registry's database, and the alerts of slots and of the newest study."""

    def __init__(self, pages: Pages, paper: PaperSource, search: StudySource) -> None:
        self._pages, self._paper, self._search = pages, paper, search

    def routes(self) -> Mapping[str, Handler]:
        """Return the pages by path."""
        return {"/": self._overview, "/alerts": self._alerts, "/report": self._report}

    def _overview(self, request: Request) -> Response:
        days = chosen(request, "days", RANGES)
        try:
            slots = self._paper.slots()
            name = request.args.get("slot", next(iter(slots)))
            if name not in slots:
                raise NotFound(f"There is no slot {name!r}.")
            replay = request.args.get("replay")
            opened = self._paper.account(name, replay)
            view = self._paper.view(name, days=float(days) if days else None, replay=replay)
            others = {one: state for one, state in slots.items() if one != name}
            alerts = [*view.alerts, *self._alerts_of(others), *self._study_alerts()[0]]
        except (InputError, RunError) as problem:
            slots, alerts = known_slots(self._paper), self._study_alerts()[0]
            links = slot_links(slots, None, request, alerts=sorted_alerts(alerts))
            return self._pages.render(
                "paper.html", "/", problem, view=None, study=self._study(), **links
            )
        replays = self._paper.replays(name)
        return self._pages.render(
            "paper.html",
            "/",
            **slot_links(slots, name, request, opened, replays, sorted_alerts(alerts)),
            study=self._study(opened.registry, view),
            view=view,
            days=days,
            address=Address.of(request, "slot", "replay"),
            ranges=RANGES,
            tones=account_tones([(account.name, account.kind) for account in view.accounts]),
            figures={"equity": equity_figure(view)} if view.curves else {},
        )

    def _study(
        self, registry: Registry | None = None, view: SlotView | None = None
    ) -> StudyCard | None:
        """Return the study of a slot's champion if it is in the database, else the newest one."""
        try:
            names = self._search.studies()
            if not names:
                return None
            origin = None
            if registry is not None and view is not None and view.champion is not None:
                origin = registry.origin(view.champion)
            name = origin[0] if origin and origin[0] in names else names[0]
            found = self._search.progress(name)
            folder = self._search.folder(name)
        except (InputError, RunError):
            return None
        best, trials = found["best"], found["trials"]
        reported = (folder / GATE_REPORT).is_file()
        return StudyCard(
            name,
            str(found["about"]),
            bool(found["synthetic"]),
            f"{found['done']} of {counted(found['total'], 'trial')} finished, {trials['FAIL']} "
            "failed" + (f"; best: trial {best['trial']}, {best['value']:+.4f}" if best else ""),
            read_verdict(folder),
            Address("/report", {"study": name}).to() if reported else None,
        )

    def _report(self, request: Request) -> Response:
        """Serve the report of the gate, whose scripts, if there were any, could not run."""
        name = request.args.get("study", "")
        try:
            if name not in self._search.studies():
                raise NotFound(f"There is no study {name!r}.")
            content = (self._search.folder(name) / GATE_REPORT).read_bytes()
        except (InputError, RunError, OSError):
            raise NotFound(f"Study {name!r} has no report of the gate.") from None
        return Response(content, headers=DOCUMENT, mimetype="text/html")

    def _alerts(self, _request: Request) -> Response:
        checked: list[str] = []
        missing: list[str] = []
        alerts: list[Alert] = []
        # Without studies, slots still have alerts, and the other way round.
        try:
            slots = self._paper.slots()
            alerts += self._alerts_of(slots)
            checked += [
                f"slot {name} ({state.state}{', synthetic market' * state.synthetic})"
                for name, state in slots.items()
            ]
        except RunError as problem:
            return self._pages.render("alerts.html", "/alerts", problem, alerts=None)
        except InputError as problem:
            missing.append(str(problem))
        found, study, problem_of_studies = self._study_alerts()
        alerts += found
        checked += [f"study {study}"] if study else []
        missing += [problem_of_studies] if problem_of_studies else []
        return self._pages.render(
            "alerts.html", "/alerts", alerts=sorted_alerts(alerts), checked=checked, missing=missing
        )

    def _alerts_of(self, slots: Mapping[str, Health]) -> list[Alert]:
        opened = self._paper.open()
        return [one for name, state in slots.items() for one in alerts_of(opened, name, state)]

    def _study_alerts(self) -> tuple[list[Alert], str, str]:
        """Return the alerts of the newest study, its name, and why it cannot be read."""
        try:
            names = self._search.studies()
            if not names:
                return [], "", ""
            return study_alerts(self._search.progress(names[0])), names[0], ""
        except (InputError, RunError) as problem:
            return [], "", str(problem)
