"""The table of `search_live.py`: the time to a task's level by search, and the ratio of ours."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

OUR = "race"
# Seconds until a level was reached; with False, it was not reached before them.
Time = tuple[float, bool]


def table(
    results: Mapping[str, Mapping[str, Any]], limits: Mapping[str, float], ours: Collection[str]
) -> dict[str, Any]:
    """Return the outcomes of every task.

    Args:
        results: by task, and by search and seed such as "race-0"; those without selections are left
            out.
        limits: seconds of a search, by task.
        ours: names of the searches that are not another project's.

    Returns:
        By task, each the median over seeds by search: `seconds` to the level, where `exact`, and
        otherwise a lower bound of them; `scores` of the last selection, None if there is none.
        `peer` and `random`: the ratio of our time to that of the best other project, or of random
        draws, see `ratio`.
    """
    found: dict[str, Any] = {}
    for task, own in results.items():
        limit = limits[task]
        known = {key: one for key, one in own.items() if "selections" in one}
        names = list(dict.fromkeys(key.rpartition("-")[0] for key in known))
        if not names:
            continue
        by_name = {
            name: [one for key, one in known.items() if key.rpartition("-")[0] == name]
            for name in names
        }
        times = {
            name: _median([_time(one, limit) for one in ones]) for name, ones in by_name.items()
        }
        peers = [time for name, time in times.items() if name not in ours]
        found[task] = {
            "level": next(iter(known.values()))["level"],
            "limit": limit,
            "seconds": {name: seconds for name, (seconds, _) in times.items()},
            "exact": {name: exact for name, (_, exact) in times.items()},
            "scores": {
                name: _finite(statistics.median_low(map(_score, ones)))
                for name, ones in by_name.items()
                if all("scores" in one for one in ones)
            },
            "seeds": {name: len(ones) for name, ones in by_name.items()},
            "peer": ratio(times.get(OUR), min(peers, default=None)),
            "random": ratio(times.get(OUR), times.get("random")),
        }
    return found


def ratio(ours: Time | None, other: Time | None) -> dict[str, Any] | None:
    """Return our time by another one.

    Returns:
        `value`, and `bound`: "=", or "<" and ">" if the other time or ours is a lower bound. None
        if both are, or one is missing.
    """
    if ours is None or other is None or not (ours[1] or other[1]):
        return None
    bound = "=" if ours[1] and other[1] else "<" if ours[1] else ">"
    return {"value": ours[0] / other[0], "bound": bound}


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


def _time(one: Mapping[str, Any], limit: float) -> Time:
    seconds = one["seconds_to_level"]
    return (limit, False) if seconds is None else (float(seconds), one["exact"])


def _median(times: Sequence[Time]) -> Time:
    """Return the lower median. It is exact if no bound below it may in truth be above it."""
    ordered = sorted(times)
    middle = (len(ordered) - 1) // 2
    return ordered[middle][0], all(exact for _, exact in ordered[: middle + 1])


def _score(one: Mapping[str, Any]) -> float:
    return -math.inf if one["score"] is None else float(one["score"])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _cell(one: Mapping[str, Any], name: str) -> str:
    if name not in one["seconds"]:
        return "-"
    shown = "-"
    if name in one["scores"]:
        score = one["scores"][name]
        shown = "none" if score is None else f"{score:.4g}"
    return f"{'' if one['exact'][name] else '>'}{one['seconds'][name]:.0f} ({shown})"


def _ratio(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return "-"
    return f"{one['bound'].replace('=', '')}{one['value']:.2f}"
