"""The newest result of the live monitor, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sweepd.deploy.dashboard.formatting import figure

LEVELS = {"as scored": "good", "worse than scored": "bad", "tracking off": "bad"}
COUNTS = {"bars": "bars in the record", "judged": "judged at", "next_look": "next look at"}
TRACKING = {"error": "tracking error a year", "gap": "account ahead of the simulator"}
STATISTICS = {
    "edge": "over equal weight, a bar",
    "mean_return": "return a bar",
    "drawdown": "largest drawdown",
}


@dataclass(frozen=True)
class Statistic:
    """A statistic of the live monitor; missing values are None.

    low, high: the central 90% of live values if the policy trades as scored.
    p: chance of a value at least as bad in that case.
    """

    name: str
    live: float | None
    scored: float | None
    low: float | None
    high: float | None
    p: float | None


@dataclass(frozen=True)
class MonitorView:
    """The newest result of the live monitor.

    level: good, bad or none.
    facts: single numbers, by name.
    """

    verdict: str
    level: str
    text: str
    statistics: list[Statistic]
    facts: dict[str, str]


def monitor_view(found: object) -> MonitorView | None:
    """Return the newest result of the live monitor, None if there is none.

    Args:
        found: what the trader's row contains: normally a `MonitorReport` for JSON.
    """
    if not isinstance(found, Mapping) or not found:
        return None
    # Traders of other versions may have written fewer fields.
    said = str(found.get("verdict", "unknown"))
    statistics = [
        Statistic(
            label, *(_number(part.get(key)) for key in ("live", "scored", "low", "high", "p"))
        )
        for key, label in STATISTICS.items()
        if isinstance(part := found.get(key), Mapping)
    ]
    facts = {
        label: f"{found[key]:,}" for key, label in COUNTS.items() if isinstance(found.get(key), int)
    }
    if isinstance(tracking := found.get("tracking"), Mapping):
        facts |= {label: figure(_number(tracking.get(key))) for key, label in TRACKING.items()}
    return MonitorView(
        said, LEVELS.get(said, "none"), str(found.get("text", "")), statistics, facts
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
