"""The gate of markets: the best trial, or several, are evaluated on the hold-out.

`sweepd.deploy.market.rules` has the rules.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from optuna.trial import FrozenTrial

from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.deploy.market import policy as market_policy
from sweepd.deploy.market.advice import Advice, how_far, measured_edge, power_text, study_power
from sweepd.deploy.market.backtests import SearchStatistics
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.candidates import (
    MarketCandidate,
    MarketPromotion,
    MarketResult,
    MarketStudy,
    build_bundle,
    read_candidate,
    scored_record,
    study_search,
    trial_bundle,
)
from sweepd.deploy.market.constants import nearest_constant
from sweepd.deploy.market.power import GatePower
from sweepd.deploy.market.report import market_facts, market_report, market_sections
from sweepd.deploy.market.rules import CROSS_VALIDATION, DEFAULT_RULES, HOLDOUT, MarketEvidence
from sweepd.deploy.market.scoring import Score, bootstrap_seed, compare_with_champion, score_bundle
from sweepd.deploy.market.transfer import compare_policies
from sweepd.deploy.market.verify import verify_bundle
from sweepd.deploy.promotion.bootstrap import ALPHA, draws_for, gate_level, mean_above_zero
from sweepd.deploy.promotion.comparison import Compared, Comparison
from sweepd.deploy.promotion.gate import Gate, NothingToJudge, TrialPolicy, Verification
from sweepd.deploy.promotion.members import trial_members
from sweepd.deploy.promotion.promotion import Step
from sweepd.deploy.promotion.rules import GateRule, RuleFinding, deciding, judge, passed
from sweepd.deploy.promotion.sections import Report, Section
from sweepd.deploy.promotion.studies import objective_of
from sweepd.deploy.registry.bundle_files import finite
from sweepd.deploy.registry.records import CountedEvaluation
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.crypto.data.bars import Bars, load_bars
from sweepd.envs.crypto.scoring import luck
from sweepd.envs.crypto.scoring.figures import MEDIAN_RATIO
from sweepd.envs.crypto.splits import window_of
from sweepd.envs.external.codec import SpaceCodec
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.record.bars import load_study_bars
from sweepd.optimize.study.record.data_spec import DataSpec
from sweepd.optimize.study.record.reader import StudyReader
from sweepd.optimize.study.record.spans import study_splits

# Rules about choosing the best of many trials.
OF_SELECTION = ("deflated-sharpe", "pbo")
# The names of a median path's annual information ratio and of its standard error.
RATIO = (MEDIAN_RATIO, "information_ratio_error")
HARM = 1.645  # standard errors of a difference that only 5% of equal strategies exceed


def default_slot(environment: str, data: DataSpec) -> str:
    """The default slot for a study, such as `crypto-1h`.

    Champions of synthetic markets have slots of their own (`demo-1h`).
    """
    return f"{'demo' if data.synthetic else environment}-{data.timeframe}"


class MarketGate(Gate[MarketStudy, MarketCandidate, Score, Bundle]):
    """The gate of one promotion on a market; see `Gate`.

    Attributes:
        search: statistics of all trials of the study; None until they are read.
    """

    title = "markets"
    study_type, bundle_type = MarketStudy, Bundle
    first_stage, second_stage = CROSS_VALIDATION, HOLDOUT
    without_effect = ("games", "play", "baseline")
    limit_example = "max-drawdown=0.2"
    trades = True
    search: SearchStatistics | None = None
    _bars: Bars  # of the study
    _holdout: tuple[int, int]  # its range [a, b) of bars

    @property
    def bars_folder(self) -> Path:
        """Where the study's bars are now, by default where they were."""
        return (self.flags.data_dir or Path(self.study.spec.data.dir)).resolve()

    @property
    def data_dir(self) -> str:
        return str(self.bars_folder)

    @property
    def default_slot(self) -> str:
        """See `default_slot`."""
        return default_slot(self.study.spec.environment, self.study.spec.data)

    @property
    def default_rules(self) -> Sequence[GateRule[MarketEvidence]]:
        return DEFAULT_RULES

    def candidates(self, trial: int | None) -> Sequence[Callable[[], MarketCandidate]]:
        count, study = self.flags.ensemble, self.study
        if trial is not None and count > 1:
            raise InputError(f"--trial {trial} and --ensemble {count} exclude each other: give one")
        trials = study.asked(trial) if count == 1 else list(study.complete)
        if not trials:
            raise NothingToJudge("no candidate", study.why_none_complete)
        if count > len(trials):
            raise InputError(
                f"--ensemble {count} is more than the {len(trials)} COMPLETE trials of study "
                f"{study.name!r}"
            )
        together = [trials[:count]] if count > 1 else [[item] for item in trials]
        self._bars = load_study_bars(study.spec.data, self.bars_folder)
        self._holdout = study_splits(study.spec).holdout
        if self._holdout_bars == 0 and not self.flags.without_looks:
            raise NothingToJudge(
                "no hold-out",
                "the study set no bars aside (--holdout 0), so there is no unseen data",
            )
        self.progress(f"reading the paths of {len(study.all_complete)} complete trials")
        self.search = study_search(study)
        weights = self.flags.weights
        return [partial(read_candidate, some, study, self.search, weights) for some in together]

    @classmethod
    def trial_bundle(cls, study: StudyReader, number: int, *, team: bool = False) -> Bundle:
        if team:
            return super().trial_bundle(study, number, team=team)  # refuses
        return trial_bundle(MarketStudy(study), number)

    @classmethod
    def compare_players(cls, asked: Comparison) -> Compared:
        return compare_policies(asked)

    def judge_first_stage(
        self, candidate: MarketCandidate, *, thorough: bool
    ) -> tuple[RuleFinding, ...]:
        findings = super().judge_first_stage(candidate, thorough=thorough)
        if candidate.faults or not (thorough or passed(findings)):
            return findings
        # Trading the constant policies takes some seconds.
        nearest = nearest_constant(self.build(candidate, {}), self._bars, self._holdout[0])
        evidence = dataclasses.replace(candidate.evidence(), nearest_constant=nearest)
        return judge(self.rules, evidence, CROSS_VALIDATION)

    def judge_for_arena(
        self, candidate: MarketCandidate, champion: Bundle
    ) -> tuple[tuple[RuleFinding, ...], str]:
        findings = self.judge_first_stage(candidate, thorough=True)
        if not self.flags.refit:
            return findings, self._behind_control(candidate, champion)
        # Nothing was chosen from this study's trials, so nothing is to be said of luck.
        findings = tuple(one for one in findings if one.name not in OF_SELECTION)
        return findings, self._no_refit(candidate, champion)

    def _behind_control(self, candidate: MarketCandidate, champion: Bundle) -> str:
        """Whether trial 0, if it has the champion's hyperparameters, did as well or better."""
        for trial in self.study.all_complete:
            if trial.number != 0 or dict(trial.params) != champion.origin.parameters:
                continue
            if 0 in candidate.trials:
                return "trial 0, with the champion's own hyperparameters, did best"
            if not candidate.objective >= objective_of(trial):
                return (
                    f"{candidate.name} ({candidate.objective:.4g}) is behind trial 0 "
                    f"({objective_of(trial):.4g}), which has the champion's hyperparameters"
                )
        return ""

    def _no_refit(self, candidate: MarketCandidate, champion: Bundle) -> str:
        """Whether trial 0 is not the champion's strategy, or is clearly worse than it was."""
        (part,) = candidate.parts
        if dict(part.trial.params) != champion.origin.parameters:
            return (
                f"trial 0 of study {self.study.name!r} does not have the hyperparameters of "
                f"champion {champion.name}"
            )
        assert self.search is not None
        told = self.search.describe(candidate.trials, candidate.selection)
        before = champion.manifest.gate.get("selection") or {}
        figures = [
            one[name] for one in (told, before) for name in RATIO if one.get(name) is not None
        ]
        if len(figures) < 4:
            return f"champion {champion.name} has no back-test to compare with"
        ratio, error, earlier, its_error = map(float, figures)
        least = earlier - HARM * math.hypot(error, its_error)
        if ratio < least:
            return (
                f"trial 0 has an information ratio of {ratio:.2f} in cross-validation, and the "
                f"champion had {earlier:.2f}: less than {least:.2f} is clearly worse"
            )
        return ""

    def arena_bundle(self, candidate: MarketCandidate, findings: Sequence[RuleFinding]) -> Bundle:
        assert self.search is not None
        gate: dict[str, Any] = {
            "selection": self.search.describe(candidate.trials, candidate.selection),
            "slot": self.slot,
            "findings": [one.to_dict() for one in findings],
        }
        scored = scored_record(candidate, self.study)
        return build_bundle(candidate, self.study, finite(gate), scored)

    def build(self, candidate: MarketCandidate, gate: dict[str, Any]) -> Bundle:
        return build_bundle(candidate, self.study, gate)

    def is_champion(self, draft: Bundle, champion: str | None) -> bool:
        # Not the hash: a second study may have trained the same weights under another name.
        return champion is not None and _same_policy(self.registry.bundle(champion, Bundle), draft)

    def evaluate(
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
    def _holdout_bars(self) -> int:
        first, end = self._holdout
        return end - first

    @property
    def _holdout_span(self) -> tuple[int, int]:
        """Opens of the first and the last bar of the hold-out, seconds."""
        first, end = self._holdout
        return int(self._bars.time[first]), int(self._bars.time[end - 1])

    def compare(
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
        return load_bars(
            self.bars_folder, self.study.spec.data.timeframe, tickers, accept_jumps=True
        )

    def record(self, candidate: MarketCandidate, score: Score) -> dict[str, Any]:
        assert self.search is not None
        return {
            "selection": self.search.describe(candidate.trials, candidate.selection),
            "holdout": score.report(),
        }

    def how_far(self, result: MarketResult) -> str:
        assert self.search is not None
        asked = [one for one in result.findings if one.name == "holdout-excess"]
        # Of a candidate that meets every rule, its return on unseen bars says most.
        met = asked[0] if result.passes and asked and asked[0].verdict == "pass" else None
        finding = met or deciding(result.findings)
        if finding is None:
            return ""
        return how_far(finding, measured_edge(self.search, result), result)

    def power(self, result: MarketResult) -> str:
        found = self._power(result)
        if found is None:
            return ""
        assert self.search is not None
        return power_text(found, self.search.trials, measured_edge(self.search, result))

    def _power(self, result: MarketResult) -> GatePower | None:
        """The power of this gate; None of several trials, and with another limit of the ratio."""
        limits = {rule.name: rule.limit for rule in self.rules}
        candidate = result.candidate
        if self.search is None or len(candidate.trials) > 1 or self._holdout_bars == 0:
            return None
        if limits["deflated-sharpe"] != luck.CONFIDENCE:
            return None
        next_level = limits["holdout-excess"] * gate_level(self.looks() + 1) / ALPHA
        return study_power(
            self.search,
            candidate.trials[0],
            candidate.selection,
            self._holdout_bars,
            min(next_level, 0.5),
            limits["pbo"],
        )

    def steps(self, results: Sequence[MarketResult], closest: MarketResult) -> Sequence[Step]:  # noqa: ARG002
        assert self.search is not None
        edge, power = measured_edge(self.search, closest), self._power(closest)
        return Advice(self.study, self.search, self.bars_folder, closest, edge, power).steps()

    def looks(self) -> int:
        if self.search is None or self._holdout_bars == 0:
            return 0
        tickers = self.study.spec.data.tickers
        return self.registry.evaluations.count_holdout(tickers, *self._holdout_span)

    def details(self, chosen: MarketResult | None) -> dict[str, Any]:
        selection = None
        if self.search is not None and chosen is not None:
            candidate = chosen.candidate
            selection = self.search.describe(candidate.trials, candidate.selection)
        content: dict[str, Any] = finite(
            {"synthetic": self.study.spec.data.synthetic, "selection": selection}
        )
        return content

    def report(self, promotion: MarketPromotion) -> Report:
        return market_report(self.study, promotion, self.search, self.registry, self.bars_folder)

    def champion_commands(self, slot: str) -> Sequence[tuple[str, str]]:
        if slot.startswith("demo-"):  # no venue sells what the demo market trades
            return (("trade --feed recorded", "trade the recorded bars, on paper"),)
        return (("trade", "trade it live, on paper"), ("trade --replay", "replay the champion"))

    @staticmethod
    def bundle_facts(
        registry: Registry, bundle: Bundle, places: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        return market_facts(registry, bundle, places)

    @staticmethod
    def bundle_sections(facts: Mapping[str, Any]) -> list[Section]:
        return market_sections(facts)

    @staticmethod
    def verify(registry: Registry, bundle: Bundle, data_dir: Path | None) -> Verification:
        folder = data_dir or registry.data_dir(bundle.hash)
        if folder is None:
            raise InputError(
                f"--data-dir is needed: the registry does not know the folder of {bundle.name}'s "
                "bars"
            )
        manifest = bundle.manifest
        # Jumps were refused or accepted by its study.
        bars = load_bars(folder, manifest.timeframe, manifest.tickers, accept_jumps=True)
        return verify_bundle(bundle, bars)

    @staticmethod
    def acting(
        study: MarketStudy, trial: FrozenTrial
    ) -> tuple[tuple[FrozenPolicy, ...], FrozenPolicy, tuple[int, ...]]:
        loaded = trial_members(study, trial)
        return tuple(FrozenPolicy([member]) for member in loaded), FrozenPolicy(loaded), ()

    @staticmethod
    def codec(policy: TrialPolicy) -> SpaceCodec:
        return market_policy.codec(policy)

    @staticmethod
    def evaluate_policy(
        policy: TrialPolicy,
        windows: Sequence[tuple[market_policy.Time, market_policy.Time]],
        data_dir: str | Path | None,
        games: int,  # noqa: ARG004
        seed: int,  # noqa: ARG004
    ) -> pd.DataFrame:
        return market_policy.evaluate(policy, windows, data_dir)


def _same_policy(one: Bundle, other: Bundle) -> bool:
    """Whether both act the same: equal weights, shares, environment parameters and tickers."""

    def policy(bundle: Bundle) -> tuple[object, ...]:
        params = [trial.env_params for trial in bundle.manifest.trials]
        return bundle.members_sha256, params, bundle.manifest.tickers

    return policy(one) == policy(other)
