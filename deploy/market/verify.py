"""Verification of a bundle: it is scored on its hold-out again, and all numbers are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.scoring import score_bundle
from sweepd.deploy.promotion.gate import Verification
from sweepd.deploy.promotion.sections import ReportTable
from sweepd.deploy.registry.bundle_files import finite
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.timeframe import format_time, parse_time
from sweepd.envs.support.errors import InputError

# The canonical policy path rounds every action to 1e-6, so threads, processors and libraries affect
# only the last bits of sums.
TOLERANCE = 1e-9


def verify_bundle(bundle: Bundle, bars: Bars) -> Verification:
    """Recompute the canonical score of the bundle on its hold-out.

    The bundle's bytes were checked when it was loaded.

    Args:
        bundle: the bundle.
        bars: bars that include the bundle's data.

    Raises:
        InputError: the bars are others than those of the study, or the bundle was never evaluated
            on a hold-out.
    """
    stored = bundle.manifest.gate.get("holdout")
    if not isinstance(stored, dict) or "first" not in stored or "last" not in stored:
        raise InputError(
            f"bundle {bundle.name} was never evaluated on a hold-out, so there is nothing to verify"
        )
    bars = _own_bars(bundle, bars)
    first, last = (
        int(np.searchsorted(bars.time, parse_time(str(stored[name])))) for name in ("first", "last")
    )
    score = score_bundle(bundle, bars, (first - 1, last))
    span = tuple(format_time(int(moment)) for moment in (score.time[0], score.time[-1]))
    assert span == (stored["first"], stored["last"])  # the fingerprint of the bars is equal
    compared = {
        name: (float(stored[name]), float(value))
        for name, value in score.to_dict().items()
        if not isinstance(value, str) and isinstance(stored.get(name), int | float)
    }
    return _verification(bundle, span, len(score.time), compared)


def _verification(
    bundle: Bundle, span: tuple[str, ...], bars: int, compared: Mapping[str, tuple[float, float]]
) -> Verification:
    """Tell the result. compared: stored and recomputed metrics, by name."""
    differences = {
        name: abs(now - stored) / max(1.0, abs(stored)) for name, (stored, now) in compared.items()
    }
    worst = max(differences, key=lambda name: differences[name])
    largest, (was, now) = differences[worst], compared[worst]
    content: dict[str, Any] = finite(
        {
            "bundle": bundle.hash,
            "agrees": largest <= TOLERANCE,
            "tolerance": TOLERANCE,
            "largest_difference": largest,
            "holdout": {"first": span[0], "last": span[1], "bars": bars},
            "metrics": {
                name: {"stored": stored, "now": value} for name, (stored, value) in compared.items()
            },
        }
    )
    manifest, difference = bundle.manifest, f"{worst} was {was!r} and is {now!r}"
    said = (
        f"{bundle.name} is verified: files and data have their hashes, and no number differs by "
        f"more than {largest:.1e} (allowed: {TOLERANCE:.0e})."
        if content["agrees"]
        else f"bundle {bundle.name} scores differently now: {difference}, although "
        "files and data are the same; was it scored by another version of sweepd "
        f"({manifest.code_version}) or torch ({manifest.torch_version})?"
    )
    rows = [
        [name, f"{stored:.9g}", f"{value:.9g}", f"{differences[name]:.1e}"]
        for name, (stored, value) in compared.items()
    ]
    title = f"Hold-out {span[0]} to {span[1]}, {bars:,} bars"
    head = ("metric", "stored", "recomputed", "difference")
    return Verification(
        content, said, [ReportTable(title, head, rows)], "" if content["agrees"] else difference
    )


def _own_bars(bundle: Bundle, bars: Bars) -> Bars:
    """The bars of the bundle's study, checked by their fingerprint."""
    data = bundle.manifest.data
    own = bars.between(parse_time(data.first), parse_time(data.last))
    if own.fingerprint != data.fingerprint:
        raise InputError(
            f"the bars are not those that bundle {bundle.name} was scored on (fingerprint "
            f"{own.fingerprint[:12]}…, not {data.fingerprint[:12]}…); name their folder with "
            "--data-dir"
        )
    return own
