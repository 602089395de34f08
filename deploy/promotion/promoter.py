"""The promotion of a study's candidates to a deployment slot, for markets and games alike.

Candidates are judged in the order of their objective. The rules of the first stage need nothing
beyond what the study stored. A candidate that meets them is evaluated on unseen data, which is
counted (`deploy.registry.evaluations`), and compared with the slot's champion. The first candidate
that meets every rule becomes champion in one transaction; if the champion changes meanwhile, the
candidate is compared with the new one.

`deploy.market.promote` and `deploy.games.promote` define what a candidate is and how it is scored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from optuna.trial import FrozenTrial

from deploy.promotion.promotion import CandidateOutcome, Outcome, Promotion, ResultT
from deploy.promotion.rules import GateRule, RuleFinding, deferred, judge, not_evaluated, passed
from deploy.promotion.studies import FoundStudy
from deploy.registry.bundle_files import BundleT, finite
from deploy.registry.records import ChampionMoved, CountedEvaluation
from deploy.registry.registry import Registry
from envs.support.errors import RunError

MAX_COMPARISONS = 5  # of one candidate, with champions that replace each other
NOT_SPENT = "a rule of the first stage failed, so no evaluation was spent"
CHAMPION_ALREADY = "it is the champion already"
CandidateT = TypeVar("CandidateT")
ScoreT = TypeVar("ScoreT")
PromotionT = TypeVar("PromotionT", bound=Promotion[Any])


class Promoter(ABC, Generic[CandidateT, ScoreT, BundleT, ResultT, PromotionT]):
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
        study: FoundStudy,
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
        self._name, self._complete, self._data_dir = study.name, len(study.trials), data_dir
        registry.check_slot(slot)
        if not (dry_run or looks == 0):
            registry.database.check_writable()
        self.before = self.champion

    @property
    def champion(self) -> str | None:
        """Hash of the slot's present champion."""
        return self.registry.slot(self.slot).champion

    # What a kind of study supplies:

    @abstractmethod
    def _read(self, trials: Sequence[FrozenTrial]) -> CandidateT:
        """Read a candidate, which consists of one trial or several."""

    @abstractmethod
    def _judge_first_stage(
        self, candidate: CandidateT, *, thorough: bool
    ) -> tuple[RuleFinding, ...]:
        """Findings of the first stage. thorough: run slow checks even if a rule has failed."""

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
    def _result(
        self,
        candidate: CandidateT,
        findings: tuple[RuleFinding, ...],
        *,
        look: CountedEvaluation | None = None,
        score: ScoreT | None = None,
        bundle: BundleT | None = None,
    ) -> ResultT:
        """The gate's result for a candidate."""

    @abstractmethod
    def _promotion(
        self, outcome: CandidateOutcome[ResultT], results: Sequence[ResultT] = ()
    ) -> PromotionT:
        """The outcome of the promotion."""

    # What all kinds share:

    def _judge_in_turn(
        self, candidates: Sequence[Sequence[FrozenTrial]]
    ) -> tuple[list[ResultT], CandidateOutcome[ResultT] | None]:
        """Judge one candidate after the other until one is settled or `looks` are spent.

        Returns:
            The results so far, and the outcome; None if every candidate failed.
        """
        results: list[ResultT] = []
        for trials in candidates:
            outcome = self._judge(trials, thorough=not results)
            results += [outcome.result] if outcome.result else []
            if outcome.outcome is not None:
                return results, outcome
            if sum(result.is_scored for result in results) == self.looks:
                break
        return results, None

    def _judge(self, trials: Sequence[FrozenTrial], *, thorough: bool) -> CandidateOutcome[ResultT]:
        """Judge a candidate: the second stage only if it passes the first."""
        candidate = self._read(trials)
        findings = self._judge_first_stage(candidate, thorough=thorough)
        if passed(findings):
            return self._challenge(candidate, findings)
        skipped = not_evaluated(self.rules, self.second_stage, NOT_SPENT)
        return CandidateOutcome(self._result(candidate, (*findings, *skipped)))

    def _challenge(
        self, candidate: CandidateT, findings: tuple[RuleFinding, ...]
    ) -> CandidateOutcome[ResultT]:
        """Second stage: evaluate on unseen data, and promote if every rule is met."""
        draft = self._build(candidate, {})
        known = (*findings, *not_evaluated(self.rules, self.second_stage, CHAMPION_ALREADY))
        if self._is_champion(draft, self.champion):
            return self._champion_already(self._result(candidate, known))
        look, score = self._evaluate(candidate, draft)
        for _ in range(MAX_COMPARISONS):
            champion = self.champion
            if self._is_champion(draft, champion):  # promoted concurrently by another process
                return self._champion_already(
                    self._result(candidate, known, look=look, score=score)
                )
            evidence, compared = self._compare(candidate, draft, look, score, champion)
            found = (*findings, *judge(self.rules, evidence, self.second_stage))
            gate = self._report(candidate, compared) | {
                "slot": self.slot,
                "look": look.number,
                "findings": [finding.to_dict() for finding in found],
            }
            bundle = self._build(candidate, finite(gate))
            result = self._result(candidate, found, look=look, score=compared, bundle=bundle)
            try:
                return self._settle(result, champion)
            except ChampionMoved:
                continue
        raise RunError(
            f"the champion of {self.slot} changed {MAX_COMPARISONS} times while "
            f"{self._result(candidate, known).name} was compared with it; try again"
        )

    def _settle(self, result: ResultT, champion: str | None) -> CandidateOutcome[ResultT]:
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
        reason = f"{result.name} of {self._name} met every rule{result.loosened}"
        if is_challenger:
            why = next(one.explanation for one in result.findings if one.verdict == "defer")
            reason = (
                f"{result.name} met every rule that could be evaluated{result.loosened}, but {why}"
            )
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

    def _champion_already(self, result: ResultT) -> CandidateOutcome[ResultT]:
        reason = f"{result.name} is the champion of {self.slot} already"
        return CandidateOutcome(result, "champion already", reason)

    def _finish(self, outcome: CandidateOutcome[ResultT], results: Sequence[ResultT]) -> PromotionT:
        """The promotion; if no candidate passed, it is appended to the slot's history."""
        promotion = self._promotion(outcome, results)
        if promotion.outcome == "none passes" and not self.dry_run:
            self.registry.refuse(self.slot, promotion.reason, promotion.to_dict())
        return promotion

    def _fields(
        self, outcome: CandidateOutcome[ResultT], results: Sequence[ResultT]
    ) -> dict[str, Any]:
        """Fields of a `Promotion` that all kinds have."""
        assert outcome.outcome is not None
        return {
            "outcome": outcome.outcome,
            "slot": self.slot,
            "study": self._name,
            "reason": outcome.reason,
            "candidates": tuple(results),
            "chosen": outcome.result,
            "champion_before": self.before,
            "champion": self.champion,
            "version": outcome.version,
            "dry_run": self.dry_run,
            "complete": self._complete,
        }
