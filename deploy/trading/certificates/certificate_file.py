"""Certificates as files: a day with all that it was computed from, and its signature.

A file is a ZIP archive without compression. It holds the certificate, the one before it, the
trader's state before the day, and the records that the certificate has hashes of. `read` finds every
byte that was changed, except in the signature, which needs the public key. It cannot show that the
venue's bars and fills, as they were recorded, are true.
"""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from sweepd.deploy.registry.bundle_files import canonical_json
from sweepd.deploy.trading.certificates.certificate import (
    Content,
    Digest,
    Record,
    check_link,
    digest_of,
    records_text,
    state_hash,
)
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.invocation import install_extra

CERTIFICATE: Final = "certificate.json"
PREVIOUS: Final = "previous.json"
STATE: Final = "state.json"
SIGNATURE: Final = "certificate.sig"
# Of records.
KINDS: Final = ("history", "bars", "adjustments", "start", "inputs", "orders", "lines")
_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest of the format: files of equal content are equal


@dataclass(frozen=True)
class CertifiedDay:
    """A certificate with what it was computed from.

    Attributes:
        content: the certificate.
        previous: the one before it; None if it is the first.
        state: the trader's, before the day.
        records: by kind, see `KINDS`.
        signature: of the certificate's file; None: it is not signed.
    """

    content: Content
    previous: Content | None
    state: Record
    records: Mapping[str, Sequence[Record]]
    signature: bytes | None = None

    def check(self) -> None:
        """Raise InputError, naming the first part that is not what the certificate says."""
        check_link(self.content, self.previous)
        if state_hash(self.state) != self.content.before:
            raise InputError("the state before the day is not the one that the certificate names")
        for kind in KINDS:
            stated: Digest = getattr(self.content, kind)
            if digest_of(self.records[kind]) != stated:
                raise InputError(f"the {kind} are not those that the certificate names")


def write(day: CertifiedDay) -> bytes:
    """Return the file of a certificate.

    Raises:
        InputError: the certificate is not one of this day.
    """
    day.check()
    texts = {CERTIFICATE: day.content.text}
    if day.previous is not None:
        texts[PREVIOUS] = day.previous.text
    texts[STATE] = canonical_json(day.state)
    texts |= {f"{kind}.json": records_text(day.records[kind]) for kind in KINDS}
    contents = {name: text.encode() for name, text in texts.items()}
    if day.signature is not None:
        contents[SIGNATURE] = day.signature
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in contents.items():
            archive.writestr(zipfile.ZipInfo(name, _TIME), content)
    return made.getvalue()


def read(file: bytes, name: str) -> CertifiedDay:
    """Return the content of a file, after checking every hash.

    Args:
        file: what `write` returned.
        name: of the file, for messages.

    Raises:
        InputError: naming the first part that was changed.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(file)) as archive:
            found = {part: archive.read(part) for part in archive.namelist()}
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, RuntimeError, ValueError):
        raise InputError(f"{name} is not the archive of a certificate, or was changed") from None
    try:
        day = CertifiedDay(
            _certificate(found, CERTIFICATE),
            _certificate(found, PREVIOUS) if PREVIOUS in found else None,
            _object(found, STATE),
            {kind: _records(found, f"{kind}.json") for kind in KINDS},
            found.get(SIGNATURE),
        )
        day.check()
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    # Whatever no hash covers, such as the archive's own structure, is as `write` makes it.
    if write(day) != file:
        raise InputError(f"{name}: the archive has further content, or was changed")
    return day


def _object(found: Mapping[str, bytes], part: str) -> dict[str, Any]:
    """Return the JSON object in a part of the archive."""
    if part not in found:
        raise InputError(f"{part} is missing")
    try:
        content = json.loads(found[part])
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise InputError(f"{part} is not a JSON object")
    return content


def _certificate(found: Mapping[str, bytes], part: str) -> Content:
    described = _object(found, part)
    claimed = described.pop("hash", None)
    try:
        content = Content.model_validate_json(json.dumps(described))
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"])) or "it"
        raise InputError(f"{part} is not a certificate: {place} is wrong") from None
    if content.hash != claimed:
        raise InputError(f"{part} has been changed: its hash is another one")
    return content


def _records(found: Mapping[str, bytes], part: str) -> list[dict[str, Any]]:
    records = _object(found, part).get("records")
    if not isinstance(records, list):
        raise InputError(f"{part} has no records")
    return records


# ---- signatures ----


def sign(content: Content, key: Path) -> bytes:
    """Return a signature of a certificate: a bundle of sigstore's format, made with model-signing.

    Args:
        content: the certificate.
        key: file of a private key on an elliptic curve, PEM without a password.

    Raises:
        InputError: the extra [sign] is not installed, or the key cannot be used.
    """
    try:
        from model_signing import signing
    except ImportError:
        raise InputError(f"signing needs the extra [sign]: {install_extra('sign')}") from None
    with tempfile.TemporaryDirectory() as folder:
        text, signature = Path(folder) / CERTIFICATE, Path(folder) / SIGNATURE
        text.write_text(content.text, encoding="utf-8")
        try:
            signer = signing.Config().use_elliptic_key_signer(private_key=key)
            signer.sign(text, signature)
        except (OSError, TypeError, ValueError) as error:
            raise InputError(f"the private key {key} cannot be used: {error}") from None
        return signature.read_bytes()


def check_signature(day: CertifiedDay, public_key: Path) -> None:
    """Check that the owner of a key signed a certificate.

    Args:
        day: the certificate.
        public_key: file of the public key, PEM.

    Raises:
        InputError: the certificate is not signed, or not with this key; or the extra [sign] is not
            installed.
    """
    if day.signature is None:
        raise InputError("the certificate is not signed")
    try:
        from model_signing import verifying
    except ImportError:
        raise InputError(
            f"checking a signature needs the extra [sign]: {install_extra('sign')}"
        ) from None
    with tempfile.TemporaryDirectory() as folder:
        text, signature = Path(folder) / CERTIFICATE, Path(folder) / SIGNATURE
        text.write_text(day.content.text, encoding="utf-8")
        signature.write_bytes(day.signature)
        verifier = verifying.Config().use_elliptic_key_verifier(public_key=public_key)
        try:
            verifier.verify(text, signature)
        except Exception as error:  # of many libraries, for what a changed signature may contain
            raise InputError(
                f"the signature is not one of this certificate with the key {public_key}: {error}"
            ) from None
