"""The page of a slot's nights: the report of one, with its picture."""

from __future__ import annotations

import time
from collections.abc import Mapping

from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Request, Response

from sweepd.deploy.dashboard.pages import SECURITY, Address, Handler, Pages
from sweepd.deploy.dashboard.slot_pages import known_slots, slot_links
from sweepd.deploy.dashboard.source import PaperSource
from sweepd.deploy.night.delivery import read_facts
from sweepd.deploy.night.facts import NightFacts
from sweepd.deploy.night.records import NightStore
from sweepd.deploy.night.report import night_report
from sweepd.deploy.promotion.documents import to_png
from sweepd.deploy.promotion.rules import NOT_EVALUATED
from sweepd.envs.support.errors import InputError, RunError

NEWEST = 14  # nights that the page links to
LEVELS = {"pass": "good", "fail": "bad", "defer": "warning", NOT_EVALUATED: "none", "told": "none"}


class NightPages:
    """The nights of slots, also of those that do not trade."""

    def __init__(self, pages: Pages, paper: PaperSource) -> None:
        self._pages, self._paper = pages, paper

    def routes(self) -> Mapping[str, Handler]:
        """Return the pages by path."""
        return {"/night": self._night, "/night.png": self._picture}

    def _night(self, request: Request) -> Response:
        slots = known_slots(self._paper)
        slot = request.args.get("slot") or next(iter(slots), "")
        links = slot_links(slots, slot, request)
        try:
            names, facts = self._facts(request, slot)
        except (InputError, RunError) as problem:
            return self._pages.render("night.html", "/", problem, facts=None, **links)
        if facts is None:
            return self._pages.render("night.html", "/", facts=None, **links)
        address = Address("/night", {"slot": slot})
        picture = Address("/night.png", {"slot": slot, "night": facts.night})
        return self._pages.render(
            "night.html",
            "/",
            facts=facts,
            report=night_report(facts),
            levels=LEVELS,
            nights=[(address.to(night=name), name) for name in names],
            # It changes with each step, so that it is loaded again then.
            picture=picture.to(steps=len(facts.steps)),
            **links,
        )

    def _picture(self, request: Request) -> Response:
        try:
            facts = self._facts(request, request.args.get("slot", ""))[1]
        except (InputError, RunError) as problem:
            raise NotFound(str(problem)) from problem
        shown = None if facts is None else night_report(facts).picture
        if shown is None:
            raise NotFound("This night has no picture.")
        return Response(to_png(shown.draw()), headers=SECURITY, mimetype="image/png")

    def _facts(self, request: Request, slot: str) -> tuple[list[str], NightFacts | None]:
        """Return the newest nights, the newest first, and the facts of the one that is asked for.

        Raises:
            NotFound: there is no such night.
        """
        registry = self._paper.open().registry
        names = [one.night for one in NightStore(registry.database).nights(slot)][::-1]
        asked = request.args.get("night") or next(iter(names), None)
        if asked is None:
            return [], None
        if asked not in names:
            raise NotFound(f"Slot {slot!r} has had no night {asked!r}.")
        return names[:NEWEST], read_facts(registry, slot, asked, time.time())
