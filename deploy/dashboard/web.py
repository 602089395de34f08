"""The dashboard: a WSGI application, which `sweepd.deploy.dashboard.access` protects.

Every page is complete HTML; its script requests it again every few seconds and replaces what has
changed. Only the pages of `sweepd.deploy.dashboard.action_pages` accept anything else than GET. Other
paths (`/dashboard`, `/api`, ...) belong to optuna-dashboard.
"""

from __future__ import annotations

import importlib.resources
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from werkzeug.exceptions import HTTPException, NotFound
from werkzeug.test import Client
from werkzeug.wrappers import Request, Response

from sweepd.deploy.dashboard.action_pages import ActionPages
from sweepd.deploy.dashboard.actions import Places
from sweepd.deploy.dashboard.night_page import NightPages
from sweepd.deploy.dashboard.pages import ASSETS, SECURITY, Handler, Pages, check_reading, refusal
from sweepd.deploy.dashboard.slot_pages import SlotPages
from sweepd.deploy.dashboard.source import PaperSource, StudySource
from sweepd.deploy.dashboard.study_pages import StudyPages
from sweepd.deploy.dashboard.trade_pages import TradePages
from sweepd.envs.support.errors import InputError, RunError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

# For optuna-dashboard's own pages, which need their scripts.
OPTUNAS = {
    "Content-Security-Policy": "object-src 'none'; base-uri 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
# A trial's artifacts may come from any program, so their scripts must not run in this origin.
# Chromium and Firefox show PDFs in this sandbox.
ARTIFACTS = OPTUNAS | {
    "Content-Security-Policy": "sandbox; default-src 'none'; img-src 'self' data:; "
    "media-src 'self' data:; style-src 'unsafe-inline'; font-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'",
    "Cross-Origin-Resource-Policy": "same-origin",
}
FILES = {
    "page.js": "text/javascript",
    "theme.js": "text/javascript",
    "page.css": "text/css",
    "plotly.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
WARMED = ("/", "/training", "/training/parameters")  # which read most at the first request
FOR_A_YEAR = "public, max-age=31536000, immutable"


class Dashboard:
    """The application.

    Args:
        paper: source of slots.
        search: source of studies.
        places: where actions write; None offers none.
        every: seconds between two updates of a page.
    """

    def __init__(
        self,
        paper: PaperSource,
        search: StudySource,
        places: Places | None = None,
        *,
        every: float = 5.0,
    ) -> None:
        self._search = search
        self._optuna: WSGIApplication | None = None
        self._lock = threading.Lock()
        pages = Pages(every, acting=places is not None)
        acting = None if places is None else ActionPages(pages, paper, search, places)
        self._acting: Mapping[str, Handler] = {} if acting is None else acting.routes()
        self._pages: Mapping[str, Handler] = {
            **SlotPages(pages, paper, search).routes(),
            **TradePages(pages, paper).routes(),
            **NightPages(pages, paper).routes(),
            **StudyPages(pages, search).routes(),
        }

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        request = Request(environ)
        try:
            answer = self._answer(request)
        except HTTPException as problem:
            answer = refusal(problem)
        return answer(environ, start_response)

    def warm(self) -> None:
        """Read what the first requests need: later ones read new rows only."""
        for path in WARMED:
            Client(self).get(path, base_url="http://127.0.0.1")

    def _answer(self, request: Request) -> WSGIApplication:
        """Return the response; raise HTTPException for refused requests."""
        acting = self._acting.get(request.path)
        if acting is not None:
            return acting(request)
        page = self._pages.get(request.path)
        if page is None and not request.path.startswith(ASSETS):
            return self._optunas(request)
        check_reading(request)
        return self._asset(request) if page is None else page(request)

    def _asset(self, request: Request) -> Response:
        name = request.path.rpartition("/")[2]
        if name not in FILES:
            raise NotFound("There is no such file.")
        folder = importlib.resources.files("sweepd.deploy.dashboard") / "static"
        if name == "plotly.js":
            folder, name = importlib.resources.files("plotly") / "package_data", "plotly.min.js"
        content = (folder / name).read_bytes()
        headers = SECURITY | {"Cache-Control": FOR_A_YEAR}
        return Response(content, headers=headers, mimetype=FILES[request.path.rpartition("/")[2]])

    def _optunas(self, request: Request) -> WSGIApplication:
        """Return optuna-dashboard."""
        with self._lock:
            if self._optuna is None:
                try:
                    self._optuna = self._search.application()
                except (InputError, RunError) as problem:
                    raise NotFound(f"There is no optuna-dashboard: {problem}") from problem
            artifact = request.path.lstrip("/").startswith("artifacts")
            return _with_headers(self._optuna, ARTIFACTS if artifact else OPTUNAS)


def _with_headers(application: WSGIApplication, headers: Mapping[str, str]) -> WSGIApplication:
    """Add headers to all responses, and forbid other sites to read them."""
    replaced = {name.lower() for name in headers} | {"access-control-allow-origin"}

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        def start(
            status: str, given: list[tuple[str, str]], *more: Any
        ) -> Callable[[bytes], object]:
            kept = [(name, value) for name, value in given if name.lower() not in replaced]
            return start_response(status, [*kept, *headers.items()], *more)

        return application(environ, start)

    return answer
