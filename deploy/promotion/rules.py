"""Rules of a gate as data: each measures one number of the evidence and compares it with a limit.

Rules come in stages; a later stage is evaluated only for candidates that passed the earlier ones. A
rule that cannot be measured yet defers the candidate. A rule that decides nothing only informs.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

from sweepd.deploy.registry.bundle_files import finite
from sweepd.envs.support.errors import InputError

RuleVerdict = Literal["pass", "fail", "defer", "not evaluated", "told"]
NOT_EVALUATED: Final = "not evaluated"
COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
EvidenceT = TypeVar("EvidenceT")


@dataclass(frozen=True)
class Measured:
    """A rule's measurement.

    Attributes:
        value: the number, None if it could not be measured.
        explanation: the measurement in words, or why there is none.
        defer: whether it may become measurable later.
        scale: factor of the rule's limit; later evaluations of a hold-out have stricter limits.
    """

    value: float | None
    explanation: str
    defer: bool = False
    scale: float = 1.0


@dataclass(frozen=True)
class GateRule(Generic[EvidenceT]):
    """One rule.

    Attributes:
        name: of the rule, as in `--limit NAME=NUMBER`.
        stage: name of its stage.
        comparison: key of `COMPARISONS`, between measured value and limit.
        limit: the limit.
        meaning: the rule in plain words.
        measure: measures the evidence; None if the rule does not apply (no champion to beat).
        decides: whether candidates that do not meet it are refused.
        default: the default limit if a user set another one, else None.
        source: where a rule of another package comes from; "": it is sweepd's.
    """

    name: str
    stage: str
    comparison: str
    limit: float
    meaning: str
    measure: Callable[[EvidenceT], Measured | None]
    decides: bool = True
    default: float | None = None
    source: str = ""

    @property
    def loosened(self) -> bool:
        """Whether a user's limit accepts candidates that the default limit refuses."""
        if self.default is None or not self.decides:
            return False
        upper = self.comparison.startswith("<")
        return self.limit > self.default if upper else self.limit < self.default


@dataclass(frozen=True)
class RuleFinding:
    """The result of a rule for a candidate.

    Attributes:
        value: the measured number, None if there is none.
        limit: the limit that applied, with the measurement's scale.
        default: the limit that would apply without a user's limit.
        loosened: whether the user's limit is less strict than the default.
        decides: whether the rule decides, or only informs.
        source: of the rule, see `GateRule`.
    """

    name: str
    stage: str
    value: float | None
    comparison: str
    limit: float
    verdict: RuleVerdict
    explanation: str
    flag: str
    meaning: str = ""
    default: float | None = None
    loosened: bool = False
    decides: bool = True
    source: str = ""

    @property
    def said(self) -> str:
        """The verdict, and whether a user loosened the limit."""
        return f"{self.verdict}, loosened" if self.loosened else self.verdict

    def to_dict(self) -> dict[str, Any]:
        """The finding for JSON."""
        content: dict[str, Any] = finite(dataclasses.asdict(self))
        if self.decides:
            del content["decides"]
        if not self.source:
            del content["source"]
        return content


def training_faults(stage: str, fine: str) -> GateRule[Any]:
    """The rule that nothing went wrong in training, for evidence with `faults` in sentences.

    Args:
        stage: stage of the rule.
        fine: explanation without faults.
    """

    def measure(evidence: Any) -> Measured:
        faults = evidence.faults
        return Measured(len(faults), faults[0] if faults else fine)

    return GateRule("training-faults", stage, "<=", 0.0, "nothing went wrong in training", measure)


def judge(
    rules: Sequence[GateRule[EvidenceT]], evidence: EvidenceT, stage: str
) -> tuple[RuleFinding, ...]:
    """Evaluate every rule of the stage. Rules that do not apply give no finding."""
    own = [(rule, rule.measure(evidence)) for rule in rules if rule.stage == stage]
    return tuple(
        _finding(rule, measured, _verdict(rule, measured))
        for rule, measured in own
        if measured is not None
    )


def _verdict(rule: GateRule[Any], measured: Measured) -> RuleVerdict:
    # NaN compares as False with every limit; a number that cannot be computed never passes.
    if measured.value is None or not math.isfinite(measured.value):
        return "defer" if measured.defer else "fail"
    met = COMPARISONS[rule.comparison](measured.value, rule.limit * measured.scale)
    return "pass" if met else "fail" if rule.decides else "told"


def _finding(rule: GateRule[Any], measured: Measured, verdict: RuleVerdict) -> RuleFinding:
    default = rule.limit if rule.default is None else rule.default
    return RuleFinding(
        name=rule.name,
        stage=rule.stage,
        value=measured.value,
        comparison=rule.comparison,
        limit=rule.limit * measured.scale,
        verdict=verdict,
        explanation=measured.explanation,
        flag=f"--limit {rule.name}={rule.limit:g}",
        meaning=rule.meaning,
        default=default * measured.scale,
        loosened=rule.loosened,
        decides=rule.decides,
        source=rule.source,
    )


def not_evaluated(rules: Sequence[GateRule[Any]], stage: str, why: str) -> tuple[RuleFinding, ...]:
    """Findings for the rules of a stage that was not reached."""
    absent = Measured(None, why)
    return tuple(_finding(rule, absent, NOT_EVALUATED) for rule in rules if rule.stage == stage)


def loosened(findings: Iterable[Mapping[str, Any]]) -> str:
    """Which limits were loosened: `, 2 of them loosened (pbo <= 0.5 instead of 0.2, …)`.

    The text follows "met every rule"; it is "" if no limit was loosened.

    Args:
        findings: as `RuleFinding.to_dict` returns them.
    """
    found = [
        f"{one['name']} {one['comparison']} {one['limit']:g} instead of {one['default']:g}"
        for one in findings
        if one["loosened"] and one["verdict"] != NOT_EVALUATED
    ]
    return f", {len(found)} of them loosened ({', '.join(found)})" if found else ""


def passed(findings: Sequence[RuleFinding]) -> bool:
    """Whether every rule was evaluated and none failed or was deferred."""
    return all(finding.verdict in ("pass", "told") for finding in findings)


def deciding(findings: Sequence[RuleFinding]) -> RuleFinding | None:
    """The rule that decides: the first one that is not met, else the last one that was evaluated.

    A rule that only informs never decides.
    """
    for finding in findings:
        if finding.verdict in ("fail", "defer"):
            return finding
    met = [finding for finding in findings if finding.verdict == "pass" and finding.decides]
    return met[-1] if met else None


def deferred(findings: Sequence[RuleFinding]) -> bool:
    """Whether no rule failed but some could not be measured yet."""
    return not passed(findings) and all(
        finding.verdict in ("pass", "told", "defer") for finding in findings
    )


def with_limits(
    rules: Sequence[GateRule[EvidenceT]], limits: Mapping[str, float]
) -> tuple[GateRule[EvidenceT], ...]:
    """Replace limits of the rules.

    Args:
        rules: the rules.
        limits: new limits by rule name.

    Raises:
        InputError: a rule is unknown, or a limit is not finite.
    """
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
    """Parse `["NAME=0.2"]` into a mapping.

    Args:
        texts: values of `--limit`.
        example: a correct value, for the error message.

    Raises:
        InputError: a text is not of the form NAME=NUMBER.
    """
    limits = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            limits[name.strip()] = float(number)  # without "=", the number is "", a ValueError
        except ValueError as error:
            raise InputError(
                f"--limit {text!r} is not of the form NAME=NUMBER, like {example}"
            ) from error
    return limits
