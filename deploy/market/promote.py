"""Promotion of a market's policy: the best trial, or several, are evaluated on the hold-out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from optuna.trial import FrozenTrial

from sweepd.deploy.market.advice import why_none
from sweepd.deploy.market.backtests import SearchStatistics
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.candidates import (
    MarketCandidate,
    MarketStudy,
    build_bundle,
    read_candidate,
    study_search,
)
from sweepd.deploy.market.constants import nearest_constant
from sweepd.deploy.market.gate import CROSS_VALIDATION, DEFAULT_RULES, HOLDOUT, MarketEvidence
from sweepd.deploy.market.manifest import Weights
from sweepd.deploy.market.scoring import Score, bootstrap_seed, compare_with_champion, score_bundle
from sweepd.deploy.promotion.bootstrap import draws_for, gate_level, mean_above_zero
from sweepd.deploy.promotion.promoter import Promoter
from sweepd.deploy.promotion.promotion import CandidateOutcome, GateResult, Promotion
from sweepd.deploy.promotion.rules import GateRule, RuleFinding, judge, not_evaluated, passed
from sweepd.deploy.registry.bundle_files import finite
from sweepd.deploy.registry.records import CountedEvaluation
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.crypto.data.bars import Bars, load_bars
from sweepd.envs.crypto.splits import window_of
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.record.bars import load_study_bars
from sweepd.optimize.study.record.data_spec import DataSpec
from sweepd.optimize.study.record.spans import study_splits

MarketResult: TypeAlias = GateResult[MarketCandidate, Score, Bundle]


@dataclass(frozen=True)
class MarketPromotion(Promotion[MarketResult]):
    """The outcome of a promotion.

    Attributes:
        synthetic: whether the market is synthetic.
        search: statistics of all trials of the study.
    """

    synthetic: bool = False
    search: SearchStatistics | None = None

    def to_dict(self) -> dict[str, Any]:
        """The promotion for JSON: plain numbers and text."""
        selection = None
        if self.search is not None and self.chosen is not None:
            candidate = self.chosen.candidate
            selection = self.search.describe(candidate.trials, candidate.selection)
        own: dict[str, Any] = finite({"synthetic": self.synthetic, "selection": selection})
        return super().to_dict() | own


def default_slot(environment: str, data: DataSpec) -> str:
    """The default slot for a study, such as `crypto-1h`.

    Champions of synthetic markets have slots of their own (`demo-1h`).
    """
    return f"{'demo' if data.synthetic else environment}-{data.timeframe}"


class MarketPromoter(Promoter[MarketCandidate, Score, Bundle, MarketPromotion]):
    """One promotion of one study on a market. See `Promoter` for the other arguments.

    Args:
        slot: the deployment slot, by default `default_slot`.
        data_dir: where the study's bars are now, by default where they were.
        looks: the most candidates that may be evaluated on the hold-out; 0 judges the best
            candidate by the first stage alone.
        ensemble: number of the best trials that are promoted together, each with a share of the
            capital.
        weights: how the shares are chosen.
    """

    first_stage, second_stage = CROSS_VALIDATION, HOLDOUT
    _bars: Bars  # of the study
    _holdout: tuple[int, int]  # its range [a, b) of bars

    def __init__(
        self,
        study: MarketStudy,
        registry: Registry,
        *,
        slot: str | None = None,
        data_dir: Path | None = None,
        dry_run: bool = False,
        looks: int = 1,
        ensemble: int = 1,
        weights: Weights = "equal",
        rules: Sequence[GateRule[MarketEvidence]] = DEFAULT_RULES,
        progress: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.study, self.ensemble = study, ensemble
        self.weights: Weights = weights
        self.data_dir = (data_dir or Path(study.spec.data.dir)).resolve()
        self.search: SearchStatistics | None = None
        super().__init__(
            study,
            registry,
            slot=slot or default_slot(study.spec.environment, study.spec.data),
            dry_run=dry_run,
            looks=looks,
            rules=rules,
            progress=progress,
            data_dir=str(self.data_dir),
        )

    def run(self, trial: int | None = None) -> MarketPromotion:
        """Judge the candidates until one is promoted or the evaluations are spent.

        Args:
            trial: consider this trial only.

        Raises:
            InputError: the study's data, the slot's champion or the registry cannot be used.
        """
        if trial is not None and self.ensemble > 1:
            raise InputError(
                f"--trial {trial} and --ensemble {self.ensemble} exclude each other: give one"
            )
        trials = self.study.asked(trial)
        if not trials:
            reason = self.study.why_none_complete
            return self._promotion(CandidateOutcome(None, "no candidate", reason))
        if self.ensemble > len(trials):
            raise InputError(
                f"--ensemble {self.ensemble} is more than the {len(trials)} COMPLETE trials of "
                f"study {self.study.name!r}"
            )
        candidates = [trials[: self.ensemble]] if self.ensemble > 1 else [[item] for item in trials]
        self._bars = load_study_bars(self.study.spec.data, self.data_dir)
        self._holdout = study_splits(self.study.spec).holdout
        if self._holdout[1] <= self._holdout[0]:
            reason = "the study set no bars aside (--holdout 0), so there is no unseen data"
            return self._promotion(CandidateOutcome(None, "no hold-out", reason))
        self.progress(f"reading the paths of {len(self.study.complete)} complete trials")
        self.search = study_search(self.study)
        if self.looks == 0:
            return self._first_stage_only(candidates[0])
        return self._promote_first([partial(self._read, trials) for trials in candidates])

    def _first_stage_only(self, trials: Sequence[FrozenTrial]) -> MarketPromotion:
        """Judge one candidate by the first stage; nothing is written to the registry."""
        candidate = self._read(trials)
        findings = self._judge_first_stage(candidate, thorough=True)
        failed = [finding.name for finding in findings if finding.verdict != "pass"]
        said = (
            f"does not meet {', '.join(failed)}"
            if failed
            else "meets every rule that needs no hold-out evaluation"
        )
        skipped = not_evaluated(self.rules, HOLDOUT, "only the first stage was requested")
        result = MarketResult(candidate, (*findings, *skipped))
        reason = f"{candidate.name} {said}{result.loosened}"
        return self._promotion(CandidateOutcome(result, "first stage", reason), [result])

    def _why_none(self, results: Sequence[MarketResult], closest: MarketResult) -> str:
        assert self.search is not None
        return why_none(
            judged_count=len(results),
            name=closest.candidate.name,
            findings=closest.findings,
            search=self.search,
        )

    def _read(self, trials: Sequence[FrozenTrial]) -> MarketCandidate:
        assert self.search is not None
        return read_candidate(trials, self.study, self.search, self.weights)

    def _judge_first_stage(
        self, candidate: MarketCandidate, *, thorough: bool
    ) -> tuple[RuleFinding, ...]:
        findings = super()._judge_first_stage(candidate, thorough=thorough)
        if candidate.faults or not (thorough or passed(findings)):
            return findings
        # Trading the constant policies takes some seconds.
        nearest = nearest_constant(self._build(candidate, {}), self._bars, self._holdout[0])
        evidence = dataclasses.replace(candidate.evidence(), nearest_constant=nearest)
        return judge(self.rules, evidence, CROSS_VALIDATION)

    def _build(self, candidate: MarketCandidate, gate: dict[str, Any]) -> Bundle:
        return build_bundle(candidate, self.study, self._bars, self._holdout, gate=gate)

    def _is_champion(self, draft: Bundle, champion: str | None) -> bool:
        # Not the hash: a second study may have trained the same weights under another name.
        return champion is not None and _same_policy(self.registry.bundle(champion, Bundle), draft)

    def _evaluate(
        self, candidate: MarketCandidate, draft: Bundle
    ) -> tuple[CountedEvaluation, Score]:
        first, end = self._holdout
        look = self.registry.evaluations.record_holdout(
            draft.manifest.tickers,
            draft.manifest.timeframe,
            *self._holdout_span,
            members_sha256=draft.members_sha256,
            study=self.study.name,
            study_uid=self.study.uid,
            trial=candidate.trials[0],
        )
        self.progress(f"{candidate.name}: hold-out evaluation {look.number}, {end - first:,} bars")
        return look, score_bundle(draft, self._bars, window_of(self._holdout))

    @property
    def _holdout_span(self) -> tuple[int, int]:
        """Opens of the first and the last bar of the hold-out, seconds."""
        first, end = self._holdout
        return int(self._bars.time[first]), int(self._bars.time[end - 1])

    def _compare(
        self,
        candidate: MarketCandidate,
        draft: Bundle,
        look: CountedEvaluation,
        score: Score,
        champion: str | None,
    ) -> tuple[MarketEvidence, Score]:
        seed, draws = bootstrap_seed(draft), draws_for(gate_level(look.number))
        comparison = None
        if champion is not None:
            present = self.registry.bundle(champion, Bundle)
            comparison = compare_with_champion(draft, present, self._load, draws=draws)
        evidence = dataclasses.replace(
            candidate.evidence(),
            look=look.number,
            holdout=score.metrics,
            excess=mean_above_zero(score.returns - score.equal_weight, seed=seed, draws=draws),
            comparison=comparison,
        )
        return evidence, score

    def _load(self, tickers: tuple[str, ...]) -> Bars:
        return load_bars(self.data_dir, self.study.spec.data.timeframe, tickers, accept_jumps=True)

    def _report(self, candidate: MarketCandidate, score: Score) -> dict[str, Any]:
        assert self.search is not None
        return {
            "selection": self.search.describe(candidate.trials, candidate.selection),
            "holdout": score.report(),
        }

    def _promotion(
        self, outcome: CandidateOutcome[MarketResult], results: Sequence[MarketResult] = ()
    ) -> MarketPromotion:
        data, looks = self.study.spec.data, 0
        if self.search is not None:  # so the study has a hold-out
            looks = self.registry.evaluations.count_holdout(data.tickers, *self._holdout_span)
        return MarketPromotion(
            **self._fields(outcome, results),
            synthetic=data.synthetic,
            search=self.search,
            looks=looks,
        )


def _same_policy(one: Bundle, other: Bundle) -> bool:
    """Whether both act the same: equal weights, shares, environment parameters and tickers."""

    def policy(bundle: Bundle) -> tuple[object, ...]:
        params = [trial.env_params for trial in bundle.manifest.trials]
        return bundle.members_sha256, params, bundle.manifest.tickers

    return policy(one) == policy(other)
