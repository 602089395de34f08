"""The suite for rules of the promotion gate that `--rule` names."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

from sweepd.deploy.promotion.own_rules import own_rules
from sweepd.deploy.promotion.rules import GateRule, judge, with_limits


class RuleTestCase:
    """What a gate needs of a rule. A subclass names it as `--rule` does, and gives evidence:

        class TestMyRule(RuleTestCase):
            rule = 'my_rules:drawdown {"limit": 0.2}'
            stages = ("search", "panel")

            def passing(self):
                return GameEvidence(...)

            def failing(self):
                return GameEvidence(...)

    Attributes:
        rule: the name, with arguments.
        stages: of the gate; those of games are "search" and "panel", those of markets
            "cross-validation" and "hold-out".
    """

    rule: ClassVar[str]
    stages: ClassVar[Sequence[str]] = ("search", "panel")

    def passing(self) -> Any:
        """Return evidence of a candidate that meets the rule."""
        raise NotImplementedError("a subclass returns evidence")

    def failing(self) -> Any:
        """Return evidence of a candidate that does not."""
        raise NotImplementedError("a subclass returns evidence")

    def made(self) -> GateRule[Any]:
        """Return the rule."""
        (rule,) = own_rules([self.rule], self.stages, ())
        return rule

    def test_its_verdicts_are_those_of_the_evidence(self) -> None:
        """A candidate passes or fails, with a sentence that says why."""
        rule = self.made()
        refused = "fail" if rule.decides else "told"
        for evidence, verdict in ((self.passing(), "pass"), (self.failing(), refused)):
            (finding,) = judge([rule], evidence, rule.stage)
            assert finding.verdict == verdict, finding.explanation
            assert finding.value is not None, finding.explanation
            assert finding.explanation.strip()

    def test_the_same_evidence_gives_the_same_finding(self) -> None:
        """Measuring changes nothing, and draws nothing."""
        rule, evidence = self.made(), self.failing()
        before = copy.deepcopy(evidence)
        first = judge([rule], evidence, rule.stage)
        assert judge([rule], evidence, rule.stage) == first
        assert judge([self.made()], before, rule.stage) == first

    def test_its_limit_can_be_changed(self) -> None:
        """`--limit NAME=NUMBER` decides: the measurement does not contain the limit."""
        rule = self.made()
        upper = rule.comparison.startswith("<")
        (loose,) = with_limits([rule], {rule.name: 1e300 if upper else -1e300})
        (finding,) = judge([loose], self.failing(), rule.stage)
        assert finding.verdict == "pass", "the loosest limit does not accept the candidate"
        assert finding.loosened == rule.decides
