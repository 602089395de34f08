"""What promotion reads of a study: its frozen spec, its finished trials, and the weights and paths that each of them
stored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from deploy.market.backtests import Search, combine, read_search
from deploy.market.bundle import (
    Bundle,
    default_symbols,
    format_time,
    make_bundle,
    read_policy,
    recipe_part,
)
from deploy.market.gate import Evidence, Selection
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
from envs.crypto.bars import Bars
from envs.crypto.features import get_recipe
from envs.crypto.metrics import Metrics
from envs.crypto.params import EnvParams, Instruments
from envs.support.errors import InputError
from envs.support.study_record import CryptoSpec, TrialRecord


@dataclass(frozen=True)
class FinishedStudy(FoundStudy):
    """A study on a market as promotion sees it."""

    spec: CryptoSpec


@dataclass(frozen=True)
class Entrant:
    """A trial of a candidate: the share of the capital that it would trade, its environment parameters, and the bytes
    of its weights; None where the candidate's faults say why they cannot be used.
    """

    trial: FrozenTrial
    share: float
    params: EnvParams | None
    members: bytes | None


@dataclass(frozen=True)
class Candidate:
    """A trial that asks to be promoted, or several that would share the capital.

    entrants: best objective first. paths: metrics per back-test path. faults: what keeps it from being deployed.
    weights: how several trials' shares were chosen.
    """

    entrants: tuple[Entrant, ...]
    paths: tuple[Metrics, ...]
    faults: tuple[str, ...]
    selection: Selection
    weights: Weights = "equal"

    @property
    def trials(self) -> tuple[int, ...]:
        """The trials' numbers."""
        return tuple(entrant.trial.number for entrant in self.entrants)

    @property
    def value(self) -> float:
        """Its objective, to be maximised; of several trials the mean by share."""
        return sum(
            entrant.share * float("nan" if entrant.trial.value is None else entrant.trial.value)
            for entrant in self.entrants
        )

    def evidence(self) -> Evidence:
        """What the first stage of the gate reads."""
        return Evidence(paths=self.paths, faults=self.faults, selection=self.selection)


def open_study(name: str | None, storage: str, runs_dir: Path | None = None) -> FinishedStudy:
    """Read a study on a market; see `deploy.promotion.studies.find_study`. Raises InputError for one on a game, too."""
    return market_study(find_study(name, storage, runs_dir))


def market_study(found: FoundStudy) -> FinishedStudy:
    """The study, if it is one on a market. Raises InputError for another."""
    if not isinstance(found.spec, CryptoSpec):
        raise InputError(
            f"study {found.name!r} is of environment {found.environment!r}; only crypto policies can be promoted to "
            "paper trading"
        )
    return FinishedStudy(**vars(found))


def study_search(study: FinishedStudy) -> Search:
    """The paths of all its COMPLETE trials, in figures."""
    return read_search(study.trials, study.finished, study.run_dir, study.spec.data.timeframe)


def read_candidate(
    trials: Sequence[FrozenTrial], study: FinishedStudy, search: Search, weights: Weights = "equal"
) -> Candidate:
    """What one trial, or several that are to share the capital, stored, with a sentence for everything that keeps them
    from being deployed.
    """
    faults: list[str] = []
    shares, lacking = choose_shares(trials, weights)
    faults += lacking
    entrants = tuple(
        _entrant(trial, share, study, faults) for trial, share in zip(trials, shares, strict=True)
    )
    faults += [
        search.unreadable[trial.number] for trial in trials if trial.number in search.unreadable
    ]
    backtest, deflation = search.backtests.get(trials[0].number), search.deflation(trials[0].number)
    if len(trials) > 1:
        backtest = deflation = None
        faults += _different_accounts(entrants)
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
    return Candidate(
        entrants, backtest.metrics if backtest else (), tuple(faults), selection, weights
    )


def _entrant(trial: FrozenTrial, share: float, study: FinishedStudy, faults: list[str]) -> Entrant:
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
    return Entrant(trial, share, params, members)


def _different_accounts(entrants: Sequence[Entrant]) -> list[str]:
    """What trials that are to share an account disagree about."""
    params = [entrant.params for entrant in entrants if entrant.params is not None]
    return [
        f"the trials differ in {name} ({', '.join(f'{value:g}' for value in sorted(values))}), but the account that "
        "they would share has only one"
        for name in VENUE_PARAMS
        if len(values := {float(getattr(one, name)) for one in params}) > 1
    ]


def build_bundle(
    candidate: Candidate,
    study: FinishedStudy,
    bars: Bars,
    holdout: tuple[int, int],
    *,
    gate: dict[str, Any],
) -> Bundle:
    """The bundle of a candidate without faults.

    holdout: range of bars [a, b) that the study set aside; gate: the gate's report. Raises ValueError for a candidate
    with faults.
    """
    spec, several = study.spec, len(candidate.entrants) > 1
    instruments = Instruments.unrestricted(len(bars.tickers))  # training knows no others
    tickers = tuple(bars.tickers)
    parts, files = [], {}
    for number, entrant in enumerate(candidate.entrants):
        name = trial_file(number) if several else MEMBERS_FILE
        if entrant.params is None or entrant.members is None:
            raise ValueError(
                f"trial {entrant.trial.number} cannot be deployed: {candidate.faults[0]}"
            )
        files[name] = entrant.members
        parts.append(_trial_part(entrant, study, name))
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
            EnsembleManifest(weights=candidate.weights, trials=tuple(parts), **common), files
        )
    (part,) = parts
    return make_bundle(
        Manifest(env_params=part.env_params, policy=part.policy, origin=part.origin, **common),
        files,
    )


def _trial_part(entrant: Entrant, study: FinishedStudy, file: str) -> TrialPart:
    assert entrant.params is not None
    assert entrant.members is not None
    policy, hidden = read_policy(entrant.members, file)
    record = TrialRecord.from_attributes(entrant.trial.user_attrs)
    assert record.seed is not None
    return TrialPart(
        share=entrant.share,
        file=file,
        env_params=dataclasses.asdict(entrant.params),
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
            trial=entrant.trial.number,
            seed=record.seed,
            objective=study.spec.objective,
            objective_value=float("nan" if entrant.trial.value is None else entrant.trial.value),
            parameters=dict(entrant.trial.params),
            ppo_params=dict(record.learner_params or {}),
        ),
    )
