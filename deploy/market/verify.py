"""Verification of a bundle: it is scored on its hold-out again, and all numbers are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.scoring import score_bundle
from sweepd.deploy.registry.bundle_files import finite
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.timeframe import format_time, parse_time
from sweepd.envs.support.errors import InputError

# The canonical policy path rounds every action to 1e-6, so threads, processors and libraries affect
# only the last bits of sums.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class MetricDifference:
    """A metric of the hold-out: `stored` in the gate report, and recomputed `now`."""

    name: str
    stored: float
    now: float

    @property
    def difference(self) -> float:
        """|now - stored| / max(1, |stored|)."""
        return abs(self.now - self.stored) / max(1.0, abs(self.stored))


@dataclass(frozen=True)
class Verification:
    """The result of a verification.

    Attributes:
        bundle: hash of the bundle.
        first: open of the hold-out's first bar, UTC text.
        last: open of its last bar.
        bars: number of its bars.
        compared: its metrics.
    """

    bundle: str
    first: str
    last: str
    bars: int
    compared: tuple[MetricDifference, ...]

    @property
    def worst(self) -> MetricDifference:
        """The metric with the largest difference."""
        return max(self.compared, key=lambda one: one.difference)

    @property
    def agrees(self) -> bool:
        """Whether all differences are at most `TOLERANCE`."""
        return self.worst.difference <= TOLERANCE

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        content: dict[str, Any] = finite(
            {
                "bundle": self.bundle,
                "agrees": self.agrees,
                "tolerance": TOLERANCE,
                "largest_difference": self.worst.difference,
                "holdout": {"first": self.first, "last": self.last, "bars": self.bars},
                "metrics": {
                    one.name: {"stored": one.stored, "now": one.now} for one in self.compared
                },
            }
        )
        return content


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
    now = score.to_dict()
    compared = tuple(
        MetricDifference(name, float(stored[name]), float(value))
        for name, value in now.items()
        if not isinstance(value, str) and isinstance(stored.get(name), int | float)
    )
    return Verification(bundle.hash, *span, bars=len(score.time), compared=compared)


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
