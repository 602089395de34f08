"""The gate: the rules that a candidate must pass to become champion, as data.

A rule measures one number of the evidence and compares it with its limit. Rules of the first stage read what
cross-validation stored with the trial and cost nothing; those of the second read the hold-out, at which every look is
counted, so they are asked only about a candidate that passed the first. A rule that cannot be measured yet defers the
candidate: it stays a challenger.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from deploy.bundle import finite
from envs.crypto.metrics import Metrics
from envs.errors import InputError

Stage = Literal["cross-validation", "hold-out"]
Verdict = Literal["pass", "fail", "defer", "not asked"]
COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
}


@dataclass(frozen=True)
class Duel:
    """Candidate and champion, each flat at the start, over the bars that neither had seen.

    candidate, champion: metrics over the same bars, or None where there are too few of them. bars: how many there are.
    problem: why they cannot be compared at all, or "".
    """

    champion_name: str
    bars: int
    candidate: Metrics | None
    champion: Metrics | None
    problem: str = ""


@dataclass(frozen=True)
class Evidence:
    """What is known about a candidate.

    paths: its members' metrics, one per back-test path of cross-validation. faults: sentences about what went wrong in
    training. holdout: metrics of the deployed ensemble on the hold-out through the canonical policy path. duel: None
    where the slot is empty.
    """

    paths: tuple[Metrics, ...]
    faults: tuple[str, ...]
    holdout: Metrics | None = None
    duel: Duel | None = None


@dataclass(frozen=True)
class Measured:
    """A rule's number, or None with the reason in `explanation`; `defer` where it may become measurable later."""

    value: float | None
    explanation: str
    defer: bool = False


@dataclass(frozen=True)
class Rule:
    """One rule. `measure` returns None where the rule does not apply (no champion to beat)."""

    name: str
    stage: Stage
    comparison: str
    limit: float
    meaning: str
    measure: Callable[[Evidence], Measured | None]

    @property
    def flag(self) -> str:
        """What changes the limit on the command line."""
        return f"--limit {self.name}={self.limit:g}"


@dataclass(frozen=True)
class Finding:
    """What a rule said about a candidate."""

    name: str
    stage: Stage
    value: float | None
    comparison: str
    limit: float
    verdict: Verdict
    explanation: str
    flag: str

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        content: dict[str, Any] = finite(dataclasses.asdict(self))
        return content


def judge(rules: Sequence[Rule], evidence: Evidence, stage: Stage) -> list[Finding]:
    """Ask every rule of the stage; rules that do not apply give no finding."""
    findings = []
    for rule in rules:
        if rule.stage != stage:
            continue
        measured = rule.measure(evidence)
        if measured is None:
            continue
        verdict: Verdict
        if measured.value is None or not math.isfinite(measured.value):
            verdict = "defer" if measured.defer else "fail"
        else:
            verdict = "pass" if COMPARISONS[rule.comparison](measured.value, rule.limit) else "fail"
        findings.append(
            Finding(
                rule.name, stage, measured.value, rule.comparison, rule.limit, verdict, measured.explanation, rule.flag
            )
        )
    return findings


def not_asked(rules: Sequence[Rule], stage: Stage, why: str) -> list[Finding]:
    """Findings for rules of a stage that was not reached."""
    return [
        Finding(rule.name, stage, None, rule.comparison, rule.limit, "not asked", why, rule.flag)
        for rule in rules
        if rule.stage == stage
    ]


def passed(findings: Sequence[Finding]) -> bool:
    """Whether nothing failed, was deferred or was left unasked."""
    return all(finding.verdict == "pass" for finding in findings)


def deferred(findings: Sequence[Finding]) -> bool:
    """Whether nothing failed but something could not be measured yet."""
    return not passed(findings) and all(finding.verdict in ("pass", "defer") for finding in findings)


def with_limits(rules: Sequence[Rule], limits: Mapping[str, float]) -> tuple[Rule, ...]:
    """The rules with other limits, by name. Raises InputError for an unknown name or a limit that is no number."""
    known = [rule.name for rule in rules]
    for name, limit in limits.items():
        if name not in known:
            raise InputError(f"--limit {name}: there is no such rule; the rules are {', '.join(known)}")
        if not math.isfinite(limit):
            raise InputError(f"--limit {name}={limit}: the limit must be a finite number")
    return tuple(dataclasses.replace(rule, limit=limits.get(rule.name, rule.limit)) for rule in rules)


def parse_limits(texts: Sequence[str]) -> dict[str, float]:
    """`["max-drawdown=0.2"]` as a mapping. Raises InputError for anything else."""
    limits = {}
    for text in texts:
        name, separator, number = text.partition("=")
        try:
            limits[name.strip()] = float(number)
        except ValueError as error:
            raise InputError(f"--limit {text!r} is not of the form NAME=NUMBER, like max-drawdown=0.2") from error
        if not separator:
            raise InputError(f"--limit {text!r} is not of the form NAME=NUMBER, like max-drawdown=0.2")
    return limits


def _percent(value: float) -> str:
    return f"{100 * value:+.2f} %"


def _training_faults(evidence: Evidence) -> Measured:
    count = len(evidence.faults)
    return Measured(
        count,
        evidence.faults[0]
        if count
        else "training and evaluation stayed finite, and the weights are those that were scored",
    )


def _path_trades(evidence: Evidence) -> Measured:
    if not evidence.paths:
        return Measured(None, "the trial stored no back-test path")
    fewest = min(metrics.trades for metrics in evidence.paths)
    return Measured(
        fewest,
        f"the quietest of {len(evidence.paths)} back-test paths made {fewest:,} trades; a few trades prove nothing",
    )


def _path_excess(evidence: Evidence) -> Measured:
    if not evidence.paths:
        return Measured(None, "the trial stored no back-test path")
    mean = sum(metrics.excess_sharpe for metrics in evidence.paths) / len(evidence.paths)
    return Measured(
        mean, f"in cross-validation its members' Sharpe ratio was {mean:+.2f} against equal weight's, mean over paths"
    )


def _holdout_trades(evidence: Evidence) -> Measured:
    metrics = _need(evidence.holdout)
    return Measured(metrics.trades, f"{metrics.trades:,} trades in the hold-out's {metrics.bars:,} bars")


def _holdout_exposure(evidence: Evidence) -> Measured:
    metrics = _need(evidence.holdout)
    return Measured(
        metrics.exposure, f"{metrics.exposure:.1%} of the value was invested on average; cash alone is no strategy"
    )


def _holdout_excess(evidence: Evidence) -> Measured:
    metrics = _need(evidence.holdout)
    excess = metrics.total_return - metrics.equal_weight_return
    return Measured(
        excess,
        f"{_percent(metrics.total_return)} after fees on the hold-out, where equal weight made "
        f"{_percent(metrics.equal_weight_return)}",
    )


def _holdout_drawdown(evidence: Evidence) -> Measured:
    metrics = _need(evidence.holdout)
    return Measured(
        metrics.max_drawdown,
        f"fell at most {metrics.max_drawdown:.1%} from a peak (equal weight {metrics.equal_weight_drawdown:.1%})",
    )


def _beats_champion(evidence: Evidence) -> Measured | None:
    duel = evidence.duel
    if duel is None:
        return None
    if duel.problem:
        return Measured(None, duel.problem)
    if duel.candidate is None or duel.champion is None:
        return Measured(
            None,
            f"only {duel.bars} bars are newer than what both have seen: too few to compare with champion "
            f"{duel.champion_name}, so it stays a challenger",
            defer=True,
        )
    difference = duel.candidate.total_return - duel.champion.total_return
    return Measured(
        difference,
        f"{_percent(duel.candidate.total_return)} after fees, where champion {duel.champion_name} made "
        f"{_percent(duel.champion.total_return)}, "
        f"over the {duel.bars:,} bars that neither had seen",
    )


def _need(metrics: Metrics | None) -> Metrics:
    if metrics is None:
        raise ValueError("hold-out rules are asked after the hold-out was scored")
    return metrics


DEFAULT_RULES: tuple[Rule, ...] = (
    Rule("training-faults", "cross-validation", "<=", 0.0, "nothing diverged", _training_faults),
    Rule("path-trades", "cross-validation", ">=", 30.0, "enough trades on every path", _path_trades),
    Rule(
        "path-excess-sharpe", "cross-validation", ">", 0.0, "better than equal weight in cross-validation", _path_excess
    ),
    Rule("holdout-trades", "hold-out", ">=", 10.0, "enough trades on the hold-out", _holdout_trades),
    Rule("holdout-exposure", "hold-out", ">=", 0.05, "invested at all", _holdout_exposure),
    Rule("holdout-excess", "hold-out", ">", 0.0, "beats equal weight after fees", _holdout_excess),
    Rule("max-drawdown", "hold-out", "<=", 0.35, "bearable losses on the way", _holdout_drawdown),
    Rule("beats-champion", "hold-out", ">", 0.0, "beats the present champion", _beats_champion),
)
