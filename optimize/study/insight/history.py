"""The history of a study: trials per hour, the objective by trial, and learning curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sweepd.optimize.study.record.rows import TrialRow

MOST_PARTS = 60  # of the time that a study took
FEWEST_PARTS = 4
TRIALS_PER_PART = 2  # finished trials in a part of a short study, on average
HOUR, DAY = 3600, 86400
# Their length, seconds.
PARTS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1800, HOUR, 2 * HOUR, 6 * HOUR, DAY, 7 * DAY)


def history(rows: Sequence[TrialRow]) -> dict[str, Any]:
    """Return the history of a study as plain data. Times are in seconds since the epoch.

    Returns:
        `rates`: finished trials in equal parts of the time from the first trial's start to the last
        one's end: `at` (start of the part), `seconds`, `finished`, `per_hour`. `values`: complete
        trials that meet the constraints, in the order in which they ended: `at`, `trial`, `value`
        (the objective), and `best` (so far). `running`: trials in training: `trial` and `rungs`
        (pairs of a rung and its finite value).
    """
    ended = [(row.ended, row) for row in rows if row.finished and row.ended is not None]
    ended.sort(key=lambda pair: (pair[0], pair[1].number))
    values, best = [], -math.inf
    for at, row in ended:
        if row.value is not None and row.feasible:
            best = max(best, row.value)
            values.append({"at": at, "trial": row.number, "value": row.value, "best": best})
    begun = [row.started for row in rows if row.started is not None]
    return {
        "rates": _rates([at for at, _ in ended], min(begun, default=0.0)),
        "values": values,
        "running": [
            {
                "trial": row.number,
                "rungs": [[rung, own] for rung, own in row.rungs.items() if math.isfinite(own)],
            }
            for row in rows
            if row.state == "RUNNING"
        ],
    }


def _rates(ended: Sequence[float], begin: float) -> list[dict[str, float]]:
    if not ended:
        return []
    # At least one second before the first end, so that the rate is finite.
    begin, end = min(begin, ended[0] - 1.0), ended[-1]
    # More parts than trials would show single trials as peaks.
    most = min(MOST_PARTS, max(FEWEST_PARTS, len(ended) // TRIALS_PER_PART))
    length = next((part for part in PARTS if (end - begin) / part <= most), PARTS[-1])
    # `nextafter` puts the last end inside the last interval.
    edges = np.append(np.arange(begin, end, length), np.nextafter(end, math.inf))
    if len(edges) > 2 and end - edges[-2] < length / 2:  # too short for a rate
        edges = np.delete(edges, -2)
    counts, _ = np.histogram(ended, edges)
    lengths = np.diff(edges)
    return [
        {
            "at": float(at),
            "seconds": float(long),
            "finished": int(count),
            "per_hour": float(3600.0 * count / long),
        }
        for at, long, count in zip(edges[:-1], lengths, counts, strict=True)
    ]
