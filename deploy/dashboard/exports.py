"""Exports of tables as CSV and JSON: streamed row by row, with exact numbers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from werkzeug.wrappers import Response

from sweepd.deploy.dashboard.pages import SECURITY
from sweepd.deploy.registry.bundle_files import finite

MIMETYPES = {"csv": "text/csv", "json": "application/json"}
FORMULA = ("=", "+", "-", "@", "\t", "\r")
Row = Mapping[str, Any]


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
