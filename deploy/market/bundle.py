"""The bundle of a policy that trades: the self-contained, content-addressed folder that is deployed.

What its folder holds: `deploy.registry.bundle_files`. A bundle of several trials, each of which trades a share of the capital as
a sub-account, has one file of weights per trial: `members-000.safetensors`, … docs/bundle.md describes the format for
other programs.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from agents.policy.frozen import FrozenPolicy
from deploy.market.manifest import (
    FORMAT,
    EnsembleManifest,
    Manifest,
    OriginPart,
    PolicyPart,
    RecipePart,
    TrialPart,
)
from deploy.registry.bundle_files import (
    MARKET,
    MEMBERS_FILE,
    BundleFacts,
    FilePart,
    StoredBundle,
    check_file,
    new_bundle,
    read_bundle,
    read_members,
    sha256,
)
from envs.crypto.features import Recipe, get_recipe
from envs.crypto.params import EnvParams, Instruments
from envs.crypto.timeframe import bar_seconds
from envs.support.errors import InputError


@dataclass(frozen=True)
class Trial:
    """One trial of a bundle: the share of the capital that it trades, its environment parameters, its policy (an
    ensemble of its members), and where it comes from.
    """

    share: float
    params: EnvParams
    policy: FrozenPolicy
    described: PolicyPart
    origin: OriginPart


@dataclass(frozen=True)
class Bundle(StoredBundle[Manifest | EnsembleManifest]):
    """A loaded bundle of a policy that trades."""

    kind = MARKET
    format = FORMAT
    versions = {1: Manifest, 2: EnsembleManifest}  # noqa: RUF012 (declared as a class variable)

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """What acts, from these very bytes. Raises InputError where they are no actors."""
        return tuple(
            Trial(
                share=part.share,
                params=EnvParams(**part.env_params),
                policy=read_policy(self.files[part.file], part.file)[0],
                described=part.policy,
                origin=part.origin,
            )
            for part in self.manifest.trials
        )

    @property
    def account(self) -> EnvParams:
        """Where fee, slippage, minimum order and initial cash of the account are found: all its trials have the same.
        Of a single trial, all there is to know of its environment.
        """
        return self.trials[0].params

    @property
    def max_lookback(self) -> int:
        """Lags that the observations are padded to."""
        return self.manifest.trials[0].policy.max_lookback

    @property
    def origin(self) -> OriginPart:
        """Where the (first) trial comes from."""
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
        """What identifies the weights, and the shares of several trials, whatever else the bundle says about them."""
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

    def check(self) -> None:
        """Raises InputError for weights that do not fit the manifest, and for what makes no sense."""
        for trial in self.manifest.trials:
            _check_weights(trial, self.files[trial.file], self.manifest.files[trial.file])
        _check_meaning(self)


def format_time(seconds: int) -> str:
    """Seconds since the epoch as UTC text, `2024-08-01T13:00:00Z`."""
    return dt.datetime.fromtimestamp(int(seconds), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> int:
    """The inverse of `format_time`. Raises ValueError for any other text."""
    return int(dt.datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=dt.UTC).timestamp())


def parse_moment(text: str, flag: str) -> int:
    """A time as people write it, UTC unless it says otherwise, in seconds since the epoch. Raises InputError naming
    the flag.
    """
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(
            f"{flag} {text!r} is not a time like 2024-08-01 or 2024-08-01T13:00"
        ) from error
    moment = moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment
    return int(moment.timestamp())


def make_bundle(manifest: Manifest | EnsembleManifest, files: Mapping[str, bytes]) -> Bundle:
    """A bundle in memory, checked like one from disk.

    files: content of the files of weights; `manifest.files` must already describe them. Raises InputError where the
    two don't fit.
    """
    return new_bundle(Bundle, manifest, files)


def load_bundle(path: Path, *, expected: str | None = None) -> Bundle:
    """Read and check a bundle that trades.

    expected: the hash that it must have (a registry knows it).
    Raises InputError, one sentence naming the file and what is wrong, for anything missing, added, changed or not
    understood.
    """
    return read_bundle(path, (Bundle,), expected=expected)


def default_symbols(tickers: tuple[str, ...], *, synthetic: bool) -> dict[str, dict[str, str]]:
    """What `tickers` are called on other venues: on Alpaca, dollars stand for dollar-pegged coins. None for a
    synthetic market.
    """
    if synthetic or not all("/" in ticker for ticker in tickers):
        return {}
    pegged = {"USDT", "USDC", "BUSD", "FDUSD", "TUSD"}
    names = {}
    for ticker in tickers:
        base, quote = ticker.split("/", 1)
        names[ticker] = f"{base}/{'USD' if quote in pegged else quote}"
    return {"alpaca": names}


def read_policy(members: bytes, name: str = MEMBERS_FILE) -> tuple[FrozenPolicy, tuple[int, ...]]:
    """The policy and its hidden sizes (of member 0), from the content of a file of weights. Raises InputError naming
    it.
    """
    loaded = read_members(members, name)
    policy = FrozenPolicy(loaded)
    widths = {
        int(name.split(".")[1]): tensor.shape[0]
        for name, tensor in loaded[0].items()
        if name.startswith("net.") and name.endswith(".bias")
    }
    return policy, tuple(widths[index] for index in sorted(widths))[:-1]


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
    found, hidden = read_policy(members, name)
    if found.discrete:
        raise InputError(
            f"{name} holds members that choose one of several actions; the crypto environment needs members that give "
            "a number per ticker"
        )
    if found.size != policy.members:
        raise InputError(f"{name} holds {found.size} members, not {policy.members}")
    if hidden != policy.hidden:
        raise InputError(
            f"the members' hidden layers are {list(hidden)}, not {list(policy.hidden)}"
        )
    if (found.state_dim, found.action_dim) != (policy.state_dim, policy.action_dim):
        raise InputError(
            f"the members map {found.state_dim} numbers to {found.action_dim} actions, not {policy.state_dim} to "
            f"{policy.action_dim}"
        )


def _check_meaning(bundle: Bundle) -> None:
    manifest = bundle.manifest
    seconds = bar_seconds(manifest.timeframe)
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
        if moment % seconds:
            raise InputError(f"{field} {text} is not the open of a bar of {manifest.timeframe}")
    fields = {field.name for field in dataclasses.fields(EnvParams)}
    for given in (part.env_params for part in manifest.trials):
        for name in sorted(fields - set(given)):
            raise InputError(f"env_params lacks {name}")
        for name in sorted(set(given) - fields):
            raise InputError(f"env_params has the unknown {name}")
    trials, _ = bundle.trials, bundle.instruments  # each checks its own ranges
    for params in (trial.params for trial in trials):
        if params.lookback > bundle.max_lookback:
            raise InputError(
                f"lookback {params.lookback} is more than the policy's maximum {bundle.max_lookback}"
            )
    recipe = get_recipe(manifest.recipe.name)
    if recipe_part(recipe) != manifest.recipe:
        raise InputError(
            f"feature recipe {recipe.name!r} is version {manifest.recipe.version} there and version "
            f"{recipe.version} here, "
            "or computes other features; use the version of sweepd that made the bundle"
        )
