"""Files of certificates: every byte that is changed is found."""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sweepd.deploy.trading.certificates.certificate import (
    Decisions,
    Recomputed,
    difference,
    digest_of,
    state_hash,
)
from sweepd.deploy.trading.certificates.certificate_file import (
    CERTIFICATE,
    KINDS,
    PREVIOUS,
    CertifiedDay,
    check_signature,
    read,
    sign,
    write,
)
from sweepd.envs.support.errors import InputError
from tests.deploy.trading.live.test_certificate import DAY, content_of, runs_of

STATE = {"time": DAY - 3600, "cash": 10_000.25, "units": [0.1, 0.0]}
RECORDS = {
    kind: [{"time": DAY + 3600 * n, "kind": kind, "price": 0.1 * n} for n in range(3)]
    for kind in KINDS
}


def day_of(**changes: Any) -> CertifiedDay:
    previous = content_of(0, None)
    digests = {kind: digest_of(RECORDS[kind]) for kind in KINDS}
    fields = digests | {"before": state_hash(STATE)} | changes
    return CertifiedDay(content_of(1, previous, **fields), previous, STATE, RECORDS)


def test_what_is_written_is_read_back_and_equal_days_are_equal_files() -> None:
    day = day_of()
    file = write(day)
    assert read(file, "day.zip") == day
    assert write(day_of()) == file
    first = dataclasses.replace(
        day, content=content_of(0, None, **{k: digest_of(RECORDS[k]) for k in KINDS},
                                before=state_hash(STATE)), previous=None,
    )  # fmt: skip
    assert read(write(first), "day.zip") == first


@pytest.mark.parametrize("bit", [0, 6])
def test_every_byte_that_is_changed_is_found(bit: int) -> None:
    file = write(day_of())
    for place in range(len(file)):
        changed = bytearray(file)
        changed[place] ^= 1 << bit
        with pytest.raises(InputError, match=r"^day\.zip"):
            read(bytes(changed), "day.zip")
    for part in (file[:-1], file + b"\0", file[: len(file) // 2], b""):
        with pytest.raises(InputError, match=r"^day\.zip"):
            read(part, "day.zip")


def rewritten(file: bytes, name: str, change: Any) -> bytes:
    """Return the file with a part replaced, or taken out if `change` returns None."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(file)) as old, zipfile.ZipFile(made, "w") as new:
        for info in old.infolist():
            content = old.read(info)
            if info.filename == name:
                content = change(content)
            if content is not None:
                new.writestr(zipfile.ZipInfo(info.filename, info.date_time), content)
    return made.getvalue()


def forged(text: bytes) -> bytes:
    """Return a certificate that states another verdict, with the hash of that."""
    described = json.loads(text)
    described.pop("hash")
    content = content_of(0, None).model_validate_json(json.dumps(described))
    return content.model_copy(update={"verdict": "explained"}).text.encode()


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("bars.json", lambda text: text.replace(b"0.1", b"0.2"), "the bars are not those"),
        ("orders.json", lambda _: None, "orders.json is missing"),
        ("lines.json", lambda _: b"{}", "lines.json has no records"),
        ("lines.json", lambda _: b"[", "lines.json is not a JSON object"),
        ("state.json", lambda text: text.replace(b"25", b"26"), "the state before the day"),
        (CERTIFICATE, lambda text: text.replace(b"equal", b"explained"), "its hash is another"),
        (CERTIFICATE, lambda text: text.replace(b'"day"', b'"dai"'), "is not a certificate: da"),
        (PREVIOUS, forged, "one of them has been changed"),
        (PREVIOUS, lambda _: None, "follows certificate none: one was taken out"),
    ],
)
def test_the_first_part_that_differs_is_named(part: str, change: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(rewritten(write(day_of()), part, change), "day.zip")


def test_a_day_that_is_not_the_certificates_is_not_written() -> None:
    with pytest.raises(InputError, match="the state before the day"):
        write(dataclasses.replace(day_of(), state=STATE | {"cash": 0.0}))


def test_what_a_certificate_states_is_compared_with_the_recomputed_day() -> None:
    runs = runs_of(0.0, 0.0, 0.0, 0.0, 0.0)
    content = day_of(decisions=Decisions(count=3, worst=0.0, at=DAY)).content
    assert content.decisions is not None
    found = Recomputed(runs, content.decisions, content.after, content.bundles)
    assert difference(content, found) is None
    wrong = {
        "states 3 decisions, and there are 2": {"decisions": Decisions(count=2, worst=0, at=DAY)},
        "decisions differ by up to 0.5": {"decisions": Decisions(count=3, worst=0.5, at=DAY)},
        "the return (account) is": {"runs": runs_of(0.01, 0.0, 0.0, 0.0, 0.0)},
        "the part (price) is": {"runs": runs_of(0.0, 0.01, -0.01, 0.0, 0.0)},
        "the bundles that decided are none": {"bundles": ()},
        "the events are other ones": {"events": ("late bar",)},
        "the state after the day": {"after": "d" * 64},
    }
    for said, changes in wrong.items():
        differs = difference(content, dataclasses.replace(found, **changes))
        assert differs is not None
        assert said in differs
    other = dataclasses.replace(found, after="d" * 64)
    assert difference(content, other, same_processor=False) is None


def test_a_day_that_was_not_recomputed_has_no_returns() -> None:
    with pytest.raises(ValueError, match="exactly days that were recomputed"):
        content_of(0, None, verdict="impossible")
    nothing = {"decisions": None, "returns": None, "causes": None}
    for one in nothing:
        with pytest.raises(ValueError, match="exactly days that were recomputed"):
            content_of(0, None, verdict="impossible", **{n: None for n in nothing if n != one})
    content = content_of(0, None, verdict="impossible", **nothing)
    runs = runs_of(0.0, 0.0, 0.0, 0.0, 0.0)
    none = Decisions(count=0, worst=0.0, at=None)
    said = difference(content, Recomputed(runs, none, content.after))
    assert said == "it says that the day could not be recomputed"


def test_signatures(tmp_path: Path) -> None:
    pytest.importorskip("model_signing", reason="the extra [sign] is not installed")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    pem, public = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    for name in ("own", "other"):
        key = ec.generate_private_key(ec.SECP256R1())
        (tmp_path / f"{name}.pub").write_bytes(key.public_key().public_bytes(pem, public))
        private = key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (tmp_path / f"{name}.pem").write_bytes(private)
    day = day_of()
    with pytest.raises(InputError, match="is not signed"):
        check_signature(day, tmp_path / "own.pub")
    with pytest.raises(InputError, match="cannot be used"):
        sign(day.content, tmp_path / "missing.pem")
    signed = dataclasses.replace(day, signature=sign(day.content, tmp_path / "own.pem"))
    again = read(write(signed), "day.zip")
    check_signature(again, tmp_path / "own.pub")
    with pytest.raises(InputError, match="is not one of this certificate"):
        check_signature(again, tmp_path / "other.pub")
    other = day_of(events=("late bar",))
    with pytest.raises(InputError, match="is not one of this certificate"):
        check_signature(dataclasses.replace(other, signature=again.signature), tmp_path / "own.pub")
    assert again.signature is not None
    for place in range(0, len(again.signature), 97):
        changed = bytearray(again.signature)
        changed[place] ^= 64
        with pytest.raises(InputError, match="is not one of this certificate"):
            check_signature(
                dataclasses.replace(again, signature=bytes(changed)), tmp_path / "own.pub"
            )


def test_without_the_extra_a_sentence_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "model_signing", None)
    with pytest.raises(InputError, match=r"signing needs the extra \[sign\]"):
        sign(day_of().content, tmp_path / "own.pem")
    signed = dataclasses.replace(day_of(), signature=b"{}")
    with pytest.raises(InputError, match=r"checking a signature needs the extra \[sign\]"):
        check_signature(signed, tmp_path / "own.pub")
