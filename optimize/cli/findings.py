"""Results of checks, as `sweepd doctor` prints them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sweepd.envs.support.terminal import Terminal


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        ok: whether there is nothing to fix.
        subject: what was checked.
        found: the result.
        advice: how to fix the problem.
        wrapped: whether it would be a problem without the wrappers that are given.
    """

    ok: bool
    subject: str
    found: str
    advice: str = ""
    wrapped: bool = False


def print_findings(findings: Iterable[Finding]) -> int:
    """Print each result as it arrives; return the number of problems."""
    console = Terminal()
    problems = 0
    for finding in findings:
        label = ("wrap " if finding.wrapped else "ok  ") if finding.ok else "fix "
        console.print(label, style="green" if finding.ok else "bold red", end="")
        advice = f" -> {finding.advice}" if finding.advice and not finding.ok else ""
        console.print_line(f"{finding.subject}: {finding.found}{advice}")
        problems += not finding.ok
    return problems
