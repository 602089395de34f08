"""The bundle: the self-contained, content-addressed folder that is deployed.

A bundle is a folder of two files, named by the first 16 hex digits of its hash:

    bundle.json           everything needed to act that is not a tensor, as canonical JSON (sorted keys, one layout)
    members.safetensors   the weights and normalisers of the policy's members, byte for byte as they were scored

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
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agents.policy import FrozenPolicy, load_members
from envs.crypto.features import Recipe, get_recipe
from envs.crypto.params import EnvParams, Instruments
from envs.crypto.timeframe import bar_seconds
from envs.errors import InputError, RunError
from envs.files import write_atomic

FORMAT: Final = "sweepd-bundle"
FORMAT_VERSION = 1
MANIFEST_FILE = "bundle.json"
MEMBERS_FILE = "members.safetensors"
NAME_DIGITS = 16


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class RecipePart(_Part):
    """The feature recipe, in full: a recipe of the same name that computes other features is refused."""

    name: str
    version: int
    memory: int = Field(gt=0)
    asset_features: tuple[str, ...]
    shared_features: tuple[str, ...]


class PolicyPart(_Part):
    """The policy: an ensemble, mean of the members' post-tanh actions, each through its own normaliser, rounded to
    1e-6.
    """

    algorithm: str
    members: int = Field(gt=0)
    state_dim: int = Field(gt=0)
    action_dim: int = Field(gt=0)
    max_lookback: int = Field(gt=0)
    hidden: tuple[int, ...]


class OriginPart(_Part):
    """Which study and trial the members come from, and with what parameters they were trained."""

    study: str
    study_uid: str
    trial: int = Field(ge=0)
    seed: int
    objective: str
    objective_value: float
    parameters: dict[str, bool | int | float | str | None]
    ppo_params: dict[str, bool | int | float | str | None]


class DataPart(_Part):
    """The bars that it was made with. Times are bar opens, UTC."""

    fingerprint: str
    first: str
    last: str
    synthetic: bool


class FilePart(_Part):
    """What a file of the bundle must be."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(gt=0)


class Manifest(_Part):
    """All of `bundle.json` but its hash.

    metrics describe the *members* in cross-validation; the hold-out numbers, of the ensemble, are in `gate`.
    last_seen_bar: open (UTC) of the newest bar that training or cross-validated selection used.
    symbols: by venue, what each ticker is called there.
    """

    format: Literal["sweepd-bundle"] = FORMAT
    format_version: int = FORMAT_VERSION
    environment: Literal["crypto"] = "crypto"
    tickers: tuple[str, ...] = Field(min_length=1)
    symbols: dict[str, dict[str, str]]
    timeframe: str
    recipe: RecipePart
    env_params: dict[str, Any]
    minimum_order: tuple[float, ...]
    increment: tuple[float, ...]
    policy: PolicyPart
    origin: OriginPart
    data: DataPart
    last_seen_bar: str
    metrics: dict[str, Any]
    gate: dict[str, Any]
    code_version: str
    torch_version: str
    files: dict[str, FilePart]

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        count = len(self.tickers)
        if len(set(self.tickers)) != count:
            raise ValueError("tickers are listed twice")
        if len(self.minimum_order) != count or len(self.increment) != count:
            raise ValueError(f"minimum_order and increment must have one number for each of the {count} tickers")
        if self.policy.action_dim != count:
            raise ValueError(f"the policy acts on {self.policy.action_dim} assets but {count} tickers are listed")
        market = count * len(self.recipe.asset_features) + len(self.recipe.shared_features)
        expected = 1 + 3 * count + self.policy.max_lookback * market
        if self.policy.state_dim != expected:
            raise ValueError(
                f"the policy reads {self.policy.state_dim} numbers but its tickers and recipe give {expected}"
            )
        for venue, names in self.symbols.items():
            if set(names) != set(self.tickers):
                raise ValueError(f"symbols of {venue} must name exactly the tickers")
        if set(self.files) != {MEMBERS_FILE}:
            raise ValueError(f"files must list {MEMBERS_FILE} and nothing else")
        return self


@dataclass(frozen=True)
class Bundle:
    """A loaded bundle: its hash (64 hex digits), manifest, and the bytes of its members' weights."""

    hash: str
    manifest: Manifest
    members: bytes

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.hash[:NAME_DIGITS]

    @cached_property
    def params(self) -> EnvParams:
        """The environment parameters; fees, slippage, minimum order and initial cash are among them."""
        return EnvParams(**self.manifest.env_params)

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
        """What identifies the weights, whatever else the bundle says about them."""
        return self.manifest.files[MEMBERS_FILE].sha256

    @cached_property
    def policy(self) -> FrozenPolicy:
        """The canonical policy, from these very bytes. Raises InputError where they are no actors."""
        return read_policy(self.members)[0]


def format_time(seconds: int) -> str:
    """Seconds since the epoch as UTC text, `2024-08-01T13:00:00Z`."""
    return dt.datetime.fromtimestamp(int(seconds), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> int:
    """The inverse of `format_time`. Raises ValueError for any other text."""
    return int(dt.datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=dt.UTC).timestamp())


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


def make_bundle(manifest: Manifest, members: bytes) -> Bundle:
    """A bundle in memory, checked like one from disk.

    members: content of `members.safetensors`; `manifest.files` must already describe it.
    Raises InputError where the two don't fit.
    """
    content = manifest.model_dump(mode="json")
    bundle = Bundle(hash=sha256(canonical_json(content).encode()), manifest=manifest, members=members)
    _check(bundle, "bundle")
    return bundle


def describe_members(members: bytes) -> dict[str, FilePart]:
    """The `files` entry for these weights."""
    return {MEMBERS_FILE: FilePart(sha256=sha256(members), size=len(members))}


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
        write_atomic(temporary / MEMBERS_FILE, bundle.members)
        for name in (MANIFEST_FILE, MEMBERS_FILE):
            (temporary / name).chmod(0o444)
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
    for name in (MANIFEST_FILE, MEMBERS_FILE):
        if name not in present:
            raise InputError(f"bundle {path} lacks its file {name}")
    extra = sorted(present - {MANIFEST_FILE, MEMBERS_FILE})
    if extra:
        raise InputError(f"bundle {path} holds a file that is no part of it: {extra[0]}")
    try:
        text = (path / MANIFEST_FILE).read_bytes()
        members = (path / MEMBERS_FILE).read_bytes()
    except OSError as error:
        raise InputError(f"bundle {path} cannot be read: {error.strerror or error}") from error
    manifest_path = path / MANIFEST_FILE
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
    if content.get("format") != FORMAT or version != FORMAT_VERSION:
        raise InputError(
            f"{manifest_path} is of format {content.get('format')!r} version {version!r}; this program reads "
            f"{FORMAT!r} version {FORMAT_VERSION}"
        )
    try:
        manifest = Manifest.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise InputError(f"{manifest_path} is not a valid bundle: {_first_fault(error)}") from error
    bundle = Bundle(hash=claimed, manifest=manifest, members=members)
    _check(bundle, f"bundle {path}")
    return bundle


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


def read_policy(members: bytes) -> tuple[FrozenPolicy, tuple[int, ...]]:
    """The policy and its hidden sizes (of member 0), from the content of `members.safetensors`. Raises InputError.

    Through a private file: a second read of the bundle's own could differ from the bytes that were hashed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / MEMBERS_FILE
        path.write_bytes(members)
        try:
            loaded = load_members(path)
            policy = FrozenPolicy(loaded)
        except InputError as error:
            raise InputError(str(error).replace(str(path), MEMBERS_FILE)) from error
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
    part, policy = bundle.manifest.files[MEMBERS_FILE], bundle.manifest.policy
    if len(bundle.members) != part.size or sha256(bundle.members) != part.sha256:
        raise InputError(
            f"{MEMBERS_FILE} has been changed since it was scored: its sha256 is not {part.sha256[:NAME_DIGITS]}…"
        )
    found, hidden = read_policy(bundle.members)
    if found.size != policy.members:
        raise InputError(f"{MEMBERS_FILE} holds {found.size} members, not {policy.members}")
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
    for name in sorted(fields - set(manifest.env_params)):
        raise InputError(f"env_params lacks {name}")
    for name in sorted(set(manifest.env_params) - fields):
        raise InputError(f"env_params has the unknown {name}")
    params, _ = bundle.params, bundle.instruments  # each checks its own ranges
    if params.lookback > manifest.policy.max_lookback:
        raise InputError(f"lookback {params.lookback} is more than the policy's maximum {manifest.policy.max_lookback}")
    recipe = get_recipe(manifest.recipe.name)
    if recipe_part(recipe) != manifest.recipe:
        raise InputError(
            f"feature recipe {recipe.name!r} is version {manifest.recipe.version} there and version "
            f"{recipe.version} here, "
            "or computes other features; use the version of sweepd that made the bundle"
        )
