"""Candidates of a study on a market: trials with the weights and paths that they stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from optuna.trial import FrozenTrial

from sweepd.deploy.market.backtests import (
    SearchStatistics,
    combine,
    paths_file,
    read_paths,
    read_search,
)
from sweepd.deploy.market.bundle import (
    NO_SHORT_ENSEMBLES,
    Bundle,
    default_symbols,
    read_policy,
    recipe_part,
)
from sweepd.deploy.market.manifest import (
    VENUE_PARAMS,
    DataPart,
    EnsembleManifest,
    Manifest,
    OriginPart,
    PolicyPart,
    TrialPart,
    trial_file,
)
from sweepd.deploy.market.rules import MarketEvidence, Selection
from sweepd.deploy.market.scored import SCORED_FILE, ScoredRecord
from sweepd.deploy.market.scoring import Score
from sweepd.deploy.market.shares import choose_shares
from sweepd.deploy.promotion.flags import Weights
from sweepd.deploy.promotion.promotion import GateResult, Promotion
from sweepd.deploy.promotion.studies import (
    GateStudy,
    find_study,
    objective_of,
    scored_weights,
    unrecorded,
)
from sweepd.deploy.registry.bundle_files import MEMBERS_FILE, describe_files, finite, new_bundle
from sweepd.envs.crypto.data.timeframe import format_time, grid_from
from sweepd.envs.crypto.features import get_recipe
from sweepd.envs.crypto.params import EnvParams, Instruments
from sweepd.envs.crypto.scoring.figures import path_metrics
from sweepd.envs.crypto.scoring.metrics import Metrics, PathTrades
from sweepd.envs.crypto.scoring.selection import median_path
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.record.reader import StudyReader
from sweepd.optimize.study.record.spans import study_splits
from sweepd.optimize.study.record.specs import CryptoSpec
from sweepd.optimize.study.record.trials import TrialRecord


class MarketStudy(GateStudy):
    """A study on a market. Raises InputError for a study on a game."""

    spec: CryptoSpec

    def __init__(self, study: StudyReader) -> None:
        if not isinstance(study.spec, CryptoSpec):
            raise InputError(
                f"study {study.name!r} is of environment {study.spec.environment!r}; only crypto "
                "policies can be promoted to paper trading"
            )
        super().__init__(study)


@dataclass(frozen=True)
class CandidateTrial:
    """A trial of a candidate.

    Attributes:
        trial: the trial.
        record: what its worker recorded about it.
        share: the share of the capital that it would trade.
        params: its environment parameters, None if the candidate's faults say why.
    """

    trial: FrozenTrial
    record: TrialRecord
    share: float
    params: EnvParams | None


@dataclass(frozen=True)
class MarketCandidate:
    """A trial that may be promoted, or several that would share the capital.

    Attributes:
        parts: its trials, best objective first.
        paths: metrics per back-test path.
        metrics: of its back-test, by name (`path_metrics`): those that the trial recorded, or of
            several trials those of their combination.
        faults: what keeps it from being deployed, in sentences.
        selection: statistics of the search about it.
        weights: how the shares of several trials were chosen.
    """

    parts: tuple[CandidateTrial, ...]
    paths: tuple[Metrics, ...]
    faults: tuple[str, ...]
    selection: Selection
    metrics: Mapping[str, Any]
    weights: Weights = "equal"

    @property
    def trials(self) -> tuple[int, ...]:
        """Numbers of its trials."""
        return tuple(part.trial.number for part in self.parts)

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of the capital that each trial would trade."""
        return tuple(part.share for part in self.parts)

    @property
    def name(self) -> str:
        """The candidate in words."""
        return name_trials(self.trials)

    @property
    def objective(self) -> float:
        """Its objective value, to be maximised; for several trials the mean weighted by share."""
        return sum(part.share * objective_of(part.trial) for part in self.parts)

    def evidence(self) -> MarketEvidence:
        """The evidence for the first stage of the gate."""
        return MarketEvidence(paths=self.paths, faults=self.faults, selection=self.selection)

    def describe(self, score: Score | None) -> dict[str, Any]:
        """Its own part of a result's JSON."""
        return {
            "trials": list(self.trials),
            "shares": list(self.shares),
            "metrics": dict(self.metrics),
            "holdout": None if score is None else score.to_dict(),
        }


MarketResult: TypeAlias = GateResult[MarketCandidate, Score, Bundle]
MarketPromotion: TypeAlias = Promotion[MarketResult]


def name_trials(trials: Sequence[int]) -> str:
    """`trial 3`, or `the ensemble of trials 3, 5 and 8`."""
    if len(trials) == 1:
        return f"trial {trials[0]}"
    names = ", ".join(str(number) for number in trials[:-1])
    return f"the ensemble of trials {names} and {trials[-1]}"


def open_study(name: str | None, storage: str, runs_dir: Path | None = None) -> MarketStudy:
    """Read a study on a market; see `find_study` and `MarketStudy`."""
    return MarketStudy(find_study(name, storage, runs_dir))


def study_search(study: MarketStudy) -> SearchStatistics:
    """Statistics of the paths of all its COMPLETE trials.

    Raises:
        InputError: the paths of some of them were removed, so that the luck in the choice of the
            best one cannot be computed.
    """
    if study.thinned is not None:
        raise InputError(
            f"{study.thinned.words(study.name)}: the back-test paths of most trials are gone, from "
            "which the gate computes PBO and the deflated Sharpe ratio; what it found before is in "
            f"{study.run_dir / 'gate'}"
        )
    # A run's trial was the best of others, and a prior's trials guided the search: they count.
    finished = study.finished + study.chosen_from
    return read_search(
        study.all_complete, finished, study.run_dir, study.spec.data.timeframe, study.evaluations
    )


def read_candidate(
    trials: Sequence[FrozenTrial],
    study: MarketStudy,
    search: SearchStatistics,
    weights: Weights = "equal",
) -> MarketCandidate:
    """Read a candidate, and find everything that keeps it from being deployed.

    Args:
        trials: its trials; several share the capital.
        study: the study.
        search: statistics of all trials.
        weights: how the shares are chosen.
    """
    shares, faults = choose_shares(trials, weights)
    parts = tuple(
        _read_trial(trial, share, study, faults)
        for trial, share in zip(trials, shares, strict=True)
    )
    faults += [
        search.unreadable[trial.number] for trial in trials if trial.number in search.unreadable
    ]
    backtest = search.backtests.get(trials[0].number)
    diversification = None
    metrics: Mapping[str, Any] = parts[0].record.metrics or {}
    if len(trials) > 1:
        backtest, metrics = None, {}
        faults += _different_accounts(parts)
        if any(part.params is not None and part.params.allow_short for part in parts):
            faults.append(NO_SHORT_ENSEMBLES)
        try:
            together = combine(trials, shares, study.run_dir, study.spec.data.timeframe)
            backtest, diversification = together.backtest, together.diversification
            path = median_path(backtest.moments, diversification)
            metrics = path_metrics(together.paths, search.timeframe, backtest.metrics, path)
        except (OSError, ValueError, KeyError) as error:
            faults.append(f"the trials' back-test paths cannot be put together: {error}")
    selection = Selection(
        finished=search.trials,
        reached=len(search.backtests),
        deflation=None if backtest is None else search.deflate(backtest, diversification),
        overfitting=search.overfitting_of(len(trials)),
        annual=search.annual,
        bars=search.bars,
        chosen=len(trials),
    )
    paths = () if backtest is None else backtest.metrics
    return MarketCandidate(parts, paths, tuple(faults), selection, metrics, weights)


def _read_trial(
    trial: FrozenTrial, share: float, study: MarketStudy, faults: list[str]
) -> CandidateTrial:
    """Read a trial, and append everything that keeps it from being deployed to `faults`."""
    record = TrialRecord.from_attributes(trial.user_attrs)
    faults += unrecorded(record, ("seed", "env_params", "learner_params"))
    try:
        scored_weights(record, study.run_dir)
    except InputError as error:
        faults.append(str(error))
    params = None
    try:
        params = None if record.env_params is None else EnvParams(**record.env_params)
    except (InputError, TypeError) as error:
        faults.append(f"its environment parameters are not valid here: {error}")
    return CandidateTrial(trial, record, share, params)


def _different_accounts(parts: Sequence[CandidateTrial]) -> list[str]:
    """Parameters of the shared account in which the trials differ, in sentences."""
    params = [part.params for part in parts if part.params is not None]
    return [
        f"the trials differ in {name} ({', '.join(f'{value:g}' for value in sorted(values))}), but "
        "the account that they would share has only one"
        for name in VENUE_PARAMS
        if len(values := {float(getattr(one, name)) for one in params}) > 1
    ]


def trial_bundle(study: MarketStudy, number: int) -> Bundle:
    """The bundle that a complete trial would be deployed as, without a report.

    Raises:
        InputError: there is no such trial, or it cannot be deployed.
    """
    trials = [study.complete_trial(number)]
    search = read_search(trials, 1, study.run_dir, study.spec.data.timeframe)
    candidate = read_candidate(trials, study, search)
    if candidate.faults:
        raise InputError(
            f"trial {number} of study {study.name!r} has no policy: {candidate.faults[0]}"
        )
    return build_bundle(candidate, study, {})


def scored_record(candidate: MarketCandidate, study: MarketStudy) -> ScoredRecord:
    """The median back-test path of a candidate, and the luck in its mean.

    Raises:
        InputError: the paths cannot be read any more.
    """
    deflation = candidate.selection.deflation
    try:
        paths = candidate_paths(candidate, study)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{candidate.name}: its paths cannot be read: {error}") from error
    assert deflation is not None  # or the first stage would have failed
    returns, equal = (one[deflation.path] for one in (paths.returns, paths.equal_weight))
    luck = deflation.luck * float(np.std(returns - equal, ddof=1))
    return ScoredRecord(returns.astype(np.float64), equal.astype(np.float64), luck)


def candidate_paths(candidate: MarketCandidate, study: MarketStudy) -> PathTrades:
    """The back-test paths of a candidate's members, or of several trials together."""
    trials = [part.trial for part in candidate.parts]
    if len(trials) == 1:
        return read_paths(paths_file(trials[0], study.run_dir))[0]
    return combine(trials, candidate.shares, study.run_dir, study.spec.data.timeframe).paths


def build_bundle(
    candidate: MarketCandidate,
    study: MarketStudy,
    gate: dict[str, Any],
    scored: ScoredRecord | None = None,
) -> Bundle:
    """The bundle of a candidate without faults.

    Args:
        candidate: the candidate.
        study: its study.
        gate: the gate's report.
        scored: the record that it was chosen by, of a candidate that no hold-out sees.

    Raises:
        ValueError: a trial lacks a seed or valid environment parameters.
        InputError: a trial's weights are not those that were scored.
    """
    spec, several = study.spec, len(candidate.parts) > 1
    data, tickers = spec.data, tuple(spec.data.tickers)
    instruments = Instruments.unrestricted(len(tickers))  # as in training
    first, last = data.span
    last_seen = grid_from(data.timeframe, first, study_splits(spec).holdout[0])[-1]
    trials, files = [], {}
    for number, part in enumerate(candidate.parts):
        name = trial_file(number) if several else MEMBERS_FILE
        files[name] = scored_weights(part.record, study.run_dir)
        trials.append(_trial_part(part, study, name, files[name]))
    if scored is not None:
        files[SCORED_FILE] = scored.to_bytes()
    common: dict[str, Any] = {
        "tickers": tickers,
        "symbols": default_symbols(tickers, data.timeframe, synthetic=data.synthetic),
        "timeframe": data.timeframe,
        "recipe": recipe_part(get_recipe(str(spec.recipe["name"]))),
        "minimum_order": tuple(instruments.minimum_order),
        "increment": tuple(instruments.increment),
        "data": DataPart(
            fingerprint=data.fingerprint,
            first=format_time(first),
            last=format_time(last),
            synthetic=data.synthetic,
        ),
        "last_seen_bar": format_time(int(last_seen)),
        "metrics": {
            "describes": "the trials' members, in cross-validation, weighted by share"
            if several
            else "the members, in cross-validation",
            "over_paths": finite(candidate.metrics),
            "paths": [finite(metrics.to_dict()) for metrics in candidate.paths],
        },
        "gate": gate,
        "code_version": spec.code_version,
        "torch_version": spec.torch_version,
        "files": describe_files(files),
    }
    manifest: Manifest | EnsembleManifest
    if several:
        manifest = EnsembleManifest(weights=candidate.weights, trials=tuple(trials), **common)
    else:
        (only,) = trials
        manifest = Manifest(
            env_params=only.env_params, policy=only.policy, origin=only.origin, **common
        )
    return new_bundle(Bundle, manifest, files)


def _trial_part(part: CandidateTrial, study: MarketStudy, file: str, members: bytes) -> TrialPart:
    if part.params is None or part.record.seed is None:
        raise ValueError(f"trial {part.trial.number} lacks a seed or valid environment parameters")
    policy = read_policy(members, file)
    return TrialPart(
        share=part.share,
        file=file,
        env_params=part.params.recorded(),
        policy=PolicyPart(
            algorithm=study.spec.algorithm,
            members=policy.size,
            state_dim=policy.state_dim,
            action_dim=policy.action_dim,
            max_lookback=study.spec.max_lookback,
            hidden=policy.members[0].spec.hidden,
        ),
        origin=OriginPart(
            study=study.name,
            study_uid=study.uid,
            trial=part.trial.number,
            seed=part.record.seed,
            objective=study.spec.objective,
            objective_value=objective_of(part.trial),
            parameters=dict(part.trial.params),
            ppo_params=dict(part.record.learner_params or {}),
        ),
    )
