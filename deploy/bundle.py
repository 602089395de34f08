"""The bundle: the self-contained, content-addressed folder that is deployed.

A bundle is a folder of two files, named by the first 16 hex digits of its hash:

    bundle.json           everything needed to act that is not a tensor, as canonical JSON (sorted keys, one layout)
    members.safetensors   the weights and normalisers of the policy's members, byte for byte as they were scored

A bundle of several trials, each of which trades a share of the capital as a sub-account, has one file of weights per
trial: `members-000.safetensors`, …

`bundle.json` names the size and sha256 of the weights, and carries `hash`: the sha256 of its own canonical text without
that field. So one changed byte anywhere is found, wherever the folder has been copied to. Bundles are never changed
once written, and their files are read-only. docs/bundle.md describes the format for other programs.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agents.policy import FrozenPolicy, load_members
from deploy.manifest import (
    FORMAT,
    MEMBERS_FILE,
    EnsembleManifest,
    FilePart,
    Manifest,
    OriginPart,
    PolicyPart,
    RecipePart,
    TrialPart,
)
from envs.crypto.features import Recipe, get_recipe
from envs.crypto.params import EnvParams, Instruments
from envs.crypto.timeframe import bar_seconds
from envs.errors import InputError, RunError
from envs.files import write_atomic

MANIFEST_FILE = "bundle.json"
NAME_DIGITS = 16
VERSIONS: Mapping[int, type[Manifest | EnsembleManifest]] = {1: Manifest, 2: EnsembleManifest}


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
class Bundle:
    """A loaded bundle: its hash (64 hex digits), manifest, and the bytes of its files of weights by name."""

    hash: str
    manifest: Manifest | EnsembleManifest
    files: Mapping[str, bytes]

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.hash[:NAME_DIGITS]

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
        return Instruments(minimum_order=self.manifest.minimum_order, increment=self.manifest.increment)

    @property
    def last_seen(self) -> int:
        """`last_seen_bar` in seconds since the epoch."""
        return parse_time(self.manifest.last_seen_bar)

    @property
    def members_sha256(self) -> str:
        """What identifies the weights, and the shares of several trials, whatever else the bundle says about them."""
        parts = [(self.manifest.files[trial.file].sha256, trial.share) for trial in self.manifest.trials]
        return parts[0][0] if len(parts) == 1 else sha256(json.dumps(parts).encode())


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
        raise InputError(f"{flag} {text!r} is not a time like 2024-08-01 or 2024-08-01T13:00") from error
    moment = moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment
    return int(moment.timestamp())


def sha256(content: bytes) -> str:
    """Hex digest."""
    return hashlib.sha256(content).hexdigest()


def finite(value: Any) -> Any:
    """`value` ready for JSON: tuples as lists, and a number that is not finite as None (JSON has none)."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def canonical_json(content: Mapping[str, Any]) -> str:
    """The one text of these values: sorted keys, one indentation, ASCII, shortest floats that round-trip, a final
    newline.
    """
    return json.dumps(content, sort_keys=True, indent=1, allow_nan=False) + "\n"


def make_bundle(manifest: Manifest | EnsembleManifest, files: Mapping[str, bytes]) -> Bundle:
    """A bundle in memory, checked like one from disk.

    files: content of the files of weights; `manifest.files` must already describe them. Raises InputError where the
    two don't fit.
    """
    content = manifest.model_dump(mode="json")
    bundle = Bundle(hash=sha256(canonical_json(content).encode()), manifest=manifest, files=dict(files))
    _check(bundle, "bundle")
    return bundle


def describe_files(files: Mapping[str, bytes]) -> dict[str, FilePart]:
    """The manifest's `files` for these weights."""
    return {name: FilePart(sha256=sha256(content), size=len(content)) for name, content in files.items()}


def write_bundle(bundle: Bundle, folder: Path) -> Path:
    """Write `bundle` into `folder` under its own name and return that path; whole or not at all.

    One that is there already is verified and kept: bundles are immutable. Raises RunError where the disk refuses.
    """
    path = folder / bundle.name
    if path.exists():
        load_bundle(path, expected=bundle.hash)
        return path
    try:
        _write_new(bundle, folder, path)
    except OSError as error:
        raise RunError(f"bundle {path} cannot be written: {error.strerror or error}") from error
    return path


def _write_new(bundle: Bundle, folder: Path, path: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{bundle.name}.", suffix=".tmp", dir=folder))
    try:
        temporary.chmod(0o755)
        content = bundle.manifest.model_dump(mode="json") | {"hash": bundle.hash}
        write_atomic(temporary / MANIFEST_FILE, canonical_json(content))
        for name, weights in bundle.files.items():
            write_atomic(temporary / name, weights)
        for item in temporary.iterdir():
            item.chmod(0o444)
        try:
            temporary.rename(path)
        except OSError:  # another promoter was faster with the same content
            load_bundle(path, expected=bundle.hash)
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load_bundle(path: Path, *, expected: str | None = None) -> Bundle:
    """Read and check a bundle.

    expected: the hash that it must have (a registry knows it).
    Raises InputError, one sentence naming the file and what is wrong, for anything missing, added, changed or not
    understood.
    """
    if not path.is_dir():
        raise InputError(f"bundle {path} is not there (a folder with {MANIFEST_FILE} and {MEMBERS_FILE} is expected)")
    present = {item.name for item in path.iterdir()}
    _require(path, present, (MANIFEST_FILE,))
    manifest_path = path / MANIFEST_FILE
    text = _read(path, MANIFEST_FILE)
    content = _parse(text, manifest_path)
    claimed = content.pop("hash", None)
    if not isinstance(claimed, str):
        raise InputError(f"{manifest_path} lacks its hash")
    if (
        canonical_json(content | {"hash": claimed}).encode() != text
        or sha256(canonical_json(content).encode()) != claimed
    ):
        raise InputError(
            f"{manifest_path} has been changed since it was written: its content does not have the hash "
            f"{claimed[:NAME_DIGITS]}…"
        )
    if expected is not None and claimed != expected:
        raise InputError(
            f"bundle {path} is not the one registered: its hash is {claimed[:NAME_DIGITS]}…, not "
            f"{expected[:NAME_DIGITS]}…"
        )
    version = content.get("format_version")
    if content.get("format") != FORMAT or type(version) is not int or version not in VERSIONS:
        raise InputError(
            f"{manifest_path} is of format {content.get('format')!r} version {version!r}; this program reads "
            f"{FORMAT!r} versions {' and '.join(str(known) for known in VERSIONS)}"
        )
    try:
        manifest = VERSIONS[version].model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise InputError(f"{manifest_path} is not a valid bundle: {_first_fault(error)}") from error
    names = tuple(trial.file for trial in manifest.trials)
    _require(path, present, names)
    extra = sorted(present - {MANIFEST_FILE, *names})
    if extra:
        raise InputError(f"bundle {path} holds a file that is no part of it: {extra[0]}")
    bundle = Bundle(hash=claimed, manifest=manifest, files={name: _read(path, name) for name in names})
    _check(bundle, f"bundle {path}")
    return bundle


def _require(path: Path, present: set[str], names: Sequence[str]) -> None:
    for name in names:
        if name not in present:
            raise InputError(f"bundle {path} lacks its file {name}")


def _read(path: Path, name: str) -> bytes:
    try:
        return (path / name).read_bytes()
    except OSError as error:
        raise InputError(f"bundle {path} cannot be read: {error.strerror or error}") from error


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

    Through a private file: a second read of the bundle's own could differ from the bytes that were hashed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / MEMBERS_FILE
        path.write_bytes(members)
        try:
            loaded = load_members(path)
            policy = FrozenPolicy(loaded)
        except InputError as error:
            raise InputError(str(error).replace(str(path), name)) from error
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


def _parse(text: bytes, path: Path) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        content = json.loads(text.decode("ascii"), parse_constant=refuse)
    except (UnicodeDecodeError, ValueError) as error:
        raise InputError(f"{path} is not JSON as written by this program ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a JSON object")
    return content


def _first_fault(error: ValidationError) -> str:
    fault = error.errors()[0]
    where = ".".join(str(part) for part in fault["loc"])
    message = fault["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def _check(bundle: Bundle, where: str) -> None:
    """Everything that can be wrong although the manifest has the right form."""
    try:
        _check_members(bundle)
        _check_meaning(bundle)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _check_members(bundle: Bundle) -> None:
    for trial in bundle.manifest.trials:
        _check_weights(trial, bundle.files[trial.file], bundle.manifest.files[trial.file])


def _check_weights(trial: TrialPart, members: bytes, part: FilePart) -> None:
    name, policy = trial.file, trial.policy
    if len(members) != part.size or sha256(members) != part.sha256:
        raise InputError(f"{name} has been changed since it was scored: its sha256 is not {part.sha256[:NAME_DIGITS]}…")
    found, hidden = read_policy(members, name)
    if found.discrete:
        raise InputError(
            f"{name} holds members that choose one of several actions; the crypto environment needs members that give "
            "a number per ticker"
        )
    if found.size != policy.members:
        raise InputError(f"{name} holds {found.size} members, not {policy.members}")
    if hidden != policy.hidden:
        raise InputError(f"the members' hidden layers are {list(hidden)}, not {list(policy.hidden)}")
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
            raise InputError(f"{field} is {text!r}, not a time like 2024-08-01T13:00:00Z") from error
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
            raise InputError(f"lookback {params.lookback} is more than the policy's maximum {bundle.max_lookback}")
    recipe = get_recipe(manifest.recipe.name)
    if recipe_part(recipe) != manifest.recipe:
        raise InputError(
            f"feature recipe {recipe.name!r} is version {manifest.recipe.version} there and version "
            f"{recipe.version} here, "
            "or computes other features; use the version of sweepd that made the bundle"
        )
