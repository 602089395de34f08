"""Rules of other packages: measured, recorded, refused in one sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sweepd.deploy.games.bundle import GameBundle
from sweepd.deploy.games.gate import GameGate
from sweepd.deploy.promotion.documents import write_report
from sweepd.deploy.promotion.own_rules import own_rules
from sweepd.deploy.promotion.promoter import Promoter
from sweepd.deploy.promotion.rules import GateRule, Measured, judge, with_limits
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.support.errors import InputError
from sweepd.testing import RuleTestCase
from tests.deploy.builders import promoter_of
from tests.deploy.games.players import GOOD, study_of
from tests.distributions import install

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
STAGES = ("search", "panel")
KIT = "rule_kit"
MODULE = """
from sweepd.deploy.promotion.rules import GateRule, Measured

def fails(evidence):
    raise KeyError("nothing")

def value(evidence):
    return Measured(evidence if isinstance(evidence, float) else 0.0, "so")

def rule(name="own", stage="panel", comparison=">=", measure=None):
    return GateRule(name, stage, comparison, 0.5, "a test", measure or value)

RULE = rule()
FAILS = rule("fails", measure=fails)
WRONG = rule("wrong", measure=lambda e: e)
ABSENT = rule("absent", measure=lambda e: None)
NUMBER = 3
"""


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    points = {"sweepd.rule": {"own": f"{KIT}:RULE"}}
    install(tmp_path / "site", "rule-kit", {f"{KIT}.py": MODULE}, points)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield tmp_path / "site"
    sys.modules.pop(KIT, None)


def findings(texts: list[str], evidence: Any, **limits: float) -> list[dict[str, Any]]:
    rules = with_limits(own_rules(texts, STAGES, ()), limits)
    return [one.to_dict() for one in judge(rules, evidence, "panel")]


def test_a_rule_judges_and_says_where_it_comes_from() -> None:
    for text in ("own", f"{KIT}:RULE", f"{KIT}:rule"):
        [met] = findings([text], 0.7)
        assert (met["name"], met["verdict"], met["meaning"]) == ("own", "pass", "a test")
        assert met["source"].startswith(f"{KIT}:")
        assert "rule-kit 1.2.3, sha256 " in met["source"]
        assert met["explanation"] == f"so (a rule of {met['source']})"
    assert findings(["own"], 0.4)[0]["verdict"] == "fail"
    [loosened] = findings(["own"], 0.4, own=0.3)
    assert (loosened["verdict"], loosened["loosened"]) == ("pass", True)
    named = findings([f'{KIT}:rule {{"name": "other", "comparison": "<"}}', "own"], 0.4)
    assert [(one["name"], one["verdict"]) for one in named] == [("other", "pass"), ("own", "fail")]


def test_rules_of_sweepd_record_no_source() -> None:
    rule: GateRule[float] = GateRule("x", "panel", ">", 0.0, "", lambda e: Measured(e, ""))
    [finding] = judge([rule], 1.0, "panel")
    assert "source" not in finding.to_dict()


def test_a_rule_that_cannot_be_measured_refuses_the_candidate() -> None:
    [finding] = findings([f"{KIT}:FAILS"], 1.0)
    assert finding["verdict"] == "fail"
    assert finding["explanation"] == f"--rule {KIT}:FAILS fails: KeyError: 'nothing'"
    [finding] = findings([f"{KIT}:WRONG"], 1.0)
    assert finding["verdict"] == "fail"
    assert "returned 1.0 instead of a Measured or None" in finding["explanation"]
    assert findings([f"{KIT}:ABSENT"], 1.0) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nobody", "--rule 'nobody' is not known; name a GateRule as MODULE:NAME, like own_rule"),
        (f"{KIT}:Nobody", "has nothing called 'Nobody'"),
        ("no_such_kit:RULE", "No module named 'no_such_kit'"),
        (f"{KIT}:NUMBER", "3 is not a GateRule"),
        (f'{KIT}:RULE {{"name": "x"}}', "only a function takes arguments"),
        (f'{KIT}:rule {{"no": 1}}', "unexpected keyword argument 'no'"),
        (f"{KIT}:rule {{name", "the arguments are not JSON"),
        (f'{KIT}:rule {{"stage": "x"}}', "its stage is 'x'; it must be one of search, panel"),
        (f'{KIT}:rule {{"comparison": "="}}', "its comparison is '='; it must be one of >, >=,"),
        (f'{KIT}:rule {{"name": "taken"}}', "the gate has a rule called 'taken'; rename yours"),
    ],
)
def test_what_cannot_be_used_is_refused(text: str, said: str) -> None:
    taken: GateRule[Any] = GateRule("taken", "panel", ">", 0.0, "", lambda _: None)
    with pytest.raises(InputError, match=said) as refused:
        own_rules([text], STAGES, [taken])
    assert refused.value.exit_code == 2


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match="the gate has a rule called 'own'"):
        own_rules(["own", f"{KIT}:RULE"], STAGES, ())


def returns(*values: float) -> Any:
    return SimpleNamespace(
        panel=SimpleNamespace(episodes=SimpleNamespace(returns=np.array(values)))
    )


class TestWorstGames(RuleTestCase):
    """The rule of `examples/own_rule.py`."""

    rule = 'own_rule:worst_games {"least": 5}'

    def passing(self) -> Any:
        return returns(*range(6, 26))

    def failing(self) -> Any:
        return returns(*range(1, 21))


@dataclass
class Counting:
    """Evidence that counts its measurements."""

    measured: int = 0


BROKEN = """
from sweepd.deploy.promotion.rules import GateRule, Measured

def counts(evidence):
    evidence.measured += 1
    return Measured(float(evidence.measured), "so often")

def judges(evidence):
    return Measured(float("nan"), "no number")

COUNTS = GateRule("counts", "panel", "<=", 1.0, "a test", counts)
JUDGES = GateRule("judges", "panel", ">=", 1.0, "a test", judges)
"""


@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("COUNTS", "the_same_evidence_gives_the_same_finding"),
        ("JUDGES", "its_limit_can_be_changed"),
        ("JUDGES", "its_verdicts_are_those_of_the_evidence"),
    ],
)
def test_a_broken_rule_fails(site: Path, name: str, law: str) -> None:
    (site / "broken_rules.py").write_text(BROKEN)

    class Broken(RuleTestCase):
        rule = f"broken_rules:{name}"

        def passing(self) -> Any:
            return Counting()

        failing = passing

    with pytest.raises(AssertionError):
        getattr(Broken(), f"test_{law}")()


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "deployments")


def promoter(folder: Path, registry: Registry, **flags: Any) -> Promoter[Any, Any, Any, Any]:
    """Return the promoter of a study whose player balances in all games."""
    study = study_of(folder / "run", [GOOD])
    return promoter_of(GameGate, study, registry, games=20, **flags)


def test_the_bundle_records_the_rules_of_others(tmp_path: Path, registry: Registry) -> None:
    own = promoter(tmp_path, registry, rule=['own_rule:worst_games {"least": 5}'])
    promotion = own.run()
    assert promotion.outcome == "promoted", promotion.reason
    bundle = registry.bundle(str(registry.slot(own.gate.slot).champion), GameBundle)
    stored = {one["name"]: one for one in bundle.manifest.gate["findings"]}
    assert stored["worst-games"]["verdict"] == "pass"
    source = stored["worst-games"]["source"]
    assert source.startswith("own_rule:worst_games, sha256 ")
    assert all("source" not in one for name, one in stored.items() if name != "worst-games")
    page, _ = write_report(own.gate.report(promotion), tmp_path / "gate")
    assert f"(a rule of {source})" in page.read_text()


def test_a_candidate_that_does_not_meet_it_is_refused(tmp_path: Path, registry: Registry) -> None:
    flags = {"rule": ["own_rule:worst_games"], "limit": ["worst-games=1000"]}
    own = promoter(tmp_path, registry, **flags)
    promotion = own.run()
    assert promotion.outcome == "none passes"
    assert "does not meet worst-games (" in promotion.reason
    assert "1000 (default 0) is needed: mean return " in promotion.how_far
    assert own.gate.looks() == 1
    assert registry.slot(own.gate.slot).champion is None


def test_a_rule_of_the_first_stage_spends_no_evaluation(tmp_path: Path, registry: Registry) -> None:
    never = f'{KIT}:rule {{"stage": "search", "name": "never"}}'
    own = promoter(tmp_path, registry, rule=[never])
    promotion = own.run()
    assert promotion.outcome == "none passes"
    assert "(a rule of" in promotion.how_far
    assert own.gate.looks() == 0
