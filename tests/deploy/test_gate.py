"""The gate: rules are data, and each of them can say no."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from deploy.gate import (
    DEFAULT_RULES,
    Duel,
    Evidence,
    Measured,
    Rule,
    deferred,
    judge,
    not_asked,
    parse_limits,
    passed,
    with_limits,
)
from envs.crypto.metrics import Metrics, summarise
from envs.errors import InputError


def metrics(**changes: Any) -> Metrics:
    """Good ones, but for `changes`."""
    rng = np.random.default_rng(0)
    equal = rng.normal(0.0, 0.01, 500)
    ones = np.ones(500)
    good = summarise(equal + 2e-3, equal, "1h", trades=ones, fees=0.0 * ones, notional=ones, exposure=0.5 * ones)
    return dataclasses.replace(good, **changes)


GOOD = Evidence(
    paths=(metrics(), metrics()),
    faults=(),
    holdout=metrics(),
    duel=Duel("abc", 500, metrics(), metrics(total_return=0.01)),
)


def findings_of(evidence: Evidence) -> dict[str, str]:
    found = [finding for stage in ("cross-validation", "hold-out") for finding in judge(DEFAULT_RULES, evidence, stage)]  # type: ignore[arg-type]
    return {finding.name: finding.verdict for finding in found}


def test_good_evidence_meets_every_rule() -> None:
    assert findings_of(GOOD) == {rule.name: "pass" for rule in DEFAULT_RULES}


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("training-faults", {"faults": ("its weights are not the bytes that were scored",)}),
        ("path-trades", {"paths": (metrics(), metrics(trades=29))}),
        ("path-excess-sharpe", {"paths": (metrics(excess_sharpe=0.5), metrics(excess_sharpe=-0.6))}),
        ("holdout-trades", {"holdout": metrics(trades=9)}),
        ("holdout-exposure", {"holdout": metrics(exposure=0.04)}),
        ("holdout-excess", {"holdout": metrics(total_return=0.1, equal_weight_return=0.1)}),
        ("max-drawdown", {"holdout": metrics(max_drawdown=0.36)}),
        ("beats-champion", {"duel": Duel("abc", 500, metrics(total_return=0.1), metrics(total_return=0.1))}),
        ("beats-champion", {"duel": Duel("abc", 0, None, None, "champion abc trades 5m bars")}),
    ],
)
def test_each_rule_can_say_no(rule: str, change: dict[str, Any]) -> None:
    found = findings_of(dataclasses.replace(GOOD, **change))
    assert [name for name, verdict in found.items() if verdict != "pass"] == [rule]
    assert found[rule] == "fail"


def test_an_empty_slot_asks_for_no_duel_and_too_few_bars_defer() -> None:
    assert "beats-champion" not in findings_of(dataclasses.replace(GOOD, duel=None))
    few = judge(DEFAULT_RULES, dataclasses.replace(GOOD, duel=Duel("abc", 12, None, None)), "hold-out")
    assert [finding.verdict for finding in few if finding.name == "beats-champion"] == ["defer"]
    assert deferred(few)
    assert not passed(few)
    assert "only 12 bars" in few[-1].explanation
    assert not deferred(
        judge(
            DEFAULT_RULES,
            dataclasses.replace(GOOD, holdout=metrics(trades=0), duel=Duel("abc", 12, None, None)),
            "hold-out",
        )
    )


def test_no_stored_path_fails() -> None:
    found = findings_of(dataclasses.replace(GOOD, paths=()))
    assert (found["path-trades"], found["path-excess-sharpe"]) == ("fail", "fail")


def test_rules_can_be_added_and_limits_changed() -> None:
    extra = Rule(
        "luck", "cross-validation", ">=", 0.95, "not luck", lambda _: Measured(0.9, "the chance that it is skill")
    )
    rules = with_limits((*DEFAULT_RULES, extra), {"max-drawdown": 0.01})
    found = judge(rules, GOOD, "cross-validation")
    assert (found[-1].name, found[-1].verdict, found[-1].flag) == ("luck", "fail", "--limit luck=0.95")
    assert [finding.name for finding in judge(rules, GOOD, "hold-out") if finding.verdict == "fail"] == ["max-drawdown"]
    assert {finding.verdict for finding in not_asked(rules, "hold-out", "why")} == {"not asked"}
    assert not passed(not_asked(rules, "hold-out", "why"))
    with pytest.raises(InputError, match="no such rule; the rules are training-faults"):
        with_limits(rules, {"drawdown": 0.1})
    with pytest.raises(InputError, match="finite"):
        with_limits(rules, {"max-drawdown": float("nan")})
    assert parse_limits(["a=1", "b = -2e-3"]) == {"a": 1.0, "b": -0.002}
    for wrong in ("a", "a=", "a=b"):
        with pytest.raises(InputError, match="NAME=NUMBER"):
            parse_limits([wrong])


def test_a_number_that_is_not_finite_fails() -> None:
    assert (
        findings_of(dataclasses.replace(GOOD, holdout=metrics(total_return=float("nan"))))["holdout-excess"] == "fail"
    )
