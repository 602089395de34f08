"""The sections of a report: what is told about a promotion or a bundle, for every kind of screen.

A market and a game turn their facts into sections once. `sweepd.deploy.promotion.terminal` renders
them in a terminal, `sweepd.deploy.promotion.documents` as a page and as a PDF.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from sweepd.deploy.promotion.promotion import Step
from sweepd.deploy.promotion.rules import NOT_EVALUATED, RuleFinding
from sweepd.deploy.registry.bundle_files import NAME_DIGITS
from sweepd.envs.support.formatting import MISSING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SYNTHETIC = (
    "The market is synthetic: this shows that the program works, and nothing about real markets."
)


@dataclass(frozen=True)
class Styled:
    """Text with a style: a rule's verdict, `loosened` or `own` (the player that a table is about)."""

    text: str
    style: str


Cell: TypeAlias = str | Styled


@dataclass(frozen=True)
class Findings:
    """What a gate found: one row per rule."""

    title: str
    findings: Sequence[RuleFinding]
    caption: str = ""


@dataclass(frozen=True)
class ReportTable:
    """A table. texts: indices of the columns of text; the others hold numbers."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    texts: Collection[int] = (0,)


@dataclass(frozen=True)
class ReportTerms:
    """Names or terms, and a text for each."""

    title: str
    terms: Sequence[tuple[str, Cell]]


Section: TypeAlias = Findings | ReportTable | ReportTerms


@dataclass(frozen=True)
class ReportPicture:
    """A picture. described: in words. draw: returns it, 11 inches wide."""

    described: str
    draw: Callable[[], Figure]


@dataclass(frozen=True)
class Report:
    """The report on a promotion.

    Attributes:
        title: name of the study.
        headline: the outcome in a few words.
        style: of the headline, as of `Styled`.
        verdict: why it is so, how far it is from the limits, and what this gate would find.
        steps: commands that lead on.
        lines: what else is told about the outcome, one paragraph each.
        sections: what it is based on.
        picture: for the documents; None if nothing was judged, and there are no documents then.
        reading: explanations for readers of the documents, who may not know the terms.
        footer: last line of the documents.
    """

    title: str
    headline: str
    style: str
    verdict: ReportTerms
    steps: Sequence[Step]
    lines: Sequence[str]
    sections: Sequence[Section]
    picture: ReportPicture | None
    reading: ReportTerms
    footer: str


def short(hash_: str | None) -> str:
    """The name of a bundle's folder, "none" for None."""
    return hash_[:NAME_DIGITS] if hash_ else "none"


def sentence(text: str) -> str:
    """Text as a sentence: with a capital letter, and a full stop."""
    return f"{capital(text)}."


def capital(text: str) -> str:
    """Text with a capital letter."""
    return text[:1].upper() + text[1:]


def number(finding: RuleFinding) -> str:
    """A finding's value."""
    if finding.value is None:
        return MISSING
    return f"{finding.value:,.0f}" if float(finding.value).is_integer() else f"{finding.value:.4g}"


def limit(finding: RuleFinding) -> str:
    """A finding's limit, with the default limit if a user set another."""
    usual = finding.default in (None, finding.limit)
    return f"{finding.comparison} {finding.limit:g}" + (
        "" if usual else f" (default {finding.default:g})"
    )


def distance(finding: RuleFinding) -> str:
    """A finding's value beside its limit, and what was measured."""
    if finding.value is None:
        return f"{finding.name} could not be measured: {finding.explanation}"
    return f"{finding.name} is {number(finding)}, {limit(finding)} is needed: {finding.explanation}"


def verdict(finding: RuleFinding) -> Styled:
    """A finding's verdict, and whether a user loosened the limit."""
    return Styled(finding.said, "loosened" if finding.loosened else finding.verdict)


def stage_verdict(findings: Sequence[RuleFinding], stage: str) -> Cell:
    """The result of a stage in a few words."""
    findings = [finding for finding in findings if finding.stage == stage]
    for found in ("fail", "defer", NOT_EVALUATED):
        named = [finding.name for finding in findings if finding.verdict == found]
        if named:
            return Styled(
                found if found == NOT_EVALUATED else f"{found}: {', '.join(named)}", found
            )
    return Styled("pass", "pass") if findings else MISSING


def parameters_text(values: Mapping[str, Any]) -> str:
    """Sampled parameters in one line."""
    return ", ".join(f"{name} {plain_value(value)}" for name, value in values.items())


def plain_value(value: Any) -> str:
    """A manifest's value with few digits."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return " ".join(plain_value(item) for item in value)
    return MISSING if value is None else str(value)
