"""What bundles of every kind have in common: folders that are named by what they contain, and never changed.

A bundle is a folder of two or more files, named by the first 16 hex digits of its hash:

    bundle.json           everything needed to act that is not a tensor, as canonical JSON (sorted keys, one layout)
    members.safetensors   the weights and normalisers of the policy's members, byte for byte as they were scored

`bundle.json` names the size and sha256 of the weights, and carries `hash`: the sha256 of its own canonical text without
that field. So one changed byte anywhere is found, wherever the folder has been copied to. Bundles are never changed
once written, and their files are read-only.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from agents.policy.frozen import load_members
from envs.support.errors import InputError, RunError
from envs.support.files import write_atomic

MANIFEST_FILE, MEMBERS_FILE = "bundle.json", "members.safetensors"
NAME_DIGITS = 16


class Part(BaseModel):
    """A part of a manifest: nothing unknown, nothing converted, no number that is not finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class FilePart(Part):
    """What a file of the bundle must be."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(gt=0)


class AnyManifest(Part):
    """What every kind of `bundle.json` says. files: all its files of weights."""

    gate: dict[str, Any]
    code_version: str
    torch_version: str
    files: dict[str, FilePart]


@dataclass(frozen=True)
class Registered:
    """What a registry notes of a bundle, whatever its kind. last_seen, tickers, timeframe: of markets."""

    environment: str
    study: str
    study_uid: str
    trial: int
    timeframe: str = ""
    tickers: tuple[str, ...] = ()
    last_seen: int = 0


Manifest_ = TypeVar("Manifest_", bound=AnyManifest, covariant=True)


@dataclass(frozen=True)
class StoredBundle(ABC, Generic[Manifest_]):
    """A loaded bundle: its hash (64 hex digits), manifest, and the bytes of its files of weights by name.

    format, versions: what its manifest calls itself, and the models that read it, by version.
    """

    format: ClassVar[str]
    versions: ClassVar[Mapping[int, type[AnyManifest]]]

    hash: str
    manifest: Manifest_
    files: Mapping[str, bytes]

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.hash[:NAME_DIGITS]

    @property
    @abstractmethod
    def members_sha256(self) -> str:
        """What identifies the weights, whatever else the bundle says about them."""

    @property
    @abstractmethod
    def registered(self) -> Registered:
        """What a registry notes of it."""

    @abstractmethod
    def check(self) -> None:
        """Raise InputError for anything that can be wrong although manifest and bytes have the right form."""


Kind = TypeVar("Kind", bound=StoredBundle[Any])


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


def describe_files(files: Mapping[str, bytes]) -> dict[str, FilePart]:
    """The manifest's `files` for these weights."""
    return {
        name: FilePart(sha256=sha256(content), size=len(content)) for name, content in files.items()
    }


def new_bundle(kind: type[Kind], manifest: AnyManifest, files: Mapping[str, bytes]) -> Kind:
    """A bundle in memory, checked like one from disk.

    files: content of the files of weights; `manifest.files` must already describe them. Raises InputError where the
    two don't fit.
    """
    content = manifest.model_dump(mode="json")
    bundle = kind(
        hash=sha256(canonical_json(content).encode()), manifest=manifest, files=dict(files)
    )
    _check(bundle, "bundle")
    return bundle


def write_bundle(bundle: StoredBundle[AnyManifest], folder: Path) -> Path:
    """Write `bundle` into `folder` under its own name and return that path; whole or not at all.

    One that is there already is verified and kept: bundles are immutable. Raises RunError where the disk refuses.
    """
    path = folder / bundle.name
    if path.exists():
        read_bundle(path, (type(bundle),), expected=bundle.hash)
        return path
    try:
        _write_new(bundle, folder, path)
    except OSError as error:
        raise RunError(f"bundle {path} cannot be written: {error.strerror or error}") from error
    return path


def _write_new(bundle: StoredBundle[AnyManifest], folder: Path, path: Path) -> None:
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
            read_bundle(path, (type(bundle),), expected=bundle.hash)
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_bundle(path: Path, kinds: Sequence[type[Kind]], *, expected: str | None = None) -> Kind:
    """Read and check a bundle of one of these kinds.

    expected: the hash that it must have (a registry knows it).
    Raises InputError, one sentence naming the file and what is wrong, for anything missing, added, changed or not
    understood.
    """
    if not path.is_dir():
        raise InputError(
            f"bundle {path} is not there (a folder with {MANIFEST_FILE} and {MEMBERS_FILE} is expected)"
        )
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
    kind, model = _model(content, kinds, manifest_path)
    try:
        manifest = model.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise InputError(f"{manifest_path} is not a valid bundle: {_first_fault(error)}") from error
    names = tuple(manifest.files)
    _require(path, present, names)
    extra = sorted(present - {MANIFEST_FILE, *names})
    if extra:
        raise InputError(f"bundle {path} holds a file that is no part of it: {extra[0]}")
    bundle = kind(
        hash=claimed, manifest=manifest, files={name: _read(path, name) for name in names}
    )
    _check(bundle, f"bundle {path}")
    return bundle


def _model(
    content: Mapping[str, Any], kinds: Sequence[type[Kind]], path: Path
) -> tuple[type[Kind], type[AnyManifest]]:
    form, version = content.get("format"), content.get("format_version")
    for kind in kinds:
        if form == kind.format and type(version) is int and version in kind.versions:
            return kind, kind.versions[version]
    known = ", or ".join(
        f"{kind.format!r} version{'s' if len(kind.versions) > 1 else ''} "
        + " and ".join(str(number) for number in kind.versions)
        for kind in kinds
    )
    raise InputError(
        f"{path} is of format {form!r} version {version!r}; this program reads {known}"
    )


def read_members(content: bytes, name: str = MEMBERS_FILE) -> list[dict[str, Tensor]]:
    """The members in the content of a file of weights. Raises InputError naming it.

    Through a private file: a second read of the bundle's own could differ from the bytes that were hashed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / MEMBERS_FILE
        path.write_bytes(content)
        try:
            return load_members(path)
        except InputError as error:
            raise InputError(str(error).replace(str(path), name)) from error


def check_file(name: str, content: bytes, part: FilePart) -> None:
    """Raise InputError where a file of weights is not the one that was scored."""
    if len(content) != part.size or sha256(content) != part.sha256:
        raise InputError(
            f"{name} has been changed since it was scored: its sha256 is not {part.sha256[:NAME_DIGITS]}…"
        )


def _require(path: Path, present: set[str], names: Sequence[str]) -> None:
    for name in names:
        if name not in present:
            raise InputError(f"bundle {path} lacks its file {name}")


def _read(path: Path, name: str) -> bytes:
    try:
        return (path / name).read_bytes()
    except OSError as error:
        raise InputError(f"bundle {path} cannot be read: {error.strerror or error}") from error


def is_synthetic(path: Path) -> bool:
    """Whether the bundle in `path` says that it was trained on a made-up market; False where it cannot be read."""
    try:
        data = _parse(_read(path, MANIFEST_FILE), path / MANIFEST_FILE).get("data")
    except InputError:
        return False
    return isinstance(data, dict) and data.get("synthetic") is True


def _parse(text: bytes, path: Path) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        content = json.loads(text.decode("ascii"), parse_constant=refuse)
        canonical_json({"": content})  # written with as little nesting as it can be read with
    except (UnicodeDecodeError, ValueError) as error:
        raise InputError(f"{path} is not JSON as written by this program ({error})") from error
    except RecursionError:
        raise InputError(
            f"{path} is not JSON as written by this program (it is nested too deep)"
        ) from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a JSON object")
    return content


def _first_fault(error: ValidationError) -> str:
    fault = error.errors()[0]
    where = ".".join(str(part) for part in fault["loc"])
    message = fault["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def _check(bundle: StoredBundle[AnyManifest], where: str) -> None:
    try:
        bundle.check()
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
