"""Reports as Markdown, for chats and files. Text of others is escaped: it is no markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

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
from sweepd.envs.support.terminal import printable

_SPECIAL = re.compile(r"([\\`*_\[\]<>|~#])")


def to_markdown(report: Report) -> str:
    """The report, without its picture and its explanations."""
    parts = [f"# {escaped(report.headline)}", *_terms(report.verdict)]
    for step in report.steps:
        parts.append(f"{escaped(step.purpose)}:\n\n{_code(step.command)}")
    parts += map(escaped, report.lines)
    for section in report.sections:
        parts += [f"## {escaped(section.title)}", *_section(section)]
    return "\n\n".join([*parts, f"*{escaped(report.footer)}*"]) + "\n"


def escaped(text: str) -> str:
    """Text in one line, whose characters are no markup."""
    return _SPECIAL.sub(r"\\\1", " ".join(printable(text).split()))


def _section(section: Section) -> Iterable[str]:
    if isinstance(section, ReportTerms):
        return _terms(section)
    if isinstance(section, Findings):
        head = ("rule", "value", "limit", "verdict", "explanation")
        rows = [
            (one.name, number(one), limit(one), verdict(one), one.explanation)
            for one in section.findings
        ]
        section = ReportTable(section.title, head, rows, section.caption, texts=(0, 3, 4))
    return _table(section)


def _table(section: ReportTable) -> Iterable[str]:
    rule = ["---" if place in section.texts else "---:" for place in range(len(section.head))]
    rows = [_row(section.head), f"|{'|'.join(rule)}|", *map(_row, section.rows)]
    yield "\n".join(rows)
    if section.caption:
        yield escaped(section.caption)


def _row(cells: Sequence[Cell]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _terms(section: ReportTerms) -> Iterable[str]:
    yield "\n".join(f"- **{escaped(name)}**: {_cell(text)}" for name, text in section.terms)


def _cell(cell: Cell) -> str:
    return f"**{escaped(cell.text)}**" if isinstance(cell, Styled) else escaped(cell)


def _code(command: str) -> str:
    """A command as a block; its fence is longer than any row of backticks in it."""
    longest = max((len(found) for found in re.findall("`+", command)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{printable(command)}\n{fence}"
