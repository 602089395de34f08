"""Candidates of a study on a market: trials with the weights and paths that they stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from deploy.market.backtests import SearchStatistics, combine, read_search
from deploy.market.bundle import (
    Bundle,
    default_symbols,
    format_time,
    make_bundle,
    read_policy,
    recipe_part,
)
from deploy.market.gate import MarketEvidence, Selection
from deploy.market.manifest import (
    VENUE_PARAMS,
    DataPart,
    EnsembleManifest,
    Manifest,
    OriginPart,
    PolicyPart,
    TrialPart,
    Weights,
    trial_file,
)
from deploy.market.shares import choose_shares
from deploy.promotion.studies import FoundStudy, find_study, scored_weights
from deploy.registry.bundle_files import MEMBERS_FILE, describe_files, finite
from envs.crypto.data.bars import Bars
from envs.crypto.features import get_recipe
from envs.crypto.params import EnvParams, Instruments
from envs.crypto.scoring.metrics import Metrics
from envs.support.errors import InputError
from envs.support.study_record import CryptoSpec, TrialRecord


@dataclass(frozen=True)
class FinishedStudy(FoundStudy):
    """A study on a market."""

    spec: CryptoSpec


@dataclass(frozen=True)
class CandidateTrial:
    """A trial of a candidate.

    Attributes:
        trial: the trial.
        share: the share of the capital that it would trade.
        params: its environment parameters, None if the candidate's faults say why.
        members: bytes of its weights, None if the candidate's faults say why.
    """

    trial: FrozenTrial
    share: float
    params: EnvParams | None
    members: bytes | None


@dataclass(frozen=True)
class MarketCandidate:
    """A trial that may be promoted, or several that would share the capital.

    Attributes:
        parts: its trials, best objective first.
        paths: metrics per back-test path.
        faults: what keeps it from being deployed, in sentences.
        selection: statistics of the search about it.
        weights: how the shares of several trials were chosen.
    """

    parts: tuple[CandidateTrial, ...]
    paths: tuple[Metrics, ...]
    faults: tuple[str, ...]
    selection: Selection
    weights: Weights = "equal"

    @property
    def trials(self) -> tuple[int, ...]:
        """The trials' numbers."""
        return tuple(part.trial.number for part in self.parts)

    @property
    def value(self) -> float:
        """Its objective, to be maximised; for several trials the mean weighted by share."""
        return sum(
            part.share * float("nan" if part.trial.value is None else part.trial.value)
            for part in self.parts
        )

    def evidence(self) -> MarketEvidence:
        """The evidence for the first stage of the gate."""
        return MarketEvidence(paths=self.paths, faults=self.faults, selection=self.selection)


def open_study(name: str | None, storage: str, runs_dir: Path | None = None) -> FinishedStudy:
    """Read a study on a market; see `find_study`. A study on a game is an InputError, too."""
    return market_study(find_study(name, storage, runs_dir))


def market_study(found: FoundStudy) -> FinishedStudy:
    """Return the study, or raise InputError if it is not on a market."""
    if not isinstance(found.spec, CryptoSpec):
        raise InputError(
            f"study {found.name!r} is of environment {found.environment!r}; only crypto policies "
            "can be promoted to paper trading"
        )
    return FinishedStudy(**vars(found))


def study_search(study: FinishedStudy) -> SearchStatistics:
    """Statistics of the paths of all its COMPLETE trials."""
    return read_search(study.trials, study.finished, study.run_dir, study.spec.data.timeframe)


def read_candidate(
    trials: Sequence[FrozenTrial],
    study: FinishedStudy,
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
    faults: list[str] = []
    shares, lacking = choose_shares(trials, weights)
    faults += lacking
    parts = tuple(
        _read_trial(trial, share, study, faults)
        for trial, share in zip(trials, shares, strict=True)
    )
    faults += [
        search.unreadable[trial.number] for trial in trials if trial.number in search.unreadable
    ]
    backtest, deflation = search.backtests.get(trials[0].number), search.deflation(trials[0].number)
    if len(trials) > 1:
        backtest = deflation = None
        faults += _different_accounts(parts)
        try:
            together = combine(trials, shares, study.run_dir, study.spec.data.timeframe)
            backtest, deflation = (
                together.backtest,
                search.deflate(together.backtest, together.diversification),
            )
        except (OSError, ValueError, KeyError) as error:
            faults.append(f"the trials' back-test paths cannot be put together: {error}")
    selection = Selection(
        finished=search.trials,
        reached=len(search.backtests),
        deflation=deflation,
        overfitting=search.overfitting_of(len(trials)),
        annual=search.annual,
        bars=search.bars,
        chosen=len(trials),
    )
    return MarketCandidate(
        parts, backtest.metrics if backtest else (), tuple(faults), selection, weights
    )


def _read_trial(
    trial: FrozenTrial, share: float, study: FinishedStudy, faults: list[str]
) -> CandidateTrial:
    record = TrialRecord.from_attributes(trial.user_attrs)
    faults += [
        f"the trial did not record its {name}"
        for name in ("seed", "env_params", "learner_params")
        if getattr(record, name) is None
    ]
    members = scored_weights(record, study.run_dir, faults)
    params = None
    try:
        params = None if record.env_params is None else EnvParams(**record.env_params)
    except (InputError, TypeError) as error:
        faults.append(f"its environment parameters are not valid here: {error}")
    return CandidateTrial(trial, share, params, members)


def _different_accounts(parts: Sequence[CandidateTrial]) -> list[str]:
    """Parameters of the shared account in which the trials differ, in sentences."""
    params = [part.params for part in parts if part.params is not None]
    return [
        f"the trials differ in {name} ({', '.join(f'{value:g}' for value in sorted(values))}), but "
        "the account that they would share has only one"
        for name in VENUE_PARAMS
        if len(values := {float(getattr(one, name)) for one in params}) > 1
    ]


def build_bundle(
    candidate: MarketCandidate,
    study: FinishedStudy,
    bars: Bars,
    holdout: tuple[int, int],
    *,
    gate: dict[str, Any],
) -> Bundle:
    """The bundle of a candidate without faults.

    Args:
        candidate: the candidate.
        study: its study.
        bars: the study's bars.
        holdout: range [a, b) of the hold-out's bars.
        gate: the gate's report.

    Raises:
        ValueError: the candidate has faults.
    """
    spec, several = study.spec, len(candidate.parts) > 1
    instruments = Instruments.unrestricted(len(bars.tickers))  # as in training
    tickers = tuple(bars.tickers)
    trials, files = [], {}
    for number, part in enumerate(candidate.parts):
        name = trial_file(number) if several else MEMBERS_FILE
        if part.params is None or part.members is None:
            raise ValueError(f"trial {part.trial.number} cannot be deployed: {candidate.faults[0]}")
        files[name] = part.members
        trials.append(_trial_part(part, study, name))
    common: dict[str, Any] = {
        "tickers": tickers,
        "symbols": default_symbols(tickers, synthetic=bars.synthetic),
        "timeframe": bars.timeframe,
        "recipe": recipe_part(get_recipe(str(spec.recipe["name"]))),
        "minimum_order": tuple(instruments.minimum_order),
        "increment": tuple(instruments.increment),
        "data": DataPart(
            fingerprint=bars.fingerprint,
            first=format_time(int(bars.time[0])),
            last=format_time(int(bars.time[-1])),
            synthetic=bars.synthetic,
        ),
        "last_seen_bar": format_time(int(bars.time[holdout[0] - 1])),
        "metrics": {
            "describes": "the trials' members, in cross-validation, weighted by share"
            if several
            else "the members, in cross-validation",
            "paths": [finite(metrics.to_dict()) for metrics in candidate.paths],
        },
        "gate": gate,
        "code_version": spec.code_version,
        "torch_version": spec.torch_version,
        "files": describe_files(files),
    }
    if several:
        return make_bundle(
            EnsembleManifest(weights=candidate.weights, trials=tuple(trials), **common), files
        )
    (only,) = trials
    return make_bundle(
        Manifest(env_params=only.env_params, policy=only.policy, origin=only.origin, **common),
        files,
    )


def _trial_part(part: CandidateTrial, study: FinishedStudy, file: str) -> TrialPart:
    assert part.params is not None
    assert part.members is not None
    policy, hidden = read_policy(part.members, file)
    record = TrialRecord.from_attributes(part.trial.user_attrs)
    assert record.seed is not None
    return TrialPart(
        share=part.share,
        file=file,
        env_params=dataclasses.asdict(part.params),
        policy=PolicyPart(
            algorithm=study.spec.algorithm,
            members=policy.size,
            state_dim=policy.state_dim,
            action_dim=policy.action_dim,
            max_lookback=study.spec.max_lookback,
            hidden=hidden,
        ),
        origin=OriginPart(
            study=study.name,
            study_uid=study.uid,
            trial=part.trial.number,
            seed=record.seed,
            objective=study.spec.objective,
            objective_value=float("nan" if part.trial.value is None else part.trial.value),
            parameters=dict(part.trial.params),
            ppo_params=dict(record.learner_params or {}),
        ),
    )
