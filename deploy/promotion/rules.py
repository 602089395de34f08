"""Rules of a gate, as data, whatever they are about: each measures one number of the evidence and compares it with its
limit.

Rules come in stages: those of a later one are asked only about a candidate that passed the earlier ones. A rule that
cannot be measured yet defers the candidate; one that does not decide only tells.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from deploy.registry.bundle_files import finite
from envs.support.errors import InputError

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
    is refused. default: the default limit, if a user set another one; else None.
    """

    name: str
    stage: str
    comparison: str
    limit: float
    meaning: str
    measure: Callable[[Evidence], Measured | None]
    decides: bool = True
    default: float | None = None

    @property
    def loosened(self) -> bool:
        """Whether a user's limit lets candidates pass that the default one refuses."""
        if self.default is None or not self.decides:
            return False
        return (
            self.limit > self.default
            if self.comparison.startswith("<")
            else self.limit < self.default
        )

    @property
    def flag(self) -> str:
        """What changes the limit on the command line."""
        return f"--limit {self.name}={self.limit:g}"


@dataclass(frozen=True)
class Finding:
    """What a rule said about a candidate. default: the limit that applies where no user sets another one. loosened:
    whether the user's limit is less strict than that.
    """

    name: str
    stage: str
    value: float | None
    comparison: str
    limit: float
    verdict: Verdict
    explanation: str
    flag: str
    meaning: str = ""
    default: float | None = None
    loosened: bool = False

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
            _finding(rule, measured.value, measured.scale, verdict, measured.explanation)
        )
    return findings


def _finding(
    rule: Rule[Any], value: float | None, scale: float, verdict: Verdict, explanation: str
) -> Finding:
    return Finding(
        name=rule.name,
        stage=rule.stage,
        value=value,
        comparison=rule.comparison,
        limit=rule.limit * scale,
        verdict=verdict,
        explanation=explanation,
        flag=rule.flag,
        meaning=rule.meaning,
        default=scale * (rule.limit if rule.default is None else rule.default),
        loosened=rule.loosened,
    )


def not_asked(rules: Sequence[Rule[Any]], stage: str, why: str) -> list[Finding]:
    """Findings for rules of a stage that was not reached."""
    return [_finding(rule, None, 1.0, "not asked", why) for rule in rules if rule.stage == stage]


def loosened(findings: Iterable[Mapping[str, Any]]) -> str:
    """`, 2 of them loosened (pbo <= 0.5 instead of 0.2, …)`, to follow "met every rule"; "" where no limit was.

    findings: as `Finding.to_dict` gives them. Bundles made before limits were recorded say nothing, so nothing is
    claimed about them.
    """
    found = [
        f"{one['name']} {one['comparison']} {one['limit']:g} instead of {one['default']:g}"
        for one in findings
        if one.get("loosened") and one["verdict"] != "not asked"
    ]
    return f", {len(found)} of them loosened ({', '.join(found)})" if found else ""


def passed(findings: Sequence[Finding]) -> bool:
    """Whether nothing failed, was deferred or was left unasked."""
    return all(finding.verdict in ("pass", "told") for finding in findings)


def deferred(findings: Sequence[Finding]) -> bool:
    """Whether nothing failed but something could not be measured yet."""
    return not passed(findings) and all(
        finding.verdict in ("pass", "told", "defer") for finding in findings
    )


def with_limits(
    rules: Sequence[Rule[Evidence]], limits: Mapping[str, float]
) -> tuple[Rule[Evidence], ...]:
    """The rules with other limits, by name. Raises InputError for an unknown name or a limit that is no number."""
    known = [rule.name for rule in rules]
    for name, limit in limits.items():
        if name not in known:
            raise InputError(
                f"--limit {name}: there is no such rule; the rules are {', '.join(known)}"
            )
        if not math.isfinite(limit):
            raise InputError(f"--limit {name}={limit}: the limit must be a finite number")
    return tuple(
        dataclasses.replace(
            rule,
            limit=limits[rule.name],
            default=rule.limit if rule.default is None else rule.default,
        )
        if rule.name in limits
        else rule
        for rule in rules
    )


def parse_limits(texts: Sequence[str], example: str) -> dict[str, float]:
    """`["NAME=0.2"]` as a mapping. Raises InputError, which shows the example, for anything else."""
    limits = {}
    for text in texts:
        name, separator, number = text.partition("=")
        try:
            limits[name.strip()] = float(number)
        except ValueError as error:
            raise InputError(
                f"--limit {text!r} is not of the form NAME=NUMBER, like {example}"
            ) from error
        if not separator:
            raise InputError(f"--limit {text!r} is not of the form NAME=NUMBER, like {example}")
    return limits
