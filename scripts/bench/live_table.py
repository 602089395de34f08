"""The table of `search_live.py`: the time to a task's level by search, and the ratio of ours."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping
from typing import Any

OUR = "race"
NEVER = math.inf


def table(
    results: Mapping[str, Mapping[str, Any]], limits: Mapping[str, float], ours: Collection[str]
) -> dict[str, Any]:
    """Return the outcomes of every task.

    Args:
        results: by task, and by search and seed such as "race-0"; those without scores are left
            out.
        limits: seconds of a search, by task.
        ours: names of the searches that are not another project's.

    Returns:
        By task: `seconds` to the level and `scores` of the last selection, each the median over
        seeds by search, None for never; `peer` and `random`: the ratio of our time to that of the
        best other project, or of random draws, see `ratio`.
    """
    found: dict[str, Any] = {}
    for task, own in results.items():
        scored = {key: one for key, one in own.items() if "scores" in one}
        names = list(dict.fromkeys(key.rpartition("-")[0] for key in scored))
        if not names:
            continue
        by_name = {
            name: [one for key, one in scored.items() if key.rpartition("-")[0] == name]
            for name in names
        }
        seconds = {
            name: statistics.median_low(map(_seconds, ones)) for name, ones in by_name.items()
        }
        peers = [time for name, time in seconds.items() if name not in ours]
        limit = limits[task]
        found[task] = {
            "level": next(iter(scored.values()))["level"],
            "limit": limit,
            "seconds": {name: _finite(time) for name, time in seconds.items()},
            "scores": {
                name: _finite(statistics.median_low(map(_score, ones)))
                for name, ones in by_name.items()
            },
            "seeds": {name: len(ones) for name, ones in by_name.items()},
            "peer": ratio(seconds.get(OUR), min(peers, default=None), limit),
            "random": ratio(seconds.get(OUR), seconds.get("random"), limit),
        }
    return found


def ratio(ours: float | None, other: float | None, limit: float) -> dict[str, Any] | None:
    """Return our time by another one.

    Args:
        ours: seconds to the level; infinite for never.
        other: likewise.
        limit: seconds of a search. A search that did not reach the level within it needs longer.

    Returns:
        `value`, and `bound`: "=", "<" if only we reached the level, ">" if only the other did.
        None if neither did, or one was not run.
    """
    if ours is None or other is None or (ours == NEVER and other == NEVER):
        return None
    bound = ">" if ours == NEVER else "<" if other == NEVER else "="
    return {"value": min(ours, limit) / min(other, limit), "bound": bound}


def lines(found: Mapping[str, Any]) -> list[str]:
    """Return the table as text."""
    names = list(dict.fromkeys(name for one in found.values() for name in one["seconds"]))
    head = f"{'task':12}{'level':>8}" + "".join(f"{name:>16}" for name in names)
    rows = [head + f"{OUR + '/peer':>12}{OUR + '/random':>14}"]
    for task, one in found.items():
        cells = "".join(f"{_cell(one, name):>16}" for name in names)
        ratios = f"{_ratio(one['peer']):>12}{_ratio(one['random']):>14}"
        rows.append(f"{task:12}{one['level']:>8g}{cells}{ratios}")
    return [*rows, "seconds to the level (score of the last selection); ratios of the seconds"]


def _seconds(one: Mapping[str, Any]) -> float:
    return NEVER if one["seconds_to_level"] is None else float(one["seconds_to_level"])


def _score(one: Mapping[str, Any]) -> float:
    return -NEVER if one["score"] is None else float(one["score"])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _cell(one: Mapping[str, Any], name: str) -> str:
    if name not in one["seconds"]:
        return "-"
    seconds, score = one["seconds"][name], one["scores"][name]
    when = f">{one['limit']:.0f}" if seconds is None else f"{seconds:.0f}"
    return f"{when} ({'none' if score is None else f'{score:.4g}'})"


def _ratio(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return "-"
    return f"{one['bound'].replace('=', '')}{one['value']:.2f}"
