"""Records of lanes side by side: per-bar returns over the bars that they have in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from deploy.trading.flows import growth
from deploy.trading.live.store import TraderStore

Array = NDArray[np.float64]
Span = tuple[int, int | None]


def returns_beside(
    store: TraderStore,
    slot: str,
    lanes: tuple[str, ...],
    since: int,
    *,
    without: Sequence[Span] = (),
) -> dict[str, Array]:
    """(n,) simple returns per bar of each lane, over the bars that all lanes have a line for. The first return starts
    at the close of the bar that opened at `since`. Transfers are left out (`deploy.trading.flows`).

    without: spans (opens of the first bar and of the last, None where it lasts) of bars that are left out.
    """
    columns = {lane: store.lane_columns(slot, lane, since=since) for lane in lanes}
    times = [column.time for column in columns.values()]
    common = times[0]
    for other in times[1:]:
        common = np.intersect1d(common, other)
    kept = np.ones(max(0, len(common) - 1), dtype=bool)
    for first, last in without:
        kept &= ~((common[1:] >= first) & (common[1:] <= (np.inf if last is None else last)))
    found = {}
    for lane, column in columns.items():
        grown = growth(column.value, column.flow)[np.isin(column.time, common)]
        steps = np.divide(
            grown[1:], grown[:-1], out=np.ones_like(grown[1:]), where=grown[:-1] > 0.0
        )
        found[lane] = (steps - 1.0)[kept]
    return found


def since_present_bundle(store: TraderStore, slot: str, lane: str) -> tuple[int, str | None]:
    """Open of the first of the newest bars that the lane traded with the bundle it trades now, and that bundle's hash;
    (0, None) for a lane without bars.
    """
    columns = store.lane_columns(slot, lane, since=0)
    if not len(columns.time):
        return 0, None
    changes = np.flatnonzero(columns.bundle[1:] != columns.bundle[:-1])
    first = int(changes[-1]) + 1 if len(changes) else 0
    return int(columns.time[first]), str(columns.bundle[-1])
