"""Promotion: choose the best trial, score its ensemble on the hold-out, and move the slot's champion when every rule
is met.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from deploy.market.advice import why_none
from deploy.market.backtests import Search
from deploy.market.bundle import Bundle, format_time
from deploy.market.candidates import (
    Candidate,
    FinishedStudy,
    build_bundle,
    read_candidate,
    study_search,
)
from deploy.market.constants import nearest_constant
from deploy.market.gate import DEFAULT_RULES, Evidence, Selection
from deploy.market.manifest import Weights
from deploy.market.scoring import Score, bootstrap_seed, duel, score_bundle
from deploy.promotion.bootstrap import draws_for, gate_level, mean_above_zero
from deploy.promotion.promotion import (
    CHAMPION_ALREADY,
    NO_LOOK_SPENT,
    AnyPromotion,
    JudgedCandidate,
    Place,
    Settled,
    ask_in_turn,
)
from deploy.promotion.rules import Finding, Rule, judge, not_asked, passed
from deploy.registry.bundle_files import finite
from deploy.registry.registry import Registry
from envs.crypto.bars import Bars, load_bars
from envs.crypto.study_data import load_study_bars, study_splits
from envs.support.errors import InputError
from envs.support.study_record import DataSpec


@dataclass(frozen=True, kw_only=True)
class Judged(JudgedCandidate):
    """A candidate and what every rule said about it.

    trials: its trial's number, or those of several that would share the capital as `shares` says. selection: what the
    whole search says about it. look, score, bundle: None where the hold-out was not looked at.
    """

    trials: tuple[int, ...]
    shares: tuple[float, ...]
    selection: Selection
    score: Score | None = None
    bundle: Bundle | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON: plain numbers and text."""
        return super().to_dict() | {
            "trials": list(self.trials),
            "shares": list(self.shares),
            "holdout": None if self.score is None else self.score.metrics.to_dict(),
        }


@dataclass(frozen=True)
class Promotion(AnyPromotion[Judged]):
    """The outcome of a promotion. search: statistics of all trials of the study. looks: counted at these bars."""

    synthetic: bool = False
    search: Search | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON: plain numbers and text."""
        selection = {} if self.search is None else describe(self.search, self.chosen)
        own: dict[str, Any] = finite({"synthetic": self.synthetic, "selection": selection or None})
        return super().to_dict() | own


def name_trials(trials: Sequence[int]) -> str:
    """`trial 3`, or `the ensemble of trials 3, 5 and 8`."""
    if len(trials) == 1:
        return f"trial {trials[0]}"
    return f"the ensemble of trials {', '.join(str(number) for number in trials[:-1])} and {trials[-1]}"


def describe(search: Search, judged: Judged | None) -> dict[str, Any]:
    """The figures of the search for JSON, with those of a candidate."""
    return (
        search.describe() if judged is None else _described(search, judged.trials, judged.selection)
    )


def _described(search: Search, trials: Sequence[int], selection: Selection) -> dict[str, Any]:
    return search.describe(trials, selection.deflation, selection.overfitting)


def default_slot(environment: str, data: DataSpec) -> str:
    """The slot that a study's candidates ask for unless told otherwise: `crypto-1h`.

    Champions of a made-up market have slots of their own (`demo-1h`), out of the way of those of real ones.
    """
    return f"{'demo' if data.synthetic else environment}-{data.timeframe}"


class Promoter:
    """One promotion of one study.

    slot: see `default_slot`. data_dir: where the study's bars lie now (default: where they were).
    ensemble: how many of the best trials ask together, each with a share of the capital that `weights` says.
    dry_run: change no champion and write no bundle; a look at the hold-out is counted all the same, since its numbers
    are seen. looks: how many candidates may be scored on the hold-out; 0 for the first stage alone, of the best one.
    progress: told, in a few words, what takes long.
    """

    def __init__(
        self,
        study: FinishedStudy,
        registry: Registry,
        *,
        slot: str | None = None,
        data_dir: Path | None = None,
        dry_run: bool = False,
        looks: int = 1,
        ensemble: int = 1,
        weights: Weights = "equal",
        rules: Sequence[Rule[Evidence]] = DEFAULT_RULES,
        progress: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.study = study
        self.registry = registry
        self.slot = slot or default_slot(study.spec.environment, study.spec.data)
        self.data_dir = (data_dir or Path(study.spec.data.dir)).resolve()
        self.dry_run = dry_run
        self.looks = looks
        self.ensemble = ensemble
        self.weights: Weights = weights
        self.rules = tuple(rules)
        self.progress = progress
        self.place = Place(
            registry, self.slot, study.name, dry_run or looks == 0, str(self.data_dir)
        )
        self.before = self.place.champion
        self.search: Search | None = None
        self.holdout_bars: tuple[int, int] | None = None

    def run(self, trial: int | None = None) -> Promotion:
        """Judge the candidates in the order of their objective, until one may be promoted or the looks are spent.

        trial: consider only this one. Raises InputError for what is wrong with the study's data, the slot's champion or
        the registry.
        """
        if trial is not None and self.ensemble > 1:
            raise InputError(
                f"--trial {trial} and --ensemble {self.ensemble} do not go together: give one of them"
            )
        trials = self.study.asked(trial)
        if not trials:
            return self._outcome(Settled(None, "no candidate", self.study.why_none_complete))
        if self.ensemble > len(trials):
            raise InputError(
                f"--ensemble {self.ensemble} is more than the {len(trials)} COMPLETE trials of study "
                f"{self.study.name!r}"
            )
        asking = [trials[: self.ensemble]] if self.ensemble > 1 else [[item] for item in trials]
        bars = load_study_bars(self.study.spec.data, self.data_dir)
        holdout = study_splits(self.study.spec).holdout
        if holdout[1] <= holdout[0]:
            reason = "the study set no bars aside (--holdout 0), so nothing unseen is left to judge it by"
            return self._outcome(Settled(None, "no hold-out", reason))
        self.holdout_bars = int(bars.time[holdout[0]]), int(bars.time[holdout[1] - 1])
        self.progress(f"reading the paths of {len(self.study.trials)} complete trials")
        self.search = study_search(self.study)
        if self.looks == 0:
            return self._without_a_look(asking[0], bars, holdout)
        judged, settled = ask_in_turn(
            asking,
            lambda items, first: self._consider(items, bars, holdout, first=first),
            self.looks,
        )
        if settled is None:
            chosen = next((one for one in judged if one.score is not None), None) or _closest(
                judged
            )
            reason = why_none(
                judged_count=len(judged),
                name=chosen.name,
                findings=chosen.findings,
                search=self.search,
            )
            settled = Settled(chosen, "none passes", reason)
        promotion = self._outcome(settled, judged)
        self.place.record_refusal(promotion)
        return promotion

    def _without_a_look(
        self, trials: Sequence[FrozenTrial], bars: Bars, holdout: tuple[int, int]
    ) -> Promotion:
        """The first stage alone, of one candidate. Nothing is written to the registry."""
        assert self.search is not None
        candidate = read_candidate(trials, self.study, self.search, self.weights)
        findings = self._first_stage(candidate, bars, holdout, thorough=True)
        failed = [finding.name for finding in findings if finding.verdict != "pass"]
        said = (
            f"does not meet {', '.join(failed)}"
            if failed
            else "meets every rule that needs no look at the hold-out"
        )
        why = not_asked(self.rules, "hold-out", "only the first stage was asked for")
        judged = _judged(candidate, (*findings, *why))
        return self._outcome(
            Settled(judged, "first stage", f"{judged.name} {said}{judged.loosened}"), [judged]
        )

    def _consider(
        self, trials: Sequence[FrozenTrial], bars: Bars, holdout: tuple[int, int], *, first: bool
    ) -> Settled[Judged]:
        """Both stages of a candidate: the second one only where it passes the first."""
        assert self.search is not None
        candidate = read_candidate(trials, self.study, self.search, self.weights)
        findings = self._first_stage(candidate, bars, holdout, thorough=first)
        if passed(findings):
            return self._challenge(candidate, findings, bars, holdout)
        return Settled(
            _judged(candidate, (*findings, *not_asked(self.rules, "hold-out", NO_LOOK_SPENT)))
        )

    def _first_stage(
        self, candidate: Candidate, bars: Bars, holdout: tuple[int, int], *, thorough: bool
    ) -> tuple[Finding, ...]:
        """Every rule that needs no look. The constant policies, which take some seconds, are traded only for a
        candidate that meets the others, or `thorough`.
        """
        evidence = candidate.evidence()
        findings = tuple(judge(self.rules, evidence, "cross-validation"))
        if candidate.faults or not (thorough or passed(findings)):
            return findings
        draft = build_bundle(candidate, self.study, bars, holdout, gate={})
        evidence = dataclasses.replace(evidence, twin=nearest_constant(draft, bars, holdout[0]))
        return tuple(judge(self.rules, evidence, "cross-validation"))

    def _challenge(
        self,
        candidate: Candidate,
        findings: tuple[Finding, ...],
        bars: Bars,
        holdout: tuple[int, int],
    ) -> Settled[Judged]:
        """Second stage: a look at the hold-out, and the promotion if every rule is met."""
        name = name_trials(candidate.trials)
        draft = build_bundle(candidate, self.study, bars, holdout, gate={})
        known = _judged(
            candidate, (*findings, *not_asked(self.rules, "hold-out", CHAMPION_ALREADY))
        )
        if self._is_champion(draft, self.place.champion):
            return self.place.champion_already(known)
        look = self.registry.evaluations.record_holdout(
            draft.manifest.tickers,
            draft.manifest.timeframe,
            int(bars.time[holdout[0]]),
            int(bars.time[holdout[1] - 1]),
            members_sha256=draft.members_sha256,
            study=self.study.name,
            study_uid=self.study.uid,
            trial=candidate.trials[0],
        )
        self.progress(
            f"{name}: look {look.number} at the hold-out, {holdout[1] - holdout[0]:,} bars"
        )
        result = score_bundle(draft, bars, (holdout[0] - 1, holdout[1] - 1))
        seed, draws = bootstrap_seed(draft), draws_for(gate_level(look.number))
        excess = mean_above_zero(result.returns - result.equal_weight, seed=seed, draws=draws)

        def compare(champion: str | None) -> Settled[Judged]:
            if self._is_champion(draft, champion):
                return self.place.champion_already(
                    dataclasses.replace(known, look=look, score=result)
                )
            rival = None if champion is None else self.registry.bundle(champion, Bundle)
            evidence = dataclasses.replace(
                candidate.evidence(),
                look=look.number,
                holdout=result.metrics,
                excess=excess,
                duel=None if rival is None else duel(draft, rival, self._load, draws=draws),
            )
            asked = (*findings, *judge(self.rules, evidence, "hold-out"))
            assert self.search is not None
            gate = {
                "slot": self.slot,
                "look": look.number,
                "selection": _described(self.search, candidate.trials, candidate.selection),
                "holdout": {
                    "first": format_time(int(result.time[0])),
                    "last": format_time(int(result.time[-1])),
                    **result.metrics.to_dict(),
                },
                "findings": [finding.to_dict() for finding in asked],
            }
            bundle = build_bundle(candidate, self.study, bars, holdout, gate=finite(gate))
            judged = dataclasses.replace(
                _judged(candidate, asked), look=look, score=result, bundle=bundle
            )
            return self.place.settle(judged, champion)

        return self.place.race(name, compare)

    def _is_champion(self, draft: Bundle, champion: str | None) -> bool:
        """Whether that champion would act as the candidate does."""
        return champion is not None and _same_policy(self.registry.bundle(champion, Bundle), draft)

    def _load(self, tickers: tuple[str, ...]) -> Bars:
        return load_bars(self.data_dir, self.study.spec.data.timeframe, tickers)

    def _outcome(self, settled: Settled[Judged], judged: Sequence[Judged] = ()) -> Promotion:
        assert settled.outcome is not None
        return Promotion(
            outcome=settled.outcome,
            slot=self.slot,
            study=self.study.name,
            reason=settled.reason,
            candidates=tuple(judged),
            chosen=settled.judged,
            champion_before=self.before,
            champion=self.place.champion,
            version=settled.version,
            dry_run=self.dry_run,
            synthetic=self.study.spec.data.synthetic,
            complete=len(self.study.trials),
            search=self.search,
            looks=self.registry.evaluations.count_holdout(
                self.study.spec.data.tickers, *self.holdout_bars
            )
            if self.holdout_bars
            else 0,
        )


def _judged(candidate: Candidate, findings: tuple[Finding, ...]) -> Judged:
    shares = tuple(entrant.share for entrant in candidate.entrants)
    return Judged(
        trial=candidate.trials[0],
        name=name_trials(candidate.trials),
        trials=candidate.trials,
        shares=shares,
        objective=candidate.value,
        findings=findings,
        selection=candidate.selection,
    )


def _same_policy(one: Bundle, other: Bundle) -> bool:
    """Whether they would act the same: same weights and shares, environment parameters and tickers."""

    def what_acts(bundle: Bundle) -> tuple[object, ...]:
        params = [trial.env_params for trial in bundle.manifest.trials]
        return bundle.members_sha256, params, bundle.manifest.tickers

    return what_acts(one) == what_acts(other)


def _closest(judged: Sequence[Judged]) -> Judged:
    """The one that failed the fewest rules of those that all were asked; the first of equals."""

    def asked(one: Judged) -> set[str]:
        return {finding.name for finding in one.findings if finding.verdict != "not asked"}

    common = set.intersection(*(asked(one) for one in judged))
    return min(
        judged, key=lambda one: sum(f.verdict == "fail" for f in one.findings if f.name in common)
    )
