"""Rules of a gate, as data, whatever they are about: each measures one number of the evidence and compares it with its
limit.

Rules come in stages: those of a later one are asked only about a candidate that passed the earlier ones. A rule that
cannot be measured yet defers the candidate; one that does not decide only tells.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from deploy.bundle_files import finite
from envs.errors import InputError

Verdict = Literal["pass", "fail", "defer", "not asked", "told"]
COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
Evidence = TypeVar("Evidence")


@dataclass(frozen=True)
class Measured:
    """A rule's number, or None with the reason in `explanation`; `defer` where it may become measurable later.

    scale: the rule's limit applies times this (a later look at the hold-out must be surer).
    """

    value: float | None
    explanation: str
    defer: bool = False
    scale: float = 1.0


@dataclass(frozen=True)
class Rule(Generic[Evidence]):
    """One rule. `measure` returns None where the rule does not apply (no champion to beat).

    meaning: what it asks, for someone who does not know the terms. decides: whether a candidate that does not meet it
    is refused.
    """

    name: str
    stage: str
    comparison: str
    limit: float
    meaning: str
    measure: Callable[[Evidence], Measured | None]
    decides: bool = True

    @property
    def flag(self) -> str:
        """What changes the limit on the command line."""
        return f"--limit {self.name}={self.limit:g}"


@dataclass(frozen=True)
class Finding:
    """What a rule said about a candidate."""

    name: str
    stage: str
    value: float | None
    comparison: str
    limit: float
    verdict: Verdict
    explanation: str
    flag: str
    meaning: str = ""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        content: dict[str, Any] = finite(dataclasses.asdict(self))
        return content


def judge(rules: Sequence[Rule[Evidence]], evidence: Evidence, stage: str) -> list[Finding]:
    """Ask every rule of the stage; rules that do not apply give no finding."""
    findings = []
    for rule in rules:
        if rule.stage != stage:
            continue
        measured = rule.measure(evidence)
        if measured is None:
            continue
        limit = rule.limit * measured.scale
        verdict: Verdict
        if measured.value is None or not math.isfinite(measured.value):
            verdict = "defer" if measured.defer else "fail"
        else:
            met = COMPARISONS[rule.comparison](measured.value, limit)
            verdict = "pass" if met else "fail" if rule.decides else "told"
        findings.append(
            Finding(
                rule.name,
                stage,
                measured.value,
                rule.comparison,
                limit,
                verdict,
                measured.explanation,
                rule.flag,
                rule.meaning,
            )
        )
    return findings


def not_asked(rules: Sequence[Rule[Any]], stage: str, why: str) -> list[Finding]:
    """Findings for rules of a stage that was not reached."""
    return [
        Finding(rule.name, stage, None, rule.comparison, rule.limit, "not asked", why, rule.flag, rule.meaning)
        for rule in rules
        if rule.stage == stage
    ]


def passed(findings: Sequence[Finding]) -> bool:
    """Whether nothing failed, was deferred or was left unasked."""
    return all(finding.verdict in ("pass", "told") for finding in findings)


def deferred(findings: Sequence[Finding]) -> bool:
    """Whether nothing failed but something could not be measured yet."""
    return not passed(findings) and all(finding.verdict in ("pass", "told", "defer") for finding in findings)


def with_limits(rules: Sequence[Rule[Evidence]], limits: Mapping[str, float]) -> tuple[Rule[Evidence], ...]:
    """The rules with other limits, by name. Raises InputError for an unknown name or a limit that is no number."""
    known = [rule.name for rule in rules]
    for name, limit in limits.items():
        if name not in known:
            raise InputError(f"--limit {name}: there is no such rule; the rules are {', '.join(known)}")
        if not math.isfinite(limit):
            raise InputError(f"--limit {name}={limit}: the limit must be a finite number")
    return tuple(dataclasses.replace(rule, limit=limits.get(rule.name, rule.limit)) for rule in rules)


def parse_limits(texts: Sequence[str], example: str) -> dict[str, float]:
    """`["NAME=0.2"]` as a mapping. Raises InputError, which shows the example, for anything else."""
    limits = {}
    for text in texts:
        name, separator, number = text.partition("=")
        try:
            limits[name.strip()] = float(number)
        except ValueError as error:
            raise InputError(f"--limit {text!r} is not of the form NAME=NUMBER, like {example}") from error
        if not separator:
            raise InputError(f"--limit {text!r} is not of the form NAME=NUMBER, like {example}")
    return limits
