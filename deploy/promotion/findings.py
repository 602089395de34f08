"""Findings of a gate for people: a table in the terminal, a page in a browser."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from rich.table import Table
from rich.text import Text

from sweepd.deploy.promotion.rules import NOT_EVALUATED, RuleFinding
from sweepd.deploy.registry.bundle_files import NAME_DIGITS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SYNTHETIC = (
    "The market is synthetic: this shows that the program works, and nothing about real markets."
)
VERDICT_STYLE = {
    "pass": "green",
    "fail": "red",
    "defer": "yellow",
    NOT_EVALUATED: "dim",
    "told": "dim",
}
# Each has a contrast of at least 4.5 on white (WCAG AA).
COLOURS = {
    "pass": "#1e7a45",
    "fail": "#b03024",
    "defer": "#8f5a06",
    NOT_EVALUATED: "#666666",
    "told": "#666666",
}


def short(hash_: str | None) -> str:
    """The name of a bundle's folder, "none" for None."""
    return hash_[:NAME_DIGITS] if hash_ else "none"


def stage_text(findings: Sequence[RuleFinding], stage: str) -> Text:
    """The result of a stage in a few words."""
    findings = [finding for finding in findings if finding.stage == stage]
    for verdict in ("fail", "defer", NOT_EVALUATED):
        named = [finding.name for finding in findings if finding.verdict == verdict]
        if named:
            text = verdict if verdict == NOT_EVALUATED else f"{verdict}: {', '.join(named)}"
            return Text(text, style=VERDICT_STYLE[verdict])
    return Text("pass", style="green") if findings else Text("-", style="dim")


def findings_table(title: str, findings: Sequence[RuleFinding]) -> Table:
    """Every rule with value, limit, verdict and explanation."""
    table = Table(title=title, title_justify="left")
    table.add_column("rule")
    table.add_column("value", justify="right")
    table.add_column("limit", justify="right")
    table.add_column("verdict")
    table.add_column("explanation", ratio=1)
    stage = None
    evaluated = [finding for finding in findings if finding.verdict != NOT_EVALUATED]
    for finding in evaluated:
        if finding.stage != stage:
            stage = finding.stage
            table.add_section()
        table.add_row(
            finding.name,
            number(finding, "-"),
            limit(finding, "\n"),
            verdict(finding.verdict, finding.loosened),
            finding.explanation,
        )
    skipped = findings[len(evaluated) :]
    if skipped:
        table.add_section()
        why = f"{', '.join(finding.name for finding in skipped)}: {skipped[0].explanation}"
        count = f"{len(skipped)} of the {skipped[0].stage}"
        table.add_row(count, "-", "", Text(NOT_EVALUATED, style="dim"), why)
    return table


def limit(finding: RuleFinding, between: str = " ") -> str:
    """A finding's limit, with the default limit if a user set another."""
    text = f"{finding.comparison} {finding.limit:g}"
    return (
        text
        if finding.default in (None, finding.limit)
        else f"{text}{between}(default {finding.default:g})"
    )


def colour_of(finding: RuleFinding) -> str:
    """The colour of a finding's verdict on a page; that of "defer" if the limit was loosened."""
    return COLOURS["defer" if finding.loosened else finding.verdict]


def verdict(said: str, is_loosened: bool) -> Text:
    """A rule's verdict in its colour; yellow if a user loosened the limit."""
    if is_loosened:
        return Text(f"{said}, loosened", style="bold yellow")
    return Text(said, style=VERDICT_STYLE.get(said, ""))


def number(finding: RuleFinding, absent: str) -> str:
    """A finding's value, or `absent`."""
    if finding.value is None:
        return absent
    return f"{finding.value:,.0f}" if float(finding.value).is_integer() else f"{finding.value:.4g}"


def findings_page(
    *,
    title: str,
    headline: str,
    opening: Sequence[str],
    findings: Sequence[RuleFinding],
    tables: Sequence[tuple[str, Sequence[Sequence[str]]]] = (),
    picture: Figure,
    described: str,
    reading: Sequence[tuple[str, str]],
    footer: str,
) -> str:
    """A self-contained HTML page: summary, rules, a picture, and an explanation of the terms.

    Args:
        title: of the browser's tab.
        headline: of the page.
        opening: sentences of the summary, one paragraph each.
        findings: the rules.
        tables: title and rows of further tables; the first row is the head, the first column text.
        picture: drawn as a PNG.
        described: alternative text of the picture.
        reading: terms and their explanations.
        footer: last line.
    """
    png = io.BytesIO()
    picture.savefig(png, format="png", dpi=110)
    pages = Environment(
        loader=PackageLoader("sweepd.deploy.promotion"),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    return pages.get_template("findings.html").render(
        title=title,
        headline=headline,
        opening=opening,
        findings=findings,
        tables=tables,
        png=base64.b64encode(png.getvalue()).decode(),
        described=described,
        reading=reading,
        footer=footer,
        number=number,
        limit=limit,
        colour_of=colour_of,
    )
