"""`sweepd trader parity --certify`, `--export` and `--verify`."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.certificates.certificate import Content
from sweepd.deploy.trading.certificates.certificate_file import check_signature, read
from sweepd.deploy.trading.certificates.certifier import one_at_a_time
from sweepd.deploy.trading.certificates.certify import (
    ALARMING,
    certify,
    exported,
    first_difference,
    verdict_text,
)
from sweepd.deploy.trading.live.notify import Notifier
from sweepd.deploy.trading.live.start import TRADERS
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.files import write_atomic
from sweepd.envs.support.terminal import Terminal

SIGNING_KEY = "SWEEPD_SIGNING_KEY"


def certify_days(registry: Registry, slot: str, *, as_json: bool) -> None:
    """Certify the days that are over; exit with code 1 if one of them is alarming."""
    store = TraderStore(registry.database)
    if store.trader(slot) is None:
        raise InputError(f"slot {slot!r} was never traded: sweepd trade {slot}")
    key = os.environ.get(SIGNING_KEY)
    made: list[Content] = []
    with one_at_a_time(registry.folder / TRADERS, slot):
        for content in certify(registry, slot, Path(key) if key else None):
            made.append(content)
            if not as_json:
                Terminal().print_line(verdict_text(content))
            if content.verdict in ALARMING:
                alert(store, slot, verdict_text(content))
    if as_json:
        typer.echo(json.dumps({"slot": slot, "certificates": [_facts(one) for one in made]}))
    elif not made:
        Terminal().print_line(f"{slot}: every day that is over has a certificate")
    if any(one.verdict in ALARMING for one in made):
        raise typer.Exit(1)


def alert(store: TraderStore, slot: str, text: str) -> None:
    """Record an alert of a slot, and send it."""
    store.note(slot, "alert", text)
    notifier = Notifier.from_environment(os.environ, lambda line: typer.echo(line, err=True))
    notifier.notify("alert", f"sweepd {slot}: alert", text, slot)
    notifier.close()


def export_day(registry: Registry, slot: str, file: Path, day: str | None) -> None:
    """Write the file of a certificate."""
    content, made = exported(registry, slot, None if day is None else _seconds(day))
    write_atomic(file, made)
    Terminal().print_line(f"{file}: {verdict_text(content)}")


def verify_file(
    slot: str | None, file: Path, bundles: Sequence[Path], public_key: Path | None
) -> None:
    """Check the file of a certificate, and recompute its day, without a registry."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InputError(f"--verify {file} cannot be read: {error}") from None
    try:
        day = read(content, str(file))
        if public_key is not None:
            check_signature(day, public_key)
    except InputError as error:
        raise RunError(str(error)) from None
    if slot is not None and day.content.slot != slot:
        raise InputError(f"{file} is of slot {day.content.slot!r}, not of {slot!r}")
    if (found := first_difference(day, bundles)) is not None:
        raise RunError(f"{file}: {found}")
    Terminal().print_line(
        f"{verdict_text(day.content)}. The file is complete and unchanged, and the day was recomputed "
        "with the same result. Whether bars and fills were recorded truly cannot be seen from it."
    )


def _facts(content: Content) -> dict[str, Any]:
    return {
        "number": content.number,
        "day": content.day,
        "verdict": content.verdict,
        "hash": content.hash,
        "alarming": content.verdict in ALARMING,
        "text": verdict_text(content),
    }


def _seconds(day: str) -> int:
    try:
        moment = dt.datetime.strptime(day, "%Y-%m-%d")
    except ValueError:
        raise InputError(f"--day {day} is not a day; write it like 2024-01-31") from None
    return int(moment.replace(tzinfo=dt.UTC).timestamp())
