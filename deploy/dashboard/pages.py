"""What all pages share: templates and headers, addresses with their query, paging, and downloads."""

from __future__ import annotations

import csv
import io
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from importlib.metadata import version
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from werkzeug.exceptions import BadRequest, HTTPException, MethodNotAllowed
from werkzeug.wrappers import Request, Response

from sweepd.deploy.dashboard import formatting
from sweepd.deploy.promotion.sections import short
from sweepd.deploy.registry.bundle_files import finite
from sweepd.envs.support.errors import RunError
from sweepd.envs.support.formatting import counted, duration, gpu_use, hourly, minute, percent

Handler = Callable[[Request], Response]
SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
# Pages with forms. A browser sends no `Origin` with a form if it sends no referrer at all.
FORMS = SECURITY | {
    "Content-Security-Policy": SECURITY["Content-Security-Policy"].replace(
        "form-action 'none'", "form-action 'self'"
    ),
    "Referrer-Policy": "same-origin",
}
ASSETS = "/assets/"
READING = ("GET", "HEAD")  # methods that change nothing
ACTIONS = "/actions"
# For a document that a program wrote: no script in it may run in this origin.
DOCUMENT = SECURITY | {
    "Content-Security-Policy": "sandbox; default-src 'none'; img-src data:; "
    "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
NAVIGATION = (
    ("/", "Paper trading"),
    ("/alerts", "Alerts"),
    ("/training", "Training"),
    ("/dashboard/", "optuna-dashboard"),
)
FILTERS = ("figure", "share", "ratio", "money", "price", "units", "moment", "span")
PER_PAGE = 50  # rows of a paged table
MIMETYPES = {"csv": "text/csv", "json": "application/json"}
FORMULA = ("=", "+", "-", "@", "\t", "\r")
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Address:
    """The address of a page: its path, and the query that its links keep."""

    path: str
    query: Mapping[str, str]

    @classmethod
    def of(cls, request: Request, *names: str) -> Address:
        """Return the address of a request with the given parameters of its query."""
        return cls(
            request.path, {name: request.args[name] for name in names if request.args.get(name)}
        )

    def to(self, path: str | None = None, **changes: object) -> str:
        """Return a link: another path, and changed parameters; None or "" removes one."""
        query = {name: value for name, value in {**self.query, **changes}.items() if value}
        return (path or self.path) + (f"?{urlencode(query)}" if query else "")


@dataclass(frozen=True)
class Paging:
    """One page of a long table. number: from 1. total: rows of the whole table."""

    number: int
    total: int
    size: int = PER_PAGE
    name: str = "page"  # the parameter of the query

    @classmethod
    def of(
        cls, request: Request, total: int, *, size: int = PER_PAGE, name: str = "page"
    ) -> Paging:
        """Return the page that a request asks for; one behind the end is the last one.

        Raises:
            BadRequest: the number is no whole number from 1.
        """
        text = request.args.get(name) or "1"
        if not (text.isascii() and text.isdecimal() and 0 < int(text) < 10**9):
            raise BadRequest(f"{name}={text}: give a whole number from 1.")
        last = max(1, math.ceil(total / size))
        return cls(min(int(text), last), total, size, name)

    @property
    def last(self) -> int:
        """Number of the last page."""
        return max(1, math.ceil(self.total / self.size))

    @property
    def start(self) -> int:
        """Index of the first row, from 0."""
        return (self.number - 1) * self.size

    @property
    def stop(self) -> int:
        """Index after the last row."""
        return min(self.start + self.size, self.total)


def chosen(
    request: Request, name: str, options: Sequence[str] | Mapping[str, Any], default: str = ""
) -> str:
    """Return a parameter of the query that must be one of `options`; absent: `default`.

    Raises:
        BadRequest: it is not.
    """
    value = request.args.get(name) or default
    if value and value not in options:
        raise BadRequest(f"{name}={value}: choose one of {', '.join(filter(None, options))}.")
    return value


def refusal(problem: HTTPException) -> Response:
    """Return the response to a refused request."""
    text = f"{problem.description}\n"
    return Response(text, problem.code, headers=SECURITY, mimetype="text/plain")


def check_reading(request: Request) -> None:
    """Raise MethodNotAllowed unless the request only reads."""
    if request.method not in READING:
        raise MethodNotAllowed(READING, "This page only reads: use GET.")


def assets() -> str:
    """Return the folder of the files that pages load; a new version changes it.

    Browsers may therefore keep these files for good.
    """
    return f"{ASSETS}{version('sweepd')}-{version('plotly')}"


class Pages:
    """Renders the templates.

    Args:
        every: seconds between two updates of a page.
        acting: whether the pages offer actions.
    """

    def __init__(self, every: float, *, acting: bool = False) -> None:
        self._every = every
        self._templates = Environment(
            loader=PackageLoader("sweepd.deploy.dashboard"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=StrictUndefined,
        )
        for name in FILTERS:
            self._templates.filters[name] = getattr(formatting, name)
        self._templates.filters |= {
            "counted": counted,
            "duration": duration,
            "hourly": hourly,
            "minute": minute,
            "percent": percent,
            "short": short,
        }
        self._templates.globals["gpu_use"] = gpu_use
        self._templates.globals |= {
            "assets": assets(),
            "navigation": (*NAVIGATION, (ACTIONS, "Actions")) if acting else NAVIGATION,
            "acting": acting,
        }

    def render(
        self,
        template: str,
        here: str,
        problem: Exception | None = None,
        *,
        headers: Mapping[str, str] = SECURITY,
        **content: Any,
    ) -> Response:
        """Return a page.

        Args:
            template: its file.
            here: the entry of the navigation that it belongs to.
            problem: why there is nothing to show; a RunError answers 503.
            headers: those of its kind of page.
            content: values of the template; `figures` are drawn by its script.
        """
        text = self._templates.get_template(template).render(
            {
                "problem": problem,
                "here": here,
                "now": time.time(),
                "every": self._every,
                "figures": {},
            }
            | content
        )
        status = HTTPStatus.SERVICE_UNAVAILABLE if isinstance(problem, RunError) else HTTPStatus.OK
        return Response(
            text, status, headers={**headers, "Cache-Control": "no-store"}, mimetype="text/html"
        )


def export(rows: Iterable[Row], columns: Iterable[str], kind: str, name: str) -> Response:
    """Return rows as a download.

    Args:
        rows: values by column; only one is in memory at a time.
        columns: their order.
        kind: csv or json.
        name: of the file, without its ending.
    """
    text = _csv(rows, list(columns)) if kind == "csv" else _json(rows)
    headers = SECURITY | {
        "Cache-Control": "no-store",
        "Content-Disposition": f'attachment; filename="{_safe(name)}.{kind}"',
    }
    return Response(text, headers=headers, mimetype=MIMETYPES[kind])


def _csv(rows: Iterable[Row], columns: list[str]) -> Iterator[str]:
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row[name]) for name in columns])
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue()


def _cell(value: object) -> object:
    """Return a value for a cell: `repr` of a float is exact; text must not be a formula."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str) and value.startswith(FORMULA):
        return f"'{value}"  # spreadsheets would compute it
    return "" if value is None else value


def _json(rows: Iterable[Row]) -> Iterator[str]:
    before = "[\n"
    for row in rows:
        yield before + json.dumps(finite(dict(row)))
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def _safe(name: str) -> str:
    """Return a name for a file, which a header can hold."""
    return "".join(
        one if one.isascii() and (one.isalnum() or one in "-_.") else "-" for one in name
    )
