"""The pages of paper trading."""

from __future__ import annotations

from collections.abc import Mapping

from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Request, Response

from sweepd.deploy.dashboard.figures import account_tones, equity_figure
from sweepd.deploy.dashboard.pages import Handler, Pages, chosen
from sweepd.deploy.dashboard.slot_views import known_slots, slot_links
from sweepd.deploy.dashboard.source import PaperSource
from sweepd.envs.support.errors import InputError, RunError

RANGES = {"1": "1 day", "7": "7 days", "30": "30 days", "": "all"}


class PaperPages:
    """The slots, from the registry's database."""

    def __init__(self, pages: Pages, paper: PaperSource) -> None:
        self._pages, self._paper = pages, paper

    def routes(self) -> Mapping[str, Handler]:
        """Return the pages by path."""
        return {"/": self._overview}

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
