"""What `bundle.json` says, as checked models: of one trial (format version 1), or of several that trade as sub-accounts
of one account (version 2).
"""

from __future__ import annotations

import math
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from deploy.registry.bundle_files import MEMBERS_FILE, BaseManifest, ManifestPart

FORMAT: Final = "sweepd-bundle"
Weights = Literal["equal", "fold-score"]  # how the shares of several trials are chosen
VENUE_PARAMS = (
    "fee",
    "slippage",
    "minimum_order",
    "initial_cash",
)  # of the account, whichever trial trades


class RecipePart(ManifestPart):
    """The feature recipe, in full: a recipe of the same name that computes other features is refused."""

    name: str
    version: int
    memory: int = Field(gt=0)
    asset_features: tuple[str, ...]
    shared_features: tuple[str, ...]


class PolicyPart(ManifestPart):
    """The policy: an ensemble, mean of the members' post-tanh actions, each through its own normaliser, rounded to
    1e-6.
    """

    algorithm: str
    members: int = Field(gt=0)
    state_dim: int = Field(gt=0)
    action_dim: int = Field(gt=0)
    max_lookback: int = Field(gt=0)
    hidden: tuple[int, ...]


class OriginPart(ManifestPart):
    """Which study and trial the members come from, and with what parameters they were trained."""

    study: str
    study_uid: str
    trial: int = Field(ge=0)
    seed: int
    objective: str
    objective_value: float
    parameters: dict[str, bool | int | float | str | None]
    ppo_params: dict[str, bool | int | float | str | None]


class DataPart(ManifestPart):
    """The bars that it was made with. Times are bar opens, UTC."""

    fingerprint: str
    first: str
    last: str
    synthetic: bool


class TrialPart(ManifestPart):
    """One trial of the policy. share: of the account's capital that it trades. file: its members' weights."""

    share: float = Field(gt=0.0, le=1.0)
    env_params: dict[str, Any]
    policy: PolicyPart
    origin: OriginPart
    file: str


class _Common(BaseManifest):
    """What manifests of both versions say.

    metrics describe the *members* in cross-validation; the hold-out numbers, of what is deployed, are in `gate`.
    last_seen_bar: open (UTC) of the newest bar that training or cross-validated selection used.
    symbols: by venue, what each ticker is called there.
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
        """Raises ValueError where what is said does not go together."""
        count = len(self.tickers)
        if len(set(self.tickers)) != count:
            raise ValueError("tickers are listed twice")
        if len(self.minimum_order) != count or len(self.increment) != count:
            raise ValueError(
                f"minimum_order and increment must have one number for each of the {count} tickers"
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
                    f"the policy reads {policy.state_dim} numbers but its tickers and recipe give {expected}"
                )
        for venue, names in self.symbols.items():
            if set(names) != set(self.tickers):
                raise ValueError(f"symbols of {venue} must name exactly the tickers")
        if set(self.files) != {trial.file for trial in trials}:
            raise ValueError(
                f"files must list {', '.join(trial.file for trial in trials)} and nothing else"
            )


class Manifest(_Common):
    """All of the `bundle.json` of one trial but its hash."""

    format_version: Literal[1] = 1
    env_params: dict[str, Any]
    policy: PolicyPart
    origin: OriginPart

    @property
    def trials(self) -> tuple[TrialPart, ...]:
        """Its one trial, with all of the capital."""
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
    """All of the `bundle.json` of several trials but its hash. weights: how their shares were chosen."""

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
    """The name of an ensemble's file of weights: trial number `number` of its list."""
    return f"members-{number:03d}.safetensors"
