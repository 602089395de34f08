"""The pages of studies: progress, parameters, trials, and two studies compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from werkzeug.exceptions import BadRequest, Forbidden, NotFound, ServiceUnavailable
from werkzeug.wrappers import Request, Response

from sweepd.deploy.dashboard.figures import best_figure, rate_figure
from sweepd.deploy.dashboard.formatting import moment
from sweepd.deploy.dashboard.pages import SECURITY, Address, Handler, Pages, Paging, chosen
from sweepd.deploy.dashboard.source import StudySource
from sweepd.deploy.dashboard.study_commands import trial_commands
from sweepd.deploy.dashboard.study_figures import (
    BAND_LOOKS,
    CURVE_LOOKS,
    OTHER_LOOKS,
    curve_figure,
    frontier_figure,
    member_figure,
    parallel_figure,
    race_figure,
    values_figure,
)
from sweepd.deploy.dashboard.videos import Videos
from sweepd.deploy.promotion.verdict_file import read_verdict
from sweepd.envs.crypto.scoring.figures import figures
from sweepd.envs.support.errors import InputError, RunError
from sweepd.optimize.study.record.frontier import frontier_lines

ROWS = 12  # parameters of the parallel coordinates, unless all are asked for
ROW_HEIGHT = 52  # pixels
STATES = {
    "COMPLETE": "complete",
    "PRUNED": "pruned",
    "FAIL": "failed",
    "RUNNING": "running",
    "WAITING": "waiting",
}


def numbers_of(request: Request, name: str) -> list[int] | None:
    """Return whole numbers of the query, separated by commas; None if the parameter is absent.

    Raises:
        BadRequest: they are no such numbers.
    """
    if name not in request.args:
        return None
    words = [word.strip() for word in request.args[name].split(",") if word.strip()]
    if not all(word.isascii() and word.isdecimal() and len(word) < 10 for word in words):
        raise BadRequest(f"{name}={request.args[name]}: give numbers separated by commas.")
    return [int(word) for word in words]


def number_of(request: Request) -> int:
    """Return the trial that a request names.

    Raises:
        BadRequest: it names none, or several.
    """
    numbers = numbers_of(request, "trial") or []
    if len(numbers) != 1:
        raise BadRequest("trial=: give the number of a trial.")
    return numbers[0]


class StudyPages:
    """The studies of a storage."""

    def __init__(self, pages: Pages, search: StudySource) -> None:
        self._pages, self._search, self._videos = pages, search, Videos()

    def routes(self) -> Mapping[str, Handler]:
        """Return the pages by path."""
        return {
            "/training": self._progress,
            "/training/parameters": self._parameters,
            "/training/trials": self._trials,
            "/training/trial": self._trial,
            "/training/video": self._video,
            "/training/compare": self._compare,
        }

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
            return self._pages.render(
                "training.html", "/training", problem, studies=[], found=None, verdict=None
            )
        past = found["history"]
        drawn = {}
        if past["rates"]:
            drawn["rates"] = rate_figure(past)
        if past["values"]:
            drawn["best"] = best_figure(past)
        return self._pages.render(
            "training.html",
            "/training",
            studies=studies,
            found=found,
            verdict=read_verdict(self._search.folder(name)),
            figures=drawn,
            frontier=frontier_lines(found["frontier"]) if "frontier" in found else [],
            metrics=[one.cells for one in figures((found["best"] or {}).get("metrics") or {})],
        )

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
        lines = found["parallel"]
        count = len(lines["axes"]) if every else min(ROWS, len(lines["axes"]))
        figures: dict[str, Any] = {}
        if lines["lines"]:
            figures["parallel"] = parallel_figure(lines, count)
        if found["frontier"]["points"]:
            figures["frontier"] = frontier_figure(found["frontier"])
        values = found["values"]
        if values is not None and values["points"]:
            figures["values"] = values_figure(values)
        return {
            "figures": figures,
            "count": count,
            "height": ROW_HEIGHT * (count + 1),
            "looks": [*BAND_LOOKS, *OTHER_LOOKS.values()],
        }

    def _trials(self, request: Request) -> Response:
        state, numbers = chosen(request, "state", STATES), numbers_of(request, "trials")
        return self._page(
            request,
            "trials.html",
            lambda name: self._search.trials(name, numbers),
            lambda found: self._trial_figures(request, found, state),
            "trials",
            "state",
        )

    def _trial_figures(
        self, request: Request, found: Mapping[str, Any], state: str
    ) -> dict[str, Any]:
        head, curves = found["head"], found["curves"]
        rows = [row for row in found["table"] if not state or row["state"] == state]
        paging = Paging.of(request, len(rows))
        drawn = any(curve["points"] or curve["beside"] for curve in curves)
        looks = [
            (*look, f"trial {curve['trial']}")
            for look, curve in zip(CURVE_LOOKS, curves, strict=False)
        ]
        return {
            "figures": {"curves": curve_figure(curves, found["axis"], head["member"])}
            if drawn
            else {},
            "looks": looks,
            "metrics": {
                trial: [one.cells for one in figures(own)]
                for trial, own in found["metrics"].items()
            },
            "rows": rows[paging.start : paging.stop],
            "paging": paging,
            "state": state,
            "states": list(STATES.items()),
        }

    def _trial(self, request: Request) -> Response:
        number, asked = number_of(request), bool(request.args.get("video"))

        def look(name: str) -> dict[str, Any]:
            found = self._search.trial(name, number)
            if found is None:
                raise NotFound(f"There is no trial {number} in study {name!r}.")
            return found

        return self._page(
            request,
            "trial.html",
            look,
            lambda found: self._trial_parts(found, number, asked),
            "trial",
        )

    def _trial_parts(self, found: Mapping[str, Any], number: int, asked: bool) -> dict[str, Any]:
        curves, head, record = found["curves"], found["head"], found["record"]
        facts = {
            "started": found["started"] and f"{moment(found['started'])} UTC",
            "ended": found["ended"] and f"{moment(found['ended'])} UTC",
            "seed": record.seed,
            "device": record.device,
            "steps/s": record.steps_per_second and f"{record.steps_per_second:,.0f}",
        }
        study = self._search.reader(head["study"])
        return {
            "figures": {"curves": member_figure(curves, found["axis"], head["member"])}
            if curves["lines"] or curves["beside"]
            else {},
            "facts": [(name, one) for name, one in facts.items() if one is not None],
            "metrics": [one.cells for one in figures(found["metrics"])],
            "numbers": found["metrics"],
            "commands": trial_commands(
                study,
                number,
                {name: value for name, value, _ in found["params"]},
                playable=found["playable"],
            ),
            "video": found["playable"] and (asked or self._videos.known(study, number)),
        }

    def _video(self, request: Request) -> Response:
        """Return the video of a trial, which is drawn if it does not exist."""
        # A page of another site must not start processes here.
        if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            raise Forbidden("Videos are drawn for this dashboard's own pages only.")
        number, name = number_of(request), request.args.get("study", "")
        try:
            if name not in self._search.studies():
                raise NotFound(f"There is no study {name!r}.")
            found = self._search.trial(name, number)
            if found is None or not found["playable"]:
                raise NotFound(f"Trial {number} of {name!r} has no player that could be drawn.")
            content = self._videos.draw(self._search.reader(name), number)
        except (InputError, RunError) as problem:
            raise ServiceUnavailable(str(problem)) from problem
        headers = SECURITY | {"Cache-Control": "private, max-age=86400"}
        return Response(content, headers=headers, mimetype="image/gif")

    def _compare(self, request: Request) -> Response:
        def look(name: str) -> dict[str, Any]:
            others = [study for study in self._search.studies() if study != name]
            other = request.args.get("with", others[0] if others else None)
            if other is None:
                return {"head": {"study": name}, "other": None}
            if other not in others:
                raise NotFound(f"There is no other study {other!r}.")
            found = self._search.compare(name, other)
            return found | {"head": found["sides"][0]["head"], "other": other}

        return self._page(request, "compare.html", look, self._compare_figures, "with")

    def _compare_figures(self, found: Mapping[str, Any]) -> dict[str, Any]:
        sides = found.get("sides", [])
        drawn = any(side["so_far"] for side in sides)
        return {
            "figures": {by: race_figure(sides, by) for by in ("finished", "hours")}
            if drawn
            else {},
            "looks": [
                (*look, side["head"]["study"])
                for look, side in zip(CURVE_LOOKS, sides, strict=False)
            ],
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
