"""Findings of a gate for people: a table in the terminal, a page in a browser."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from deploy.promotion.rules import NOT_EVALUATED, RuleFinding
from deploy.registry.bundle_files import NAME_DIGITS

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
        picture: drawn as a PNG.
        described: alternative text of the picture.
        reading: terms and their explanations.
        footer: last line.
    """
    rows = "".join(_row(finding) for finding in findings)
    words = "".join(
        f"<dt>{html.escape(term)}</dt><dd>{html.escape(text)}</dd>" for term, text in reading
    )
    png = io.BytesIO()
    picture.savefig(png, format="png", dpi=110)
    sentences = "".join(f"<p>{html.escape(line)}</p>" for line in opening)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}: {html.escape(headline)}</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; color: #222;
 max-width: 1080px; margin: 2em auto; padding: 0 1em; }}
h1 {{ font-size: 1.6em; margin-bottom: .2em; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; vertical-align: top;
 padding: .35em .6em; border-bottom: 1px solid #ddd; }}
td {{ font-size: .92em; }}
td.number {{ text-align: right; white-space: nowrap; }}
.verdict {{ font-weight: 600; white-space: nowrap; }}
img {{ width: 100%; }}
dt {{ font-weight: 600; }} dd {{ margin: 0 0 .6em 0; }}
small {{ color: #666; }}
.wide {{ overflow-x: auto; }} .wide table {{ min-width: 40em; }}
</style></head><body><main>
<h1>{html.escape(headline)}</h1>
{sentences}
<div class="wide" tabindex="0" role="region" aria-label="Rules"><table>
<tr><th>rule</th><th>value</th><th>limit</th><th>verdict</th><th>what was found</th></tr>
{rows}</table></div>
<img alt="{html.escape(described)}"
 src="data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}">
<h2>How to read this</h2><dl>{words}</dl>
<p><small>{html.escape(footer)}</small></p>
</main></body></html>
"""


def _row(finding: RuleFinding) -> str:
    value = number(finding, "–")
    return (
        f"<tr><td><b>{html.escape(finding.name)}</b><br>"
        f"<small>{html.escape(finding.meaning)}</small></td>"
        f'<td class="number">{value}</td><td class="number">{html.escape(limit(finding))}</td>'
        f'<td class="verdict" style="color:{colour_of(finding)}">{finding.said}</td>'
        f"<td>{html.escape(finding.explanation)}</td></tr>"
    )
