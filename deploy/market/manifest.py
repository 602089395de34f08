"""The manifest (`bundle.json`) of a policy that trades, as validated models.

Format version 1 has one trial; version 2 has several trials that trade as sub-accounts of one
account.
"""

from __future__ import annotations

import math
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from sweepd.deploy.market.scored import SCORED_FILE
from sweepd.deploy.promotion.flags import Weights
from sweepd.deploy.registry.bundle_files import MEMBERS_FILE, BaseManifest
from sweepd.envs.support.validation import StrictModel

FORMAT: Final = "sweepd-bundle"
# Parameters of the account, which all trials of a bundle share.
VENUE_PARAMS = ("fee", "slippage", "minimum_order", "initial_cash")


class RecipePart(StrictModel):
    """The feature recipe in full, so that one of this name with other features is refused."""

    name: str
    version: int
    memory: int = Field(gt=0)
    asset_features: tuple[str, ...]
    shared_features: tuple[str, ...]


class PolicyPart(StrictModel):
    """The policy, an ensemble.

    Its action is the mean of the members' actions after tanh, each computed with the member's own
    normaliser, rounded to 1e-6.
    """

    algorithm: str
    members: int = Field(gt=0)
    state_dim: int = Field(gt=0)
    action_dim: int = Field(gt=0)
    max_lookback: int = Field(gt=0)
    hidden: tuple[int, ...]


class OriginPart(StrictModel):
    """Study and trial of the members, and the parameters of their training."""

    study: str
    study_uid: str
    trial: int = Field(ge=0)
    seed: int
    objective: str
    objective_value: float
    parameters: dict[str, bool | int | float | str | None]
    ppo_params: dict[str, bool | int | float | str | None]


class DataPart(StrictModel):
    """The bars of the study. Times are opens of bars, UTC."""

    fingerprint: str
    first: str
    last: str
    synthetic: bool


class TrialPart(StrictModel):
    """A trial. share: of the account's capital that it trades. file: of its members' weights."""

    share: float = Field(gt=0.0, le=1.0)
    env_params: dict[str, Any]
    policy: PolicyPart
    origin: OriginPart
    file: str


class _Common(BaseManifest):
    """Fields of both versions.

    Attributes:
        metrics: of the *members* in cross-validation; `gate` has the hold-out's numbers, which are
            those of the deployed ensemble.
        last_seen_bar: open (UTC) of the newest bar used by training or cross-validation.
        symbols: names of the tickers, by venue.
    """

    format: Literal["sweepd-bundle"] = FORMAT
    environment: Literal["crypto"] = "crypto"
    tickers: tuple[str, ...] = Field(min_length=1)
    symbols: dict[str, dict[str, str]]
    timeframe: str
    recipe: RecipePart
    minimum_order: tuple[float, ...]
    increment: tuple[float, ...]
    data: DataPart
    last_seen_bar: str
    metrics: dict[str, Any]

    def check_consistent(self, trials: tuple[TrialPart, ...]) -> None:
        """Raise ValueError if fields contradict each other."""
        count = len(self.tickers)
        if len(set(self.tickers)) != count:
            raise ValueError("tickers are listed twice")
        if len(self.minimum_order) != count or len(self.increment) != count:
            raise ValueError(
                f"minimum_order and increment must have a number for each of the {count} tickers"
            )
        market = count * len(self.recipe.asset_features) + len(self.recipe.shared_features)
        for policy in (trial.policy for trial in trials):
            if policy.action_dim != count:
                raise ValueError(
                    f"the policy acts on {policy.action_dim} assets but {count} tickers are listed"
                )
            expected = 1 + 3 * count + policy.max_lookback * market
            if policy.state_dim != expected:
                raise ValueError(
                    f"the policy reads {policy.state_dim} numbers but its tickers and recipe give "
                    f"{expected}"
                )
        for venue, names in self.symbols.items():
            if set(names) != set(self.tickers):
                raise ValueError(f"symbols of {venue} must name exactly the tickers")
        if set(self.files) - {SCORED_FILE} != {trial.file for trial in trials}:
            raise ValueError(
                f"files must list {', '.join(trial.file for trial in trials)} and nothing else"
            )


class Manifest(_Common):
    """The content of `bundle.json` for one trial, without its hash."""

    format_version: Literal[1] = 1
    env_params: dict[str, Any]
    policy: PolicyPart
    origin: OriginPart

    @property
    def trials(self) -> tuple[TrialPart, ...]:
        """The only trial, with all of the capital."""
        return (
            TrialPart(
                share=1.0,
                env_params=self.env_params,
                policy=self.policy,
                origin=self.origin,
                file=MEMBERS_FILE,
            ),
        )

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        self.check_consistent(self.trials)
        return self


class EnsembleManifest(_Common):
    """The content of `bundle.json` for several trials, without its hash."""

    format_version: Literal[2] = 2
    weights: Weights
    trials: tuple[TrialPart, ...] = Field(min_length=2)

    @model_validator(mode="after")
    def _consistent(self) -> EnsembleManifest:
        total = math.fsum(trial.share for trial in self.trials)
        if abs(total - 1.0) > 1e-9:
            raise ValueError(f"the trials' shares add up to {total:g}, not to 1")
        if len({trial.file for trial in self.trials}) != len(self.trials):
            raise ValueError("two trials name the same file")
        if len({trial.origin.trial for trial in self.trials}) != len(self.trials):
            raise ValueError("a trial is listed twice")
        if len({(trial.origin.study_uid, trial.policy.max_lookback) for trial in self.trials}) != 1:
            raise ValueError("the trials must be of one study, with one max_lookback")
        for name in VENUE_PARAMS:
            if len({trial.env_params.get(name) for trial in self.trials}) != 1:
                raise ValueError(
                    f"the trials differ in {name}, but the account that they share has only one"
                )
        self.check_consistent(self.trials)
        return self


def trial_file(number: int) -> str:
    """Name of the file of weights of the ensemble's trial at index `number`."""
    return f"members-{number:03d}.safetensors"
