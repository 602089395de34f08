"""The history with which a session starts: the bars that were seen, and older ones of the feed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sweepd.deploy.trading.closed_bar import COLUMNS
from sweepd.deploy.trading.feeds import AGAIN_BARS, Feed
from sweepd.deploy.trading.live.queries import Records
from sweepd.deploy.trading.live.records import Adjustment, Trader
from sweepd.deploy.trading.live.revisions import Review, adjusted, review, undone
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.timeframe import later, opening_times


@dataclass(frozen=True)
class SeenBars:
    """What a session starts with.

    history: bars up to the last processed one, in the units before `review`.
    unstored: those that the registry lacks, in the units in which it has the others.
    review: how the feed's rows differ from the bars that were seen.
    """

    history: Bars
    unstored: Bars
    review: Review


def start_feed(
    feed: Feed,
    records: Records,
    trader: Trader,
    adjustments: Sequence[Adjustment],
    *,
    needed: int,
    now: float,
) -> SeenBars:
    """Start the feed, and return the stored bars, with the feed's where none are stored.

    Args:
        feed: the slot's feed.
        records: the registry's bars.
        trader: the slot's trader.
        adjustments: those that the trader has followed.
        needed: number of bars that decisions and dry runs need.
        now: seconds since the epoch.

    Raises:
        InputError, RunError: as `Feed.start`.
    """
    since = 0
    if trader.last_bar is not None:  # older bars are never read, so a year's are not loaded
        since = later(trader.timeframe, trader.last_bar, 1 - needed - AGAIN_BARS)
    seen = _unbroken(records.bars(trader.slot, trader.timeframe, feed.tickers, since=since))
    enough = trader.last_bar is not None and len(seen) >= needed
    found = feed.start(
        AGAIN_BARS if enough else needed, now, trader.last_bar, trader.state.get("prices", {})
    )
    if not len(seen):
        return SeenBars(found, found, Review())
    changes = review(adjusted(seen, adjustments), feed.again, trader.state.get("revised", {}))
    everything = [*adjustments, *changes.adjustments]
    found = adjusted(found, undone(everything))
    older, newer = found.time < seen.time[0], found.time > seen.time[-1]
    if newer.any() and found.time[0] > later(trader.timeframe, int(seen.time[-1])):
        # Nothing was traded between the stored bars and the feed's: they begin a new record.
        return SeenBars(adjusted(found, adjustments), found, changes)
    full = _joined(_chosen(found, older), seen, _chosen(found, newer))
    return SeenBars(adjusted(full, adjustments), _chosen(found, older | newer), changes)


def _unbroken(bars: Bars) -> Bars:
    """Return the newest bars without a gap between them."""
    if not len(bars):
        return bars
    grid = opening_times(bars.timeframe, int(bars.time[0]), int(bars.time[-1]))[-len(bars) :]
    gaps = np.flatnonzero(bars.time != grid)
    return bars.slice(int(gaps[-1]) + 1 if len(gaps) else 0, len(bars))


def _chosen(bars: Bars, rows: np.ndarray) -> Bars:
    columns: dict[str, Any] = {name: getattr(bars, name)[rows] for name in ("time", *COLUMNS)}
    return replace(bars, **columns)


def _joined(*parts: Bars) -> Bars:
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in ("time", *COLUMNS)
    }
    return replace(parts[0], **columns)
