"""Reports and sections in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, JustifyMethod, RenderableType
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from sweepd.deploy.promotion.promotion import Step
from sweepd.deploy.promotion.rules import NOT_EVALUATED
from sweepd.deploy.promotion.sections import (
    Cell,
    Findings,
    Report,
    ReportTable,
    ReportTerms,
    Section,
    Styled,
    limit,
    number,
    verdict,
)
from sweepd.envs.support.terminal import Terminal

STYLES: Mapping[str, str] = {
    "pass": "green",
    "fail": "red",
    "defer": "yellow",
    NOT_EVALUATED: "dim",
    "told": "dim",
    "loosened": "bold yellow",
    "own": "bold",
}


def report_view(report: Report) -> RenderableType:
    """A report: its sections, and the outcome below them, where a user sees it first."""
    headline = Text(report.headline.upper(), style=f"bold {STYLES[report.style]}")
    parts = [headline, section_view(report.verdict), Text("\n".join(report.lines), style="dim")]
    outcome = Panel(Group(*parts), title="Verdict", title_align="left")
    return Group(sections_view(report.sections), outcome)


def print_steps(console: Terminal, steps: Sequence[Step]) -> None:
    """Print each command on its own line, below its purpose.

    A long command is not wrapped, so that it can be copied. Nothing follows it on its line, because
    an interactive zsh takes `# comment` for arguments.
    """
    if not steps:
        return
    console.rule("Next", align="left")
    for step in steps:
        console.print_line(f"{step.purpose}:", "dim")
        console.print_line(step.command)


def sections_view(sections: Sequence[Section]) -> RenderableType:
    """Sections below each other."""
    return Group(*map(section_view, sections))


def section_view(section: Section) -> RenderableType:
    """One section."""
    if isinstance(section, Findings):
        return _findings(section)
    return _table(section) if isinstance(section, ReportTable) else _terms(section)


def _findings(section: Findings) -> Table:
    table = Table(
        Column("rule", no_wrap=True),
        *(Column(name, justify="right", no_wrap=True) for name in ("value", "limit")),
        "verdict",
        Column("explanation", ratio=1),
        **_words(section),
    )
    stage = None
    for finding in section.findings:
        if finding.stage != stage:
            stage = finding.stage
            table.add_section()
        table.add_row(
            finding.name,
            number(finding),
            limit(finding).replace(" (", "\n("),  # the explanation needs the width
            _cell(verdict(finding)),
            finding.explanation,
        )
    return table


def _table(section: ReportTable) -> Table:
    table = Table(**_words(section))
    for index, name in enumerate(section.head):
        justify: JustifyMethod = "left" if index in section.texts else "right"
        table.add_column(name, justify=justify, overflow="fold")
    for row in section.rows:
        table.add_row(*map(_cell, row))
    return table


def _words(section: Findings | ReportTable) -> dict[str, Any]:
    return {
        "title": section.title,
        "title_justify": "left",
        "caption": section.caption or None,
        "caption_justify": "left",
    }


def _terms(section: ReportTerms) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.title, grid.title_justify = section.title or None, "left"
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in section.terms:
        grid.add_row(name, _cell(text))
    return grid


def _cell(cell: Cell) -> RenderableType:
    return Text(cell.text, style=STYLES[cell.style]) if isinstance(cell, Styled) else cell
