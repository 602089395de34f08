"""The gate: rules are data, and each rule can refuse a candidate."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from sweepd.deploy.market.rules import (
    DEFAULT_RULES,
    ChampionComparison,
    MarketEvidence,
    NearestConstant,
    Selection,
)
from sweepd.deploy.promotion.bootstrap import Bootstrap
from sweepd.deploy.promotion.overfitting import Overfitting
from sweepd.deploy.promotion.rules import (
    GateRule,
    Measured,
    deferred,
    judge,
    loosened,
    not_evaluated,
    parse_limits,
    passed,
    with_limits,
)
from sweepd.envs.crypto.scoring.luck import without_autocorrelation
from sweepd.envs.crypto.scoring.metrics import Metrics, summarise
from sweepd.envs.crypto.scoring.selection import Deflation
from sweepd.envs.support.errors import InputError


def metrics(**changes: Any) -> Metrics:
    """Good metrics, apart from `changes`."""
    rng = np.random.default_rng(0)
    equal = rng.normal(0.0, 0.01, 500)
    ones = np.ones(500)
    good = summarise(
        equal + 2e-3, equal, "1h", trades=ones, fees=0.0 * ones, notional=ones, exposure=0.5 * ones
    )
    return dataclasses.replace(good, **changes)


def bootstrap(p: float) -> Bootstrap:
    return Bootstrap(mean=1e-4, p=p, low=0.0, high=2e-4, block=3.0, bars=500)


def selection(*, dsr: float = 0.96, pbo: float = 0.1, **changes: Any) -> Selection:
    """The selection of the best of 40 trials."""
    deflation = Deflation(
        by_path=(dsr,),
        path=0,
        moments=without_autocorrelation(5000, 0.04),
        correlation=0.2,
        luck=0.02,
        trials=40,
        effective=32.2,
        needed=0.039,
        record=4000.0,
    )
    halves = np.array([1.0, -1.0])
    fields = {
        "finished": 40,
        "reached": 12,
        "deflation": deflation,
        "overfitting": Overfitting(pbo, 0.5, 0.2, halves, halves, halves),
        "annual": 93.6,
        "bars": 5000,
    }
    return Selection(**(fields | changes))


GOOD = MarketEvidence(
    paths=(metrics(), metrics()),
    faults=(),
    selection=selection(),
    nearest_constant=NearestConstant("always-buy", 0.9, 4000),
    look=1,
    holdout=metrics(),
    excess=bootstrap(0.05),
    comparison=ChampionComparison(
        "abc", 500, metrics(), metrics(total_return=0.01), bootstrap(0.05)
    ),
)


def findings_of(evidence: MarketEvidence) -> dict[str, str]:
    found = [
        finding
        for stage in ("cross-validation", "hold-out")
        for finding in judge(DEFAULT_RULES, evidence, stage)
    ]  # type: ignore[arg-type]
    return {finding.name: finding.verdict for finding in found}


def test_good_evidence_meets_every_rule() -> None:
    assert findings_of(GOOD) == {rule.name: "pass" for rule in DEFAULT_RULES}


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("training-faults", {"faults": ("its weights are not the bytes that were scored",)}),
        ("path-trades", {"paths": (metrics(), metrics(trades=29))}),
        ("deflated-sharpe", {"selection": selection(dsr=0.9499)}),
        ("deflated-sharpe", {"selection": selection(deflation=None)}),
        ("pbo", {"selection": selection(pbo=0.21)}),
        ("pbo", {"selection": selection(overfitting=None)}),
        ("constant-policy", {"nearest_constant": NearestConstant("cash", 0.99, 4000)}),
        ("holdout-excess", {"excess": bootstrap(0.0501)}),
        ("holdout-excess", {"excess": None}),
        ("max-drawdown", {"holdout": metrics(max_drawdown=0.36)}),
        (
            "beats-champion",
            {"comparison": ChampionComparison("abc", 500, metrics(), metrics(), bootstrap(0.0501))},
        ),
        (
            "beats-champion",
            {
                "comparison": ChampionComparison(
                    "abc", 0, None, None, problem="champion abc trades 5m bars"
                )
            },
        ),
    ],
)
def test_each_rule_can_say_no(rule: str, change: dict[str, Any]) -> None:
    found = findings_of(dataclasses.replace(GOOD, **change))
    assert [name for name, verdict in found.items() if verdict != "pass"] == [rule]
    assert found[rule] == "fail"


def test_an_empty_slot_asks_for_no_duel_and_too_few_bars_defer() -> None:
    assert "beats-champion" not in findings_of(dataclasses.replace(GOOD, comparison=None))
    few = judge(
        DEFAULT_RULES,
        dataclasses.replace(GOOD, comparison=ChampionComparison("abc", 12, None, None)),
        "hold-out",
    )
    assert [finding.verdict for finding in few if finding.name == "beats-champion"] == ["defer"]
    assert deferred(few)
    assert not passed(few)
    assert "only 12 bars" in few[-1].explanation
    worse = dataclasses.replace(
        GOOD,
        holdout=metrics(max_drawdown=0.5),
        comparison=ChampionComparison("abc", 12, None, None),
    )
    assert not deferred(judge(DEFAULT_RULES, worse, "hold-out"))


def test_every_look_must_be_twice_as_sure_as_the_one_before() -> None:
    for look, level in ((1, 0.05), (2, 0.025), (3, 0.0125)):
        evidence = dataclasses.replace(GOOD, look=look, comparison=None)
        for p, verdict in ((level, "pass"), (1.01 * level, "fail")):
            finding = judge(
                DEFAULT_RULES, dataclasses.replace(evidence, excess=bootstrap(p)), "hold-out"
            )[0]
            assert (finding.name, finding.verdict, finding.limit) == (
                "holdout-excess",
                verdict,
                level,
            )
            assert f"evaluation {look} on" in finding.explanation
    # The limit that a user sets holds for all evaluations together.
    strict = with_limits(DEFAULT_RULES, {"holdout-excess": 0.02})
    assert judge(strict, GOOD, "hold-out")[0].limit == pytest.approx(0.01)


def test_a_study_of_one_trial_chose_nothing_and_what_nobody_compared_is_not_evaluated() -> None:
    alone = dataclasses.replace(GOOD, selection=selection(finished=1, reached=1, overfitting=None))
    assert "pbo" not in findings_of(alone)
    assert "deflated-sharpe" not in findings_of(dataclasses.replace(GOOD, selection=None))
    assert "constant-policy" not in findings_of(dataclasses.replace(GOOD, nearest_constant=None))


def explanations(evidence: MarketEvidence) -> dict[str, str]:
    found = judge(DEFAULT_RULES, evidence, "cross-validation")
    return {finding.name: finding.explanation for finding in found}


def test_what_it_would_have_needed_is_said() -> None:
    told = explanations(GOOD)
    for words in (
        "+3.74",
        "+3.65 is needed to be distinguished from luck among 40 trials (equivalent to 32.2 ",
    ):
        assert words in told["deflated-sharpe"]
    assert "+1.87" not in told["deflated-sharpe"]  # one figure of luck, the one that is needed
    assert "data" not in told["deflated-sharpe"]


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (1.0, ""),
        (1.001, ", or 2 times as much data at this ratio"),
        (2.4, ", or 3 times as much data at this ratio"),
        (100.0, ", or 100 times as much data at this ratio"),
        (100.1, "; no realistic amount of data would distinguish this ratio from luck"),
        (6_305_166.5, "; no realistic amount of data would distinguish this ratio from luck"),
        (math.inf, "; no realistic amount of data would distinguish this ratio from luck"),
    ],
)
def test_the_data_that_would_suffice_is_a_realistic_whole_number(times: float, said: str) -> None:
    short = selection(dsr=0.5)
    assert short.deflation is not None
    deflation = dataclasses.replace(short.deflation, record=times * short.bars)
    short = dataclasses.replace(short, deflation=deflation)
    told = explanations(dataclasses.replace(GOOD, selection=short))["deflated-sharpe"]
    assert told == explanations(GOOD)["deflated-sharpe"] + said


def test_no_stored_path_fails() -> None:
    found = findings_of(dataclasses.replace(GOOD, paths=()))
    assert found["path-trades"] == "fail"


def test_rules_can_be_added_and_limits_changed() -> None:
    extra = GateRule(
        "luck",
        "cross-validation",
        ">=",
        0.95,
        "not luck",
        lambda _: Measured(0.9, "the chance that it is skill"),
    )
    rules = with_limits((*DEFAULT_RULES, extra), {"max-drawdown": 0.01})
    found = judge(rules, GOOD, "cross-validation")
    assert (found[-1].name, found[-1].verdict, found[-1].flag) == (
        "luck",
        "fail",
        "--limit luck=0.95",
    )
    assert [
        finding.name for finding in judge(rules, GOOD, "hold-out") if finding.verdict == "fail"
    ] == ["max-drawdown"]
    assert {finding.verdict for finding in not_evaluated(rules, "hold-out", "why")} == {
        "not evaluated"
    }
    assert not passed(not_evaluated(rules, "hold-out", "why"))
    with pytest.raises(InputError, match="no such rule; the rules are training-faults"):
        with_limits(rules, {"drawdown": 0.1})
    with pytest.raises(InputError, match="finite"):
        with_limits(rules, {"max-drawdown": float("nan")})
    assert parse_limits(["a=1", "b = -2e-3"], "a=1") == {"a": 1.0, "b": -0.002}
    for wrong in ("a", "a=", "a=b"):
        with pytest.raises(InputError, match="NAME=NUMBER"):
            parse_limits([wrong], "a=1")


def test_a_number_that_is_not_finite_fails() -> None:
    assert (
        findings_of(dataclasses.replace(GOOD, holdout=metrics(max_drawdown=float("nan"))))[
            "max-drawdown"
        ]
        == "fail"
    )


def test_limits_that_a_user_loosened_are_told_from_stricter_ones() -> None:
    given = {
        "pbo": 0.5,
        "deflated-sharpe": 0.5,
        "path-trades": 100.0,
        "max-drawdown": 0.35,
        "holdout-excess": 0.2,
    }
    rules = with_limits(DEFAULT_RULES, given)
    assert [rule.name for rule in rules if rule.loosened] == [
        "deflated-sharpe",
        "pbo",
        "holdout-excess",
    ]
    assert not any(rule.loosened for rule in DEFAULT_RULES)
    again = with_limits(rules, {"pbo": 0.3})  # still looser than the default, which is 0.2
    assert [rule.name for rule in again if rule.loosened] == [
        "deflated-sharpe",
        "pbo",
        "holdout-excess",
    ]
    second = dataclasses.replace(GOOD, look=2, excess=bootstrap(0.04))
    findings = [*judge(rules, second, "cross-validation"), *judge(rules, second, "hold-out")]
    told = [finding.to_dict() for finding in findings]
    assert loosened(told) == (
        ", 3 of them loosened (deflated-sharpe >= 0.5 instead of 0.95, pbo <= 0.5 instead of 0.2, holdout-excess <= "
        "0.05 instead of 0.025)"
    )
    assert loosened(finding.to_dict() for finding in judge(DEFAULT_RULES, GOOD, "hold-out")) == ""


def test_a_p_value_from_few_independent_values_says_so() -> None:
    for batches, said in ((12, True), (29, True), (30, False), (0, False)):
        few = dataclasses.replace(bootstrap(0.01), batches=batches)
        evidence = dataclasses.replace(
            GOOD, excess=few, comparison=ChampionComparison("abc", 500, metrics(), metrics(), few)
        )
        found = {
            finding.name: finding.explanation
            for finding in judge(DEFAULT_RULES, evidence, "hold-out")
        }
        for name in ("holdout-excess", "beats-champion"):
            words = f"500 bars count as about {batches} independent values, so p may be too small (measured at p = .05:"
            assert (words in found[name]) == said
