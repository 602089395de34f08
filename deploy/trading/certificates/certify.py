"""Certificates of a slot's days: made from the registry, exported to files, and verified.

`certify` certifies the days that are over and have no certificate. Verification of an exported file
recomputes the day with the same code, without the registry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from sqlalchemy import select

from sweepd.deploy.market.bundle import Bundle, load_bundle
from sweepd.deploy.registry.database import utc_now
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.certificates.certificate import (
    Content,
    Recomputed,
    after,
    causes_of,
    difference,
    digest_of,
    state_hash,
    verdict_of,
)
from sweepd.deploy.trading.certificates.certificate_file import KINDS, CertifiedDay, sign, write
from sweepd.deploy.trading.certificates.day_record import DayRecord, Span, days_over, read_day
from sweepd.deploy.trading.certificates.recompute_day import bundles_needed, recompute
from sweepd.deploy.trading.live.records import CERTIFICATES, Certificate
from sweepd.deploy.trading.live.store import stored_certificates
from sweepd.envs.crypto.data.timeframe import format_time
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.record.specs import code_version

ALARMING: Final = ("differs", "impossible")  # verdicts


def content_of(row: Certificate) -> Content:
    """Return the content of a stored certificate."""
    return Content.model_validate_json(json.dumps(row.content))


def certify(registry: Registry, slot: str, key: Path | None = None) -> Iterator[Content]:
    """Certify the days of a slot that are over and have no certificate, oldest first.

    Args:
        registry: the registry that holds the slot.
        slot: its name.
        key: file of a private key that signs, see `certificate_file.sign`.

    Yields:
        Each new certificate, once it is stored. Another process may store the same days at the same
        time: each day is stored once.

    Raises:
        InputError: the key cannot be used.
    """
    row = CERTIFICATES.c
    with registry.database.reading() as connection:
        done = set(connection.scalars(select(row.day).where(row.slot == slot)))
    for span in days_over(registry, slot):
        if span.day not in done:
            content = _certified(registry, slot, span, key)
            if content is not None:
                yield content


def _certified(registry: Registry, slot: str, span: Span, key: Path | None) -> Content | None:
    """Certify a day; return None if another process was faster."""
    record = DayRecord(slot, span.day, {}, {}, {kind: [] for kind in KINDS})
    found: Recomputed | str
    try:
        record = read_day(registry, slot, span)
        needed = bundles_needed(record)
        found = recompute(record, {hash_: registry.bundle(hash_, Bundle) for hash_ in needed})
    except InputError as error:
        found = str(error)
    row = CERTIFICATES.c
    # The chain is extended under the write lock.
    with registry.database.writing() as connection:
        query = CERTIFICATES.select(row.slot == slot).order_by(row.number.desc()).limit(1)
        newest = CERTIFICATES.read(connection, query)
        same_day = select(row.number).where(row.slot == slot, row.day == span.day)
        if connection.scalar(same_day) is not None:
            return None
        content = _content(record, found, content_of(newest[0]) if newest else None)
        signature = None if key is None else json.loads(sign(content, key))
        certificate = Certificate(
            slot=slot,
            number=content.number,
            day=content.day,
            hash=content.hash,
            previous=content.previous,
            content=content.model_dump(mode="json"),
            verdict=content.verdict,
            signature=signature,
            at=utc_now(),
        )
        CERTIFICATES.add(connection, [certificate])
    return content


def _content(record: DayRecord, found: Recomputed | str, previous: Content | None) -> Content:
    """Return the certificate of a day; `found` is why it could not be recomputed, if it is text."""
    number, hash_ = after(previous)
    stated = state_hash(record.after)
    facts: dict[str, Any] = {kind: digest_of(record.records[kind]) for kind in KINDS}
    if isinstance(found, str):
        nothing = {"decisions": None, "returns": None, "causes": None}
        facts |= nothing | {"bundles": (), "events": (found,), "verdict": "impossible"}
    else:
        runs, decisions = found.runs, found.decisions
        facts |= {
            "bundles": found.bundles,
            "events": found.events,
            "decisions": decisions,
            "returns": runs.returns,
            "causes": causes_of(runs),
            "verdict": verdict_of(runs, decisions, same_state=found.after == stated),
        }
    return Content(
        slot=record.slot,
        day=record.day,
        number=number,
        previous=hash_,
        code_version=code_version(),
        before=state_hash(record.state),
        after=stated,
        **facts,
    )


def verdict_text(content: Content) -> str:
    """Return a certificate in a sentence."""
    day = format_time(content.day)[:10]
    text = f"{content.slot}: certificate {content.number}, {day}: {content.verdict}"
    if content.verdict == "impossible":
        return f"{text}: {content.events[0]}"
    assert content.decisions is not None
    assert content.returns is not None
    assert content.causes is not None
    text += (
        f"; {content.decisions.count} decisions, account {content.returns.account:+.4%}, "
        f"simulator {content.returns.simulator:+.4%}"
    )
    causes = [f"{name} {part:+.4%}" for name, part in content.causes.items() if abs(part) > 5e-7]
    text += f" ({', '.join(causes)})" if causes else ""
    if content.verdict == "differs" and content.decisions.worst > 0.0:
        text += f"; a decision differs by {content.decisions.worst:.3g}"
    return f"{text}; {content.hash[:12]}"


# ---- files ----


def exported(registry: Registry, slot: str, day: int | None) -> tuple[Content, bytes]:
    """Return a certificate and its file.

    Args:
        registry: the registry that holds the slot.
        slot: its name.
        day: start of the UTC day, seconds since the epoch; None: the newest one.

    Raises:
        InputError: there is no certificate, or the day's record cannot be read or has changed.
    """
    rows = stored_certificates(registry.database, slot)
    found = [one for one in rows if day in (None, one.day)]
    if not found:
        which = "" if day is None else f" of {format_time(day)[:10]}"
        raise InputError(
            f"slot {slot!r} has no certificate{which}: sweepd trader parity {slot} --certify"
        )
    row = found[-1]
    spans = [one for one in days_over(registry, slot) if one.day == row.day]
    if not spans:
        raise InputError(f"the registry has no events of {format_time(row.day)[:10]}")
    record = read_day(registry, slot, spans[-1])
    content = content_of(row)
    previous = content_of(rows[row.number - 1]) if row.number else None
    signature = None if row.signature is None else json.dumps(row.signature).encode()
    return content, write(CertifiedDay(content, previous, record.state, record.records, signature))


def first_difference(day: CertifiedDay, bundles: Sequence[Path]) -> str | None:
    """Recompute an exported day, and return the first statement that does not hold, None if all do.

    It cannot show that the venue's bars and fills, as they were recorded, are true.

    Args:
        day: what `certificate_file.read` returned.
        bundles: folders of those that decided.

    Raises:
        InputError: a bundle is missing, or cannot be loaded.
    """
    content = day.content
    record = DayRecord(content.slot, content.day, day.state, {}, day.records)
    library = {one.hash: one for one in map(load_bundle, bundles)}
    missing = [hash_ for hash_ in bundles_needed(record) if hash_ not in library]
    if missing:
        raise InputError(f"bundle {', '.join(missing)} is needed: name its folder with --bundle")
    try:
        found = difference(content, recompute(record, library))
    except InputError as error:
        found = f"the day cannot be recomputed: {error}"
    if found is not None and content.code_version != code_version():
        found += f" (sweepd {content.code_version} wrote it, and this is {code_version()})"
    return found
