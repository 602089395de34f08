"""The promotion of a study's candidates to a deployment slot, for markets and games alike.

Candidates are judged in the order of their objective. The rules of the first stage need nothing
beyond what the study stored. A candidate that meets them is evaluated on unseen data, which is
counted (`sweepd.deploy.registry.evaluations`), and compared with the slot's champion. The first
candidate that meets every rule becomes champion in one transaction; if the champion changes
meanwhile, the candidate is compared with the new one.

`sweepd.deploy.market.promote` and `sweepd.deploy.games.promote` define what a candidate is and how
it is scored.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from sweepd.deploy.promotion.promotion import (
    CandidateOutcome,
    CandidateT,
    GateResult,
    Outcome,
    Promotion,
    ScoreT,
)
from sweepd.deploy.promotion.rules import (
    NOT_EVALUATED,
    GateRule,
    RuleFinding,
    deferred,
    judge,
    not_evaluated,
    passed,
)
from sweepd.deploy.promotion.studies import GateStudy
from sweepd.deploy.registry.bundle_files import BundleT, finite
from sweepd.deploy.registry.records import ChampionMoved, CountedEvaluation
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.registry.slots import check_slot
from sweepd.envs.support.errors import RunError

MAX_COMPARISONS = 5  # of one candidate, with champions that replace each other
NOT_SPENT = "a rule of the first stage failed, so no evaluation was spent"
CHAMPION_ALREADY = "it is the champion already"
Result: TypeAlias = GateResult[CandidateT, ScoreT, BundleT]
PromotionT = TypeVar("PromotionT", bound=Promotion[Any])


class Promoter(ABC, Generic[CandidateT, ScoreT, BundleT, PromotionT]):
    """One promotion of one study.

    Args:
        study: the study.
        registry: where the slot is.
        slot: the deployment slot.
        dry_run: write nothing to the registry, except that evaluations are counted, because
            their results are shown.
        looks: the most candidates that may be evaluated on unseen data.
        rules: the gate's rules.
        progress: called with a short description of each slow step.
        data_dir: folder of the bars that bundles are scored on.

    Raises:
        InputError: the slot's name is invalid, or the registry is not writable.
    """

    first_stage: ClassVar[str]
    second_stage: ClassVar[str]

    def __init__(
        self,
        study: GateStudy,
        registry: Registry,
        *,
        slot: str,
        dry_run: bool,
        looks: int,
        rules: Sequence[GateRule[Any]],
        progress: Callable[[str], None],
        data_dir: str = "",
    ) -> None:
        self.registry, self.slot, self.dry_run, self.looks = registry, slot, dry_run, looks
        self.rules, self.progress = tuple(rules), progress
        self._name, self._complete, self._data_dir = study.name, len(study.complete), data_dir
        check_slot(slot)
        if not (dry_run or looks == 0):
            registry.database.check_writable()
        self._before = self._champion

    @property
    def _champion(self) -> str | None:
        """Hash of the slot's present champion."""
        return self.registry.slot(self.slot).champion

    # What a kind of study supplies:

    @abstractmethod
    def _build(self, candidate: CandidateT, gate: dict[str, Any]) -> BundleT:
        """The candidate's bundle with this gate report."""

    @abstractmethod
    def _is_champion(self, draft: BundleT, champion: str | None) -> bool:
        """Whether that champion acts exactly as the draft does."""

    @abstractmethod
    def _evaluate(self, candidate: CandidateT, draft: BundleT) -> tuple[CountedEvaluation, ScoreT]:
        """Count an evaluation on unseen data, and make it."""

    @abstractmethod
    def _compare(
        self,
        candidate: CandidateT,
        draft: BundleT,
        look: CountedEvaluation,
        score: ScoreT,
        champion: str | None,
    ) -> tuple[Any, ScoreT]:
        """Compare with the champion: evidence for the second stage, and the completed score."""

    @abstractmethod
    def _report(self, candidate: CandidateT, score: ScoreT) -> dict[str, Any]:
        """The evaluation in the bundle's gate report."""

    @abstractmethod
    def _why_none(
        self,
        results: Sequence[Result[CandidateT, ScoreT, BundleT]],
        closest: Result[CandidateT, ScoreT, BundleT],
    ) -> str:
        """Why no candidate passed, with advice. closest: the result closest to passing."""

    @abstractmethod
    def _promotion(
        self,
        outcome: CandidateOutcome[Result[CandidateT, ScoreT, BundleT]],
        results: Sequence[Result[CandidateT, ScoreT, BundleT]] = (),
    ) -> PromotionT:
        """The outcome of the promotion."""

    # What all kinds share:

    def _promote_first(self, candidates: Sequence[Callable[[], CandidateT]]) -> PromotionT:
        """Judge the candidates in turn until one is settled or `looks` evaluations are spent.

        Args:
            candidates: functions that read them, as later ones may not be needed.

        If no candidate passes, that is appended to the slot's history.
        """
        results: list[Result[CandidateT, ScoreT, BundleT]] = []
        for read in candidates:
            # Slow checks give the best candidate a full report; for the others, one failed rule
            # is enough.
            judged = self._judge(read(), thorough=not results)
            results += [judged.result] if judged.result else []
            if judged.outcome is not None:
                return self._promotion(judged, results)
            if sum(result.look is not None for result in results) == self.looks:
                break
        closest = self._closest(results)
        reason = self._why_none(results, closest)
        promotion = self._promotion(CandidateOutcome(closest, "none passes", reason), results)
        if not self.dry_run:
            self.registry.refuse(self.slot, reason, promotion.to_dict())
        return promotion

    def _closest(
        self, results: Sequence[Result[CandidateT, ScoreT, BundleT]]
    ) -> Result[CandidateT, ScoreT, BundleT]:
        """The result that is closest to passing: the first one with an evaluation."""
        scored = [result for result in results if result.look is not None]
        return scored[0] if scored else _closest(results)

    def _judge_first_stage(
        self,
        candidate: CandidateT,
        *,
        thorough: bool,  # noqa: ARG002 (no check of all kinds is slow)
    ) -> tuple[RuleFinding, ...]:
        """Findings of the first stage. thorough: run slow checks even if a rule has failed."""
        return judge(self.rules, candidate.evidence(), self.first_stage)

    def _judge(
        self, candidate: CandidateT, *, thorough: bool
    ) -> CandidateOutcome[Result[CandidateT, ScoreT, BundleT]]:
        """Judge a candidate: the second stage only if it passes the first."""
        findings = self._judge_first_stage(candidate, thorough=thorough)
        if passed(findings):
            return self._challenge(candidate, findings)
        skipped = not_evaluated(self.rules, self.second_stage, NOT_SPENT)
        return CandidateOutcome(GateResult(candidate, (*findings, *skipped)))

    def _challenge(
        self, candidate: CandidateT, findings: tuple[RuleFinding, ...]
    ) -> CandidateOutcome[Result[CandidateT, ScoreT, BundleT]]:
        """Second stage: evaluate on unseen data, and promote if every rule is met."""
        draft = self._build(candidate, {})
        skipped = not_evaluated(self.rules, self.second_stage, CHAMPION_ALREADY)
        known = GateResult[CandidateT, ScoreT, BundleT](candidate, (*findings, *skipped))
        # The same weights under the same settings are not evaluated again: that would reveal
        # nothing and could only replace the champion by itself.
        if self._is_champion(draft, self._champion):
            return self._champion_already(known)
        look, score = self._evaluate(candidate, draft)
        # The comparison takes long, so it runs outside the registry's write lock; the lock's
        # transaction checks that the champion is still the one compared with.
        for _ in range(MAX_COMPARISONS):
            champion = self._champion
            if self._is_champion(draft, champion):  # promoted concurrently by another process
                return self._champion_already(dataclasses.replace(known, look=look, score=score))
            evidence, compared = self._compare(candidate, draft, look, score, champion)
            found = (*findings, *judge(self.rules, evidence, self.second_stage))
            gate = self._report(candidate, compared) | {
                "slot": self.slot,
                "look": look.number,
                "findings": [finding.to_dict() for finding in found],
            }
            bundle = self._build(candidate, finite(gate))
            try:
                return self._settle(GateResult(candidate, found, look, compared, bundle), champion)
            except ChampionMoved:
                continue
        raise RunError(
            f"the champion of {self.slot} changed {MAX_COMPARISONS} times while {candidate.name} "
            "was compared with it; try again"
        )

    def _settle(
        self, result: Result[CandidateT, ScoreT, BundleT], champion: str | None
    ) -> CandidateOutcome[Result[CandidateT, ScoreT, BundleT]]:
        """Write the outcome to the registry.

        Args:
            result: of the candidate.
            champion: hash of the champion that it was compared with.

        Raises:
            ChampionMoved: the slot has another champion by now.
        """
        is_challenger = deferred(result.findings)
        if not (result.passes or is_challenger):
            return CandidateOutcome(result)
        assert result.bundle is not None
        name = result.candidate.name
        reason = f"{name} of {self._name} met every rule{result.loosened}"
        if is_challenger:
            why = next(one.explanation for one in result.findings if one.verdict == "defer")
            reason = f"{name} met every rule that could be evaluated{result.loosened}, but {why}"
        if self.dry_run:
            outcome: Outcome = "challenger" if is_challenger else "would promote"
            return CandidateOutcome(result, outcome, reason)
        written: dict[str, Any] = {
            "reason": reason,
            "report": finite(result.to_dict() | {"study": self._name}),
            "data_dir": self._data_dir,
        }
        if is_challenger:
            version = self.registry.challenger(self.slot, result.bundle, **written)
            return CandidateOutcome(result, "challenger", reason, version)
        version = self.registry.promote(self.slot, result.bundle, expected=champion, **written)
        return CandidateOutcome(result, "promoted", reason, version)

    def _champion_already(
        self, result: Result[CandidateT, ScoreT, BundleT]
    ) -> CandidateOutcome[Result[CandidateT, ScoreT, BundleT]]:
        reason = f"{result.candidate.name} is the champion of {self.slot} already"
        return CandidateOutcome(result, "champion already", reason)

    def _fields(
        self,
        outcome: CandidateOutcome[Result[CandidateT, ScoreT, BundleT]],
        results: Sequence[Result[CandidateT, ScoreT, BundleT]],
    ) -> dict[str, Any]:
        """Fields of a `Promotion` that all kinds have."""
        return {
            "outcome": outcome.outcome,
            "slot": self.slot,
            "study": self._name,
            "reason": outcome.reason,
            "candidates": tuple(results),
            "chosen": outcome.result,
            "champion_before": self._before,
            "champion": self._champion,
            "version": outcome.version,
            "dry_run": self.dry_run,
            "complete": self._complete,
        }


def _closest(
    results: Sequence[Result[CandidateT, ScoreT, BundleT]],
) -> Result[CandidateT, ScoreT, BundleT]:
    """The result that failed the fewest of the rules that all were judged by; ties: the first."""
    common = set.intersection(
        *(
            {one.name for one in result.findings if one.verdict != NOT_EVALUATED}
            for result in results
        )
    )
    return min(
        results,
        key=lambda result: sum(
            one.verdict == "fail" for one in result.findings if one.name in common
        ),
    )
