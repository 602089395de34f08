"""The pages of studies."""

from __future__ import annotations

from collections.abc import Mapping

from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Request, Response

from sweepd.deploy.dashboard.figures import best_figure, rate_figure
from sweepd.deploy.dashboard.pages import Handler, Pages
from sweepd.deploy.dashboard.source import StudySource
from sweepd.envs.crypto.scoring.figures import figures as metric_figures
from sweepd.envs.support.errors import InputError, RunError


class TrainingPages:
    """The studies of a storage."""

    def __init__(self, pages: Pages, search: StudySource) -> None:
        self._pages, self._search = pages, search

    def routes(self) -> Mapping[str, Handler]:
        """Return the pages by path."""
        return {"/training": self._progress}

    def _progress(self, request: Request) -> Response:
        try:
            studies = self._search.studies()
            if not studies:
                raise InputError("there is no study yet; start one with sweepd train")
            name = request.args.get("study", studies[0])
            if name not in studies:
                raise NotFound(f"There is no study {name!r}.")
            found = self._search.progress(name)
        except (InputError, RunError) as problem:
            return self._pages.render("training.html", "/training", problem, studies=[], found=None)
        past = found["history"]
        figures = {}
        if past["rates"]:
            figures["rates"] = rate_figure(past)
        if past["values"]:
            figures["best"] = best_figure(past)
        return self._pages.render(
            "training.html",
            "/training",
            studies=studies,
            found=found,
            figures=figures,
            metrics=[
                one.cells for one in metric_figures((found["best"] or {}).get("metrics") or {})
            ],
        )
