"""Bundles of all kinds: immutable folders that are named by the hash of their content.

A bundle is a folder of two or more files, named by the first 16 hex digits of its hash:

    bundle.json           everything needed to act except tensors, as canonical JSON
    members.safetensors   weights and normalisers of the policy's members, as they were scored
    files/                instead of weights: the files of a program

`bundle.json` has the size and sha256 of each other file, and `hash`: the sha256 of its own
canonical text without that field. So one changed byte is detected in any copy of the folder. The
files are read-only and never changed after they are written. Files of a program may be larger than
memory: they are hashed and copied in pieces.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, Self, TypeVar

from pydantic import Field, ValidationError

from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.files import sync_folder, write_atomic
from sweepd.envs.support.validation import StrictModel, first_fault

if TYPE_CHECKING:
    pass

MANIFEST_FILE, MEMBERS_FILE = "bundle.json", "members.safetensors"
NAME_DIGITS = 16
PIECE = 2**20  # bytes that are read at once
Kind = Literal["market", "game", "program"]
MARKET: Final = "market"
GAME: Final = "game"
PROGRAM: Final = "program"
KINDS: Final[tuple[Kind, ...]] = (MARKET, GAME, PROGRAM)
# Of the kinds that do not trade: what a slot does, and the command that shows it.
UNTRADED: Final[Mapping[Kind, tuple[str, str]]] = {
    GAME: ("plays a game", "sweepd play"),
    PROGRAM: ("holds the files of a program", "sweepd registry show"),
}


class FilePart(StrictModel):
    """Hash and size of a file."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(ge=0)


class BaseManifest(StrictModel):
    """Fields of every `bundle.json`. files: all other files, by their path in the bundle."""

    gate: dict[str, Any]
    code_version: str
    torch_version: str
    files: dict[str, FilePart]


@dataclass(frozen=True)
class BundleFacts:
    """What the registry records about a bundle.

    Attributes:
        environment: the environment or game that the policy acts in.
        study: name of the study that trained it.
        study_uid: unique id of that study.
        trial: number of its (first) trial.
        timeframe: length of a bar, markets only.
        tickers: traded assets, markets only.
        last_seen: open of the newest bar used in training or selection (seconds), markets only.
    """

    environment: str
    study: str
    study_uid: str
    trial: int
    timeframe: str | None = None
    tickers: tuple[str, ...] | None = None
    last_seen: int | None = None


@dataclass(frozen=True)
class TrainedTrial:
    """A trial whose weights, or some of them, a bundle holds.

    Attributes:
        study: name of its study.
        study_uid: unique id of that study.
        trial: its number.
    """

    study: str
    study_uid: str
    trial: int


ManifestT = TypeVar("ManifestT", bound=BaseManifest, covariant=True)


@dataclass(frozen=True)
class StoredBundle(ABC, Generic[ManifestT]):
    """A loaded bundle.

    Attributes:
        kind: the kind of study that it is of.
        format: the `format` field of its manifests.
        versions: manifest models by `format_version`.
        streamed: whether `files` has the paths of the files instead of their bytes.
        hash: sha256 of the manifest, 64 hex digits.
        manifest: the content of `bundle.json`, without the hash.
        files: bytes, or paths, of the other files, by their path in the bundle.
    """

    kind: ClassVar[Kind]
    format: ClassVar[str]
    versions: ClassVar[Mapping[int, type[BaseManifest]]]
    streamed: ClassVar[bool] = False

    hash: str
    manifest: ManifestT
    files: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.hash[:NAME_DIGITS]

    @property
    @abstractmethod
    def members_sha256(self) -> str:
        """Identity of the weights, independent of the rest of the manifest."""

    @property
    @abstractmethod
    def facts(self) -> BundleFacts:
        """What the registry records about it."""

    @property
    @abstractmethod
    def trained(self) -> tuple[TrainedTrial, ...]:
        """The trials that it comes from; InputError if they are not trained by sweepd."""

    @abstractmethod
    def retrained(self, contents: Sequence[bytes]) -> Self:
        """Return it with the weights of other files of `trained`, in order. Its hash is the old one."""

    @abstractmethod
    def check(self) -> None:
        """Check that weights and manifest fit each other.

        Raises:
            InputError: they do not, or the manifest's values make no sense here.
        """


BundleT = TypeVar("BundleT", bound=StoredBundle[Any])


def sha256(content: bytes) -> str:
    """The sha256 of `content` as hex digits."""
    return hashlib.sha256(content).hexdigest()


def finite(value: Any) -> Any:
    """Convert `value` for JSON: tuples become lists, and non-finite numbers become None."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def canonical_json(content: Mapping[str, Any]) -> str:
    """The canonical JSON text: sorted keys, fixed indentation, ASCII, shortest exact floats."""
    return json.dumps(content, sort_keys=True, indent=1, allow_nan=False) + "\n"


def describe_files(files: Mapping[str, bytes]) -> dict[str, FilePart]:
    """The manifest's `files` entry for these files of weights."""
    return {
        name: FilePart(sha256=sha256(content), size=len(content)) for name, content in files.items()
    }


def describe_file(path: Path) -> FilePart:
    """The manifest's entry for a file, which is read in pieces. Raises OSError."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        return FilePart(sha256=found, size=file.tell())


def new_bundle(
    kind: type[BundleT], manifest: BaseManifest, files: Mapping[str, bytes | Path]
) -> BundleT:
    """Make a bundle in memory, with the same checks as one read from disk.

    Files that are given by their paths are checked when the bundle is written.

    Args:
        kind: class of the bundle.
        manifest: its manifest, whose `files` must describe `files`.
        files: see `StoredBundle`.

    Raises:
        InputError: manifest and files do not fit each other.
    """
    content = manifest.model_dump(mode="json")
    bundle = kind(
        hash=sha256(canonical_json(content).encode()), manifest=manifest, files=dict(files)
    )
    _check(bundle, "bundle")
    return bundle


def write_bundle(bundle: StoredBundle[BaseManifest], folder: Path) -> Path:
    """Write `bundle` into `folder` under its own name, atomically.

    An existing folder of that name is verified and kept, since bundles are immutable.

    Returns:
        The bundle's folder.

    Raises:
        InputError: a file that is given by its path is not the one that the manifest describes.
        RunError: the file system refuses.
    """
    path = folder / bundle.name
    if path.exists():
        read_bundle(path, (type(bundle),), expected=bundle.hash)
        return path
    try:
        _write_new(bundle, path, writable=False)
    except OSError as error:
        raise RunError(f"bundle {path} cannot be written: {error.strerror or error}") from error
    return path


@contextmanager
def staged(bundle: StoredBundle[BaseManifest], folder: Path) -> Iterator[Callable[[], Path]]:
    """Provide a function that does what `write_bundle` does, in a transaction.

    Large files are copied before the transaction, so that it does not keep other writers waiting.

    Raises:
        InputError: see `write_bundle`.
    """
    path, temporary = folder / bundle.name, None
    if bundle.streamed and not path.exists():
        # `clear_garbage` may remove a folder that waits; then it is written in the transaction.
        with suppress(OSError):
            temporary = _write_temporary(bundle, folder, writable=False)

    def write() -> Path:
        if temporary is not None and not path.exists():
            with suppress(OSError):
                temporary.rename(path)
                sync_folder(folder)
                return path
        return write_bundle(bundle, folder)

    try:
        yield write
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def export_bundle(bundle: StoredBundle[BaseManifest], path: Path) -> None:
    """Write a copy of `bundle` for other programs, as the new folder `path`, atomically.

    Raises:
        InputError: the folder exists, or cannot be written.
    """
    if path.exists():
        raise InputError(f"--out {path} exists; name a folder that does not, which will be created")
    try:
        _write_new(bundle, path, writable=True)
    except OSError as error:
        raise InputError(f"--out {path} cannot be written: {error.strerror or error}") from error


def _write_new(bundle: StoredBundle[BaseManifest], path: Path, *, writable: bool) -> None:
    """Write a bundle as the folder `path`. writable: whether its files may be changed."""
    temporary = _write_temporary(bundle, path.parent, writable=writable)
    try:
        try:
            temporary.rename(path)
        except OSError:  # a concurrent promotion wrote the same bundle first
            read_bundle(path, (type(bundle),), expected=bundle.hash)
        sync_folder(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_temporary(bundle: StoredBundle[BaseManifest], folder: Path, *, writable: bool) -> Path:
    """Write a bundle into a new hidden folder of `folder`, which is removed if that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{bundle.name}.", suffix=".tmp", dir=folder))
    try:
        temporary.chmod(0o755)
        content = bundle.manifest.model_dump(mode="json") | {"hash": bundle.hash}
        write_atomic(temporary / MANIFEST_FILE, canonical_json(content))
        for name, file in bundle.files.items():
            copy = partial(_copy, file, bundle.manifest.files[name])
            write_atomic(temporary / name, copy if isinstance(file, Path) else file)
        for item in temporary.rglob("*"):
            if item.is_dir():
                sync_folder(item)
            elif not writable:
                item.chmod(0o444)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return temporary


def read_bundle(
    path: Path, kinds: Sequence[type[BundleT]], *, expected: str | None = None
) -> BundleT:
    """Read and check a bundle.

    Args:
        path: its folder.
        kinds: the bundle classes that are accepted.
        expected: the hash that it must have, known from a registry.

    Raises:
        InputError: a file is missing, added or changed, or the manifest is not understood.
    """
    if not path.is_dir():
        raise InputError(
            f"bundle {path} does not exist (expected a folder with {MANIFEST_FILE} and "
            f"{MEMBERS_FILE})"
        )
    entries = [one for one in path.rglob("*") if one.is_symlink() or not one.is_dir()]
    present = {one.relative_to(path).as_posix() for one in entries}
    _require(path, present, (MANIFEST_FILE,))
    manifest_path = path / MANIFEST_FILE
    text = _read(path, MANIFEST_FILE)
    content = _parse(text, manifest_path)
    claimed = content.pop("hash", None)
    if not isinstance(claimed, str):
        raise InputError(f"{manifest_path} lacks its hash")
    # The text must be the canonical one: equal content in another spelling would have this hash.
    if (
        canonical_json(content | {"hash": claimed}).encode() != text
        or sha256(canonical_json(content).encode()) != claimed
    ):
        raise InputError(
            f"{manifest_path} has been changed since it was written: its content does not have the "
            f"hash {claimed[:NAME_DIGITS]}…"
        )
    if expected is not None and claimed != expected:
        raise InputError(
            f"bundle {path} is not the one registered: its hash is {claimed[:NAME_DIGITS]}…, not "
            f"{expected[:NAME_DIGITS]}…"
        )
    kind, model = _model(content, kinds, manifest_path)
    # Strict models accept JSON arrays as tuples only when they parse JSON text.
    try:
        manifest = model.model_validate_json(json.dumps(content))
    except ValidationError as error:
        fault = first_fault(error, model)
        raise InputError(f"{manifest_path} is not a valid bundle: {fault}") from error
    names = tuple(manifest.files)
    _require(path, present, names)
    extra = sorted(present - {MANIFEST_FILE, *names})
    if extra:
        raise InputError(f"bundle {path} holds a file that does not belong to it: {extra[0]}")
    files: dict[str, Any] = {
        name: path / name if kind.streamed else _read(path, name) for name in names
    }
    if kind.streamed:
        for name in names:
            _check_stored(path, name, manifest.files[name])
    bundle = kind(hash=claimed, manifest=manifest, files=files)
    _check(bundle, f"bundle {path}")
    return bundle


def _model(
    content: Mapping[str, Any], kinds: Sequence[type[BundleT]], path: Path
) -> tuple[type[BundleT], type[BaseManifest]]:
    """The bundle class and the manifest model for a parsed `bundle.json`."""
    form, version = content.get("format"), content.get("format_version")
    for kind in kinds:
        if form == kind.format and type(version) is int and version in kind.versions:
            return kind, kind.versions[version]
    known = ", or ".join(
        f"{kind.format!r} version{'s' if len(kind.versions) > 1 else ''} "
        + " and ".join(str(number) for number in kind.versions)
        for kind in kinds
    )
    raise InputError(f"{path} is of format {form!r} version {version!r}; expected {known}")


def check_file(name: str, content: bytes | FilePart, part: FilePart) -> None:
    """Raise InputError if a file does not have the recorded size and hash.

    Args:
        name: the file's name, for the message.
        content: its bytes, or what `describe_file` found.
        part: the record.
    """
    if isinstance(content, bytes):
        content = FilePart(sha256=sha256(content), size=len(content))
    if content != part:
        raise InputError(
            f"{name} has been changed since it was scored: its sha256 is not "
            f"{part.sha256[:NAME_DIGITS]}…"
        )


def _check_stored(path: Path, name: str, part: FilePart) -> None:
    try:
        found = describe_file(path / name)
    except OSError as error:
        raise InputError(f"bundle {path} cannot be read: {error.strerror or error}") from error
    try:
        check_file(name, found, part)
    except InputError as error:
        raise InputError(f"bundle {path}: {error}") from error


def _copy(source: Path, part: FilePart, target: Path) -> None:
    """Copy a file in pieces, and check that the bytes that were copied are those of the record."""
    digest, size = hashlib.sha256(), 0
    with source.open("rb") as file, target.open("wb") as copy:
        while piece := file.read(PIECE):
            digest.update(piece)
            size += copy.write(piece)
    check_file(str(source), FilePart(sha256=digest.hexdigest(), size=size), part)


def unchecked_manifest(path: Path) -> dict[str, Any]:
    """Return a bundle's manifest without checking the bundle; empty if it cannot be read."""
    try:
        return _parse(_read(path, MANIFEST_FILE), path / MANIFEST_FILE)
    except InputError:
        return {}


def _require(path: Path, present: set[str], names: Sequence[str]) -> None:
    for name in names:
        if name not in present:
            raise InputError(f"bundle {path} lacks its file {name}")


def _read(path: Path, name: str) -> bytes:
    try:
        return (path / name).read_bytes()
    except OSError as error:
        raise InputError(f"bundle {path} cannot be read: {error.strerror or error}") from error


def _parse(text: bytes, path: Path) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        content = json.loads(text.decode("ascii"), parse_constant=refuse)
        canonical_json({"": content})  # raises where it is nested too deep to be written again
    except (UnicodeDecodeError, ValueError) as error:
        raise InputError(f"{path} is not JSON as written by this program ({error})") from error
    except RecursionError:
        raise InputError(
            f"{path} is not JSON as written by this program (nested too deep)"
        ) from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a JSON object")
    return content


def _check(bundle: StoredBundle[BaseManifest], where: str) -> None:
    try:
        bundle.check()
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
