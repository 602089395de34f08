"""The bundle of a policy that trades, which is deployed as a self-contained folder.

`sweepd.deploy.registry.bundle_files` describes the folder. A bundle of several trials, each trading
a share of the capital as a sub-account, has one file of weights per trial:
`members-000.safetensors`, …. docs/reference/bundle.md documents the format for other programs.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import read_members
from sweepd.deploy.market.manifest import (
    FORMAT,
    EnsembleManifest,
    Manifest,
    OriginPart,
    RecipePart,
    TrialPart,
)
from sweepd.deploy.market.scored import SCORED_FILE, ScoredRecord
from sweepd.deploy.registry.bundle_files import (
    MARKET,
    MEMBERS_FILE,
    UNTRADED,
    BundleFacts,
    FilePart,
    StoredBundle,
    TrainedTrial,
    check_file,
    read_bundle,
    sha256,
)
from sweepd.envs.crypto.data.alpaca import SHARE_CALENDARS
from sweepd.envs.crypto.data.timeframe import calendar_of, has_hours, on_grid, parse_time
from sweepd.envs.crypto.features import Recipe, get_recipe
from sweepd.envs.crypto.params import SHORTS, EnvParams, Instruments
from sweepd.envs.support.errors import InputError

NO_SHORT_ENSEMBLES = (
    "trials with short positions cannot share an account: what one sells short, another may hold, and "
    "the borrow fee and margin of the account would not be the sum of theirs"
)


@dataclass(frozen=True)
class Trial:
    """One trial of a bundle.

    Attributes:
        share: the share of the capital that it trades.
        params: its environment parameters.
        policy: an ensemble of its members.
    """

    share: float
    params: EnvParams
    policy: FrozenPolicy


@dataclass(frozen=True)
class Bundle(StoredBundle[Manifest | EnsembleManifest]):
    """A loaded bundle of a policy that trades."""

    kind = MARKET
    format = FORMAT
    files: Mapping[str, bytes]
    versions = {1: Manifest, 2: EnsembleManifest}  # noqa: RUF012 (declared as a class variable)

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """The trials with their policies; InputError if the weights define none."""
        return tuple(
            Trial(
                share=part.share,
                params=EnvParams(**part.env_params),
                policy=read_policy(self.files[part.file], part.file),
            )
            for part in self.manifest.trials
        )

    @property
    def account(self) -> EnvParams:
        """Parameters of the account (fee, slippage, minimum order, initial cash).

        All trials have the same. For a bundle of one trial, these are all environment parameters.
        """
        return self.trials[0].params

    @property
    def max_lookback(self) -> int:
        """Number of lags that observations are padded to."""
        return self.manifest.trials[0].policy.max_lookback

    @property
    def origin(self) -> OriginPart:
        """Study and trial of the (first) trial."""
        return self.manifest.trials[0].origin

    @property
    def instruments(self) -> Instruments:
        """Minimum order and quantity increment per ticker."""
        return Instruments(
            minimum_order=self.manifest.minimum_order, increment=self.manifest.increment
        )

    @property
    def last_seen(self) -> int:
        """`last_seen_bar` in seconds since the epoch."""
        return parse_time(self.manifest.last_seen_bar)

    @property
    def members_sha256(self) -> str:
        """Identity of the weights, with the shares if there are several trials."""
        parts = [
            (self.manifest.files[trial.file].sha256, trial.share) for trial in self.manifest.trials
        ]
        return parts[0][0] if len(parts) == 1 else sha256(json.dumps(parts).encode())

    @property
    def facts(self) -> BundleFacts:
        """What the registry records about it."""
        return BundleFacts(
            environment=self.manifest.environment,
            study=self.origin.study,
            study_uid=self.origin.study_uid,
            trial=self.origin.trial,
            timeframe=self.manifest.timeframe,
            tickers=tuple(self.manifest.tickers),
            last_seen=self.last_seen,
        )

    @property
    def trained(self) -> tuple[TrainedTrial, ...]:
        """See `StoredBundle.trained`."""
        origins = (part.origin for part in self.manifest.trials)
        return tuple(TrainedTrial(one.study, one.study_uid, one.trial) for one in origins)

    def retrained(self, contents: Sequence[bytes]) -> Bundle:
        """See `StoredBundle.retrained`."""
        names = (part.file for part in self.manifest.trials)
        files = {**self.files, **dict(zip(names, contents, strict=True))}
        return dataclasses.replace(self, files=files)

    @cached_property
    def scored(self) -> ScoredRecord | None:
        """The record that it was chosen by, of bundles that no hold-out has seen; else None."""
        content = self.files.get(SCORED_FILE)
        return None if content is None else ScoredRecord.from_bytes(content)

    def check(self) -> None:
        """See `StoredBundle.check`."""
        for trial in self.manifest.trials:
            _check_weights(trial, self.files[trial.file], self.manifest.files[trial.file])
        if SCORED_FILE in self.files:
            check_file(SCORED_FILE, self.files[SCORED_FILE], self.manifest.files[SCORED_FILE])
            _ = self.scored
        _check_meaning(self)


def load_bundle(path: Path, *, expected: str | None = None) -> Bundle:
    """Read and check a bundle that trades; see
    `sweepd.deploy.registry.bundle_files.read_bundle`.
    """
    return read_bundle(path, (Bundle,), expected=expected)


def market_bundle(bundle: StoredBundle[Any]) -> Bundle:
    """Return the bundle, or raise InputError if it is not one of a market."""
    if not isinstance(bundle, Bundle):
        _, command = UNTRADED[bundle.kind]
        raise InputError(
            f"bundle {bundle.name} is of {bundle.facts.environment} and does not trade: {command} "
            "shows it"
        )
    return bundle


def default_symbols(
    tickers: tuple[str, ...], timeframe: str, *, synthetic: bool
) -> dict[str, dict[str, str]]:
    """Symbols of `tickers` by venue; none for a synthetic market.

    On Alpaca, coins that are pegged to the dollar are replaced by USD. With a calendar of New York,
    tickers are shares, AAPL/USD is AAPL; Alpaca has no others.

    Raises:
        InputError: two tickers have one symbol at a venue, where their positions are one.
    """
    if synthetic or not all("/" in ticker for ticker in tickers):
        return {}
    if has_hours(timeframe):
        in_dollars = all(ticker.endswith("/USD") for ticker in tickers)
        if calendar_of(timeframe) not in SHARE_CALENDARS or not in_dollars:
            return {}
        return {"alpaca": {ticker: ticker.removesuffix("/USD") for ticker in tickers}}
    pegged = {"USDT", "USDC", "BUSD", "FDUSD", "TUSD"}
    pairs = [ticker.split("/", 1) for ticker in tickers]
    symbols = [f"{base}/{'USD' if quote in pegged else quote}" for base, quote in pairs]
    return {"alpaca": _distinct(dict(zip(tickers, symbols, strict=True)))}


def alpaca_symbols(bundle: Bundle) -> dict[str, str]:
    """Return Alpaca's symbols of the bundle's tickers.

    Raises:
        InputError: they are unknown, or two tickers have one symbol.
    """
    symbols = bundle.manifest.symbols.get("alpaca")
    if symbols is None:
        why = "they were unknown when it was made"
        if bundle.manifest.data.synthetic:
            why = "its market is synthetic; use --feed recorded"
        elif has_hours(bundle.manifest.timeframe):
            why = "Alpaca has shares in USD at New York's exchanges only; use --feed folder"
        raise InputError(f"bundle {bundle.name} has no symbols for alpaca: {why}")
    return _distinct(symbols)


def _distinct(symbols: dict[str, str]) -> dict[str, str]:
    """Return Alpaca's symbols by ticker, unless two tickers have the same one."""
    owners: dict[str, str] = {}
    for ticker, symbol in symbols.items():
        other = owners.setdefault(symbol, ticker)
        if other != ticker:
            raise InputError(
                f"{other} and {ticker} are both {symbol} at Alpaca, where they would be one "
                "position: train a study on one of them"
            )
    return symbols


def read_policy(members: bytes, name: str = MEMBERS_FILE) -> FrozenPolicy:
    """Return the policy in the bytes of a file of weights.

    Raises:
        InputError: the bytes define no policy.
    """
    return FrozenPolicy(read_members(members, name))


def recipe_part(recipe: Recipe) -> RecipePart:
    """The recipe as a bundle records it."""
    return RecipePart(
        name=recipe.name,
        version=recipe.version,
        memory=recipe.memory,
        asset_features=tuple(recipe.asset_features),
        shared_features=tuple(recipe.shared_features),
    )


def _check_weights(trial: TrialPart, members: bytes, part: FilePart) -> None:
    name, policy = trial.file, trial.policy
    check_file(name, members, part)
    found = read_policy(members, name)
    hidden = found.members[0].spec.hidden
    if found.discrete:
        raise InputError(
            f"{name} holds members that choose one of several actions; the crypto environment "
            "needs members that return a number per ticker"
        )
    if found.size != policy.members:
        raise InputError(f"{name} holds {found.size} members, not {policy.members}")
    if hidden != policy.hidden:
        raise InputError(
            f"the members' hidden layers are {list(hidden)}, not {list(policy.hidden)}"
        )
    if (found.state_dim, found.action_dim) != (policy.state_dim, policy.action_dim):
        raise InputError(
            f"the members map {found.state_dim} numbers to {found.action_dim} actions, not "
            f"{policy.state_dim} to {policy.action_dim}"
        )


def _check_meaning(bundle: Bundle) -> None:
    manifest = bundle.manifest
    for field, text in (
        ("last_seen_bar", manifest.last_seen_bar),
        ("data.first", manifest.data.first),
        ("data.last", manifest.data.last),
    ):
        try:
            moment = parse_time(text)
        except ValueError as error:
            raise InputError(
                f"{field} is {text!r}, not a time like 2024-08-01T13:00:00Z"
            ) from error
        if not on_grid(manifest.timeframe, np.array([moment])).item():
            raise InputError(f"{field} {text} is not the open of a bar of {manifest.timeframe}")
    fields = {field.name for field in dataclasses.fields(EnvParams)}
    for given in (part.env_params for part in manifest.trials):
        # Bundles without shorts do not have their parameters.
        for name in sorted(fields - set(given) - set(SHORTS)):
            raise InputError(f"env_params lacks {name}")
        for name in sorted(set(given) - fields):
            raise InputError(f"env_params has the unknown {name}")
    _ = bundle.instruments  # checks its own values, like `bundle.trials`
    if len(bundle.trials) > 1 and bundle.account.allow_short:
        raise InputError(NO_SHORT_ENSEMBLES)
    for params in (trial.params for trial in bundle.trials):
        if params.lookback > bundle.max_lookback:
            raise InputError(
                f"lookback {params.lookback} is above the policy's maximum {bundle.max_lookback}"
            )
    # A recipe with the same name but other features would feed the policy other numbers.
    recipe = get_recipe(manifest.recipe.name)
    if recipe_part(recipe) != manifest.recipe:
        raise InputError(
            f"feature recipe {recipe.name!r} has version {manifest.recipe.version} in the bundle "
            f"and version {recipe.version} here, or computes other features; use the version of "
            "sweepd that made the bundle"
        )
