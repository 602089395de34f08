"""The pages of studies for researchers: parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Request, Response

from deploy.dashboard.pages import Address, Handler, Pages, chosen
from deploy.dashboard.source import StudySource
from deploy.dashboard.study_figures import BAND_LOOKS, OTHER_LOOKS, frontier_figure, parallel_figure
from envs.support.errors import InputError, RunError

ROWS = 12  # parameters of the parallel coordinates, unless all are asked for
ROW_HEIGHT = 52  # pixels


class ResearchPages:
    """The studies of a storage, by parameter."""

    def __init__(self, pages: Pages, search: StudySource) -> None:
        self._pages, self._search = pages, search

    def routes(self) -> Mapping[str, Handler]:
        """Return the pages by path."""
        return {"/training/parameters": self._parameters}

    def _parameters(self, request: Request) -> Response:
        every = chosen(request, "rows", ("all",))
        return self._page(
            request,
            "parameters.html",
            self._search.parameters,
            lambda found: self._parameter_figures(found, every),
            "rows",
        )

    def _parameter_figures(self, found: Mapping[str, Any], every: str) -> dict[str, Any]:
        objective, lines = found["head"]["objective"], found["parallel"]
        count = len(lines["axes"]) if every else min(ROWS, len(lines["axes"]))
        figures: dict[str, Any] = {}
        if lines["lines"]:
            figures["parallel"] = parallel_figure(lines, objective, count)
        if found["frontier"]["points"]:
            figures["frontier"] = frontier_figure(found["frontier"], objective)
        return {
            "figures": figures,
            "count": count,
            "height": ROW_HEIGHT * (count + 1),
            "looks": [*BAND_LOOKS, *OTHER_LOOKS.values()],
        }

    def _page(
        self,
        request: Request,
        template: str,
        look: Callable[[str], dict[str, Any]],
        figures: Callable[[Mapping[str, Any]], dict[str, Any]],
        *kept: str,
    ) -> Response:
        """Return a page of the study that the request names, of the newest one by default.

        Args:
            request: what was asked for.
            template: the page's file.
            look: returns what the page shows, given a study's name.
            figures: returns further values of the template, given that.
            kept: parameters of the query that the page's links keep, besides the study.
        """
        address = Address.of(request, "study", *kept)
        try:
            studies = self._search.studies()
            if not studies:
                raise InputError("there is no study yet; start one with sweepd train")
            name = request.args.get("study", studies[0])
            if name not in studies:
                raise NotFound(f"There is no study {name!r}.")
            found = look(name)
        except (InputError, RunError) as problem:
            return self._pages.render(
                template, "/training", problem, studies=[], found=None, address=address
            )
        return self._pages.render(
            template, "/training", studies=studies, found=found, address=address, **figures(found)
        )
