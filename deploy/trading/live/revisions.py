"""What a feed says again about bars that a trader has seen: equal, revised, or adjusted.

The record keeps bars as they were seen. A row that differs later is `revised`: an event, and no
more. Rows that all differ by one factor are `adjusted`: the feed counts the asset in other units
since then, as after a split or a dividend, and what is held follows. Any other large factor is a
reason to stop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sweepd.deploy.trading.live.records import Adjustment
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.timeframe import format_time
from sweepd.envs.support.formatting import counted

Array = NDArray[np.float64]
# By ticker and opening time (text, as in JSON): open, high, low, close, volume of the feed, where
# they differ from the record.
Revised = Mapping[str, Mapping[str, Sequence[float]]]
COLUMNS = ("open", "high", "low", "close", "volume")
EQUAL = 1e-9  # relative: sums in another order
ROUNDING = 1e-3  # relative: adjusted prices are often rounded to cents
FEWEST_ROWS = 3  # that can show a common factor
COMMON_SHARE = 0.75  # of the rows; the newest ones may be revised at the same time
LARGE = 1.2  # factor of a close


@dataclass(frozen=True)
class Review:
    """The result of a comparison.

    revised: what the feed says of the compared bars where it differs from the record, in the units
        after the adjustments.
    events: kind and text.
    alarm: why trading must stop, or None.
    """

    revised: Revised = field(default_factory=dict)
    adjustments: tuple[Adjustment, ...] = ()
    events: tuple[tuple[str, str], ...] = ()
    alarm: str | None = None


def review(history: Bars, again: Mapping[str, Array], revised: Revised) -> Review:
    """Compare the rows that a feed gives again with the bars that were seen.

    Args:
        history: the bars as they were seen; no row before its first or after its last bar counts.
        again: by ticker (n, 6): time, open, high, low, close, volume.
        revised: `Review.revised` of the last comparison.
    """
    remembered: dict[str, Mapping[str, Sequence[float]]] = {}
    adjustments: list[Adjustment] = []
    events: list[tuple[str, str]] = []
    alarm = None
    for asset, ticker in enumerate(history.tickers):
        rows = again.get(ticker, np.empty((0, 6)))
        seen = _seen(history, asset)
        _, ours, theirs = np.intersect1d(seen[:, 0], rows[:, 0], return_indices=True)
        if not len(ours):
            remembered |= {ticker: revised[ticker]} if ticker in revised else {}
            continue
        seen, rows = seen[ours], rows[theirs]
        known = _overlaid(seen, revised.get(ticker, {}))
        factors = None if _equal(rows, known).all() else _common_factors(known, rows)
        if factors is not None:
            adjustments.append(Adjustment(ticker, int(history.time[-1]), *factors))
            seen, known = _scaled(seen, *factors), _scaled(known, *factors)
            events.append(("adjusted", _adjusted_text(ticker, *factors)))
        tolerance = EQUAL if factors is None else ROUNDING
        changed = ~_equal(rows, known, tolerance)
        if changed.any():
            events.append(("revised", _revised_text(ticker, known[changed], rows[changed])))
            alarm = alarm or _alarm(ticker, known[changed], rows[changed])
        differs = ~_equal(rows, seen)
        if differs.any():
            remembered[ticker] = {str(int(row[0])): row[1:].tolist() for row in rows[differs]}
    return Review(remembered, tuple(adjustments), tuple(events), alarm)


# ---- applying adjustments ----


def adjusted(bars: Bars, adjustments: Sequence[Adjustment]) -> Bars:
    """Return bars, stored as they were seen, in the units after the adjustments."""
    found = {name: getattr(bars, name).copy() for name in COLUMNS}
    # One after the other: followed singly or together, the adjustments lead to the same bits.
    for one in adjustments:
        rows, asset = bars.time <= one.time, bars.tickers.index(one.ticker)
        for name, values in found.items():
            values[rows, asset] *= one.volume if name == "volume" else one.price
    return replace(bars, **found)


def undone(adjustments: Sequence[Adjustment]) -> list[Adjustment]:
    """Return the adjustments that lead back to the units in which bars were seen."""
    return [replace(one, price=1.0 / one.price, volume=1.0 / one.volume) for one in adjustments]


def price_factors(adjustments: Sequence[Adjustment]) -> dict[str, float]:
    """Return the factor of earlier prices, by ticker."""
    factors: dict[str, float] = {}
    for one in adjustments:
        factors[one.ticker] = factors.get(one.ticker, 1.0) * one.price
    return factors


def units_since(adjustments: Sequence[Adjustment], ticker: str, time: int) -> tuple[float, float]:
    """Return the factors of price and volume from the units of a bar to the present ones.

    Args:
        adjustments: all of a slot.
        ticker: the bar's.
        time: its open.
    """
    price = volume = 1.0
    for one in adjustments:
        if one.ticker == ticker and time <= one.time:
            price, volume = price * one.price, volume * one.volume
    return price, volume


def units_moment(decided: int, *, immediate: bool) -> int:
    """Return a time at which units were those in which an order's result is counted.

    Args:
        decided: open of the bar at whose close the order was decided.
        immediate: whether it was filled at that close, before a change of units could be seen;
            otherwise it was filled at the next open, in the units of the next bar.
    """
    return decided if immediate else decided + 1


# ---- comparing ----


def _seen(history: Bars, asset: int) -> Array:
    """Return a ticker's rows (T, 6); in holes all but the time is NaN."""
    columns = [getattr(history, name)[:, asset] for name in COLUMNS]
    rows = np.column_stack([history.time.astype(np.float64), *columns])
    rows[history.hole[:, asset], 1:] = np.nan
    return rows


def _overlaid(rows: Array, revised: Mapping[str, Sequence[float]]) -> Array:
    """Return the rows as the feed said last."""
    known = rows.copy()
    for place, time in enumerate(rows[:, 0]):
        known[place, 1:] = revised.get(str(int(time)), known[place, 1:])
    return known


def _scaled(rows: Array, price: float, volume: float) -> Array:
    return np.asarray(rows * np.array([1.0, *[price] * 4, volume]))


def _equal(one: Array, other: Array, tolerance: float = EQUAL) -> NDArray[np.bool_]:
    """Return which rows are equal."""
    return np.asarray(np.isclose(one, other, rtol=tolerance, atol=0.0).all(axis=1))


def _common_factors(known: Array, rows: Array) -> tuple[float, float] | None:
    """Return the factors of all prices and volumes, None if rows changed in another way."""
    both = np.isfinite(known[:, 1])
    if both.sum() < FEWEST_ROWS:
        return None
    ratios = rows[both, 1:5] / known[both, 1:5]
    traded = both & (known[:, 5] > 0.0) & (rows[:, 5] > 0.0)
    volumes = rows[traded, 5:] / known[traded, 5:]
    price = _common(ratios)
    if price is None:
        return None
    if price != 1.0:
        return price, float(np.median(volumes)) if len(volumes) else 1.0
    # The same prices with all volumes in another unit: lots, or the quote currency's.
    volume = _common(volumes) if len(volumes) >= FEWEST_ROWS else None
    return None if volume in (None, 1.0) else (1.0, float(volume or 1.0))


def _common(ratios: Array) -> float | None:
    """Return the ratio (n, k) of most rows, None if the others are far away; 1 if it is rounding."""
    factor = float(np.median(ratios))
    distance = np.abs(ratios / factor - 1.0).max(axis=1)
    near = distance <= ROUNDING
    if near.mean() < COMMON_SHARE or distance.max() > LARGE - 1.0:
        return None
    return factor if abs(factor - 1.0) > max(EQUAL, 4.0 * distance[near].max()) else 1.0


# ---- words ----


def _adjusted_text(ticker: str, price: float, volume: float) -> str:
    return (
        f"{ticker}: the feed's earlier prices are {price:.6g} times and its volumes {volume:.6g} "
        "times what they were, as after a split or a dividend; units and history follow"
    )


def _revised_text(ticker: str, known: Array, rows: Array) -> str:
    count = len(rows)
    return (
        f"{ticker}: {counted(count, 'bar')} changed after {'it was' if count == 1 else 'they were'} "
        f"seen; the record keeps what was seen. {_example(known, rows)}"
    )


def _example(known: Array, rows: Array) -> str:
    """Return the largest change in words."""
    if not np.isfinite(known[-1, 1]):
        return f"{format_time(int(rows[-1, 0]))}: it was a hole, and has a bar now"
    changes = np.abs(np.nan_to_num(rows[:, 1:] - known[:, 1:]) / np.maximum(known[:, 1:], 1e-300))
    changes = np.nan_to_num(changes)
    row, column = np.unravel_index(int(changes.argmax()), changes.shape)
    before, now = known[row, 1 + column], rows[row, 1 + column]
    time = format_time(int(rows[row, 0]))
    return f"{time}: {COLUMNS[column]} {before:,.8g} is {now:,.8g} now"


def _alarm(ticker: str, known: Array, rows: Array) -> str | None:
    """Return why trading must stop, None if all closes are near what they were."""
    with np.errstate(invalid="ignore"):
        ratios = rows[:, 4] / known[:, 4]
        far = np.flatnonzero((ratios > LARGE) | (ratios < 1.0 / LARGE))
    if not len(far):
        return None
    row = far[-1]
    return (
        f"the feed's close of {ticker} at {format_time(int(rows[row, 0]))} is {rows[row, 4]:,.8g} "
        f"now, {ratios[row]:.4g} times the {known[row, 4]:,.8g} that was seen, and other bars have "
        "not changed by this factor: check the feed and the positions"
    )
