"""Bars that no market traded: spikes, unadjusted splits and volumes that change their unit.

A real crash moves within bars: each bar opens where the last one closed. Wrong bars do not, so most
checks look at the gap between a close and the next open. They are the same for all timeframes and
need no neighbouring market.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sweepd.envs.crypto.data.bar_files import PRICES, TickerBars, stamp
from sweepd.envs.crypto.data.timeframe import bars_per_day

ACCEPT_JUMPS = (
    "Take bars that look wrong (prices that jump and return, splits that are not adjusted, volumes "
    "that change their unit), and record it."
)
DEVIATIONS = 20  # robust deviations that a jump exceeds
# Factors of the price. Below `_LEAST`, nothing is looked at.
_LEAST = np.log(1.5)
_WITHOUT_GAP = np.log(4)  # a spike whose bars connect to their neighbours may be a flash crash
_ENOUGH = np.log(50)  # a spike of this size is one, however much the prices vary
_WICK = np.log(10)  # the largest known at a large exchange is 7.7 (BTC at Binance US, 2021)
_OUTSIDE = np.log(1.1)  # open or close outside low … high
_STAYING = np.log(9)  # a gap that stays: beyond what a market that reopens does
_SPLITS = tuple(range(2, 9))
_ROUND = (9, 10, 12, 15, 20, 25, 30, 40, 50, 100, 200, 500, 10**3, 10**4, 10**5, 10**6)
_SPLIT_TOLERANCE = (0.05, 0.10)  # the price also moves from one bar to the next
_SPLIT_DEVIATIONS = 8
_AROUND = 50  # bars on each side that say how much prices vary
# A unit of volume: medians of days, a week before and after.
_BLOCKS = 7
_LEAST_BLOCK = 10
_VOLUME = np.log(50)
_VOLUME_APART = np.log(10)
_NAMED = 8  # splits in one sentence

_Array = NDArray[np.float64]
_Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Jump:
    """A place where bars are not what a market traded.

    Attributes:
        row: of the bar, or of the first one after a change that stays.
        time: of the bar, seconds UTC.
        kind: "spike", "wick", "outside", "split" or "volume".
        words: what is wrong.
        factor: of a split, the number by which earlier prices are to be divided; of volumes, the
            number by which earlier volumes are to be multiplied; otherwise 0.
    """

    row: int
    time: int
    kind: str
    words: str
    factor: float = 0.0


_ADVICE = {
    "spike": "correct or remove the row, or take it as it is with --accept-jumps",
    "wick": "correct or remove the row, or take it as it is with --accept-jumps",
    "outside": "correct or remove the row, or take it as it is with --accept-jumps",
    "split": "adjust the bars before it with {command}, or take them as they are with "
    "--accept-jumps",
    "volume": "adjust the bars before it with {command}, or take them as they are with "
    "--accept-jumps",
}


def jump_problems(
    bars: TickerBars, command: str = "", place: Callable[[int], str] | None = None
) -> Iterator[str]:
    """Yield one sentence for each kind of jump that was not accepted.

    Args:
        bars: the bars of a file in which `problems.file_problems` finds nothing.
        command: the beginning of the command that adjusts the bars; by default an import of the
            file's folder.
        place: gives the file and row of a bar; by default those of `bars`.
    """
    folder = bars.path.parent
    command = command or f"sweepd data import --from {folder} --to {folder}-adjusted"
    where = place or (lambda row: f"{bars.path}: row {row}")
    found = [jump for jump in find_jumps(bars) if jump.time not in bars.accepted]
    for kind, advice in _ADVICE.items():
        alike = [jump for jump in found if jump.kind == kind]
        if alike:
            flags = " ".join(adjusting_flag(bars.ticker, jump) for jump in alike[:_NAMED])
            more = f" ({len(alike):,} such rows)" if len(alike) > 1 else ""
            yield (
                f"{where(alike[0].row)} ({stamp(alike[0].time)} UTC): {alike[0].words}"
                f"{more}; {advice.format(command=f'`{command} {flags}`')}"
            )


def adjusting_flag(ticker: str, jump: Jump) -> str:
    """Return the flag of `data import` that adjusts the bars before a jump that stays."""
    time = stamp(jump.time).replace(" ", "T").removesuffix("T00:00")
    flag = "--volume-unit" if jump.kind == "volume" else "--split"
    return f"{flag} {ticker}={time}:{jump.factor:.6g}"


def find_jumps(bars: TickerBars) -> list[Jump]:
    """Find the jumps of a file, accepted ones included, in the order of rows.

    Found are

    * spikes: at most two bars whose prices depart from both neighbours by more than 20 robust
      deviations of the 100 bars around them, at least by the factor 1.5, and return. Where no gap
      between bars is part of it, as in a flash crash, at least by the factor 4;
    * wicks: high or low beyond ten times the open and close, or less than a tenth of them;
    * open or close outside low … high by more than 10%;
    * splits: gaps that stay, of a factor near 2 … 8 or above 9, or their inverse;
    * volumes whose daily median changes by the factor 50 and stays apart for a week.

    Args:
        bars: valid bars: prices finite and above zero, times rising.
    """
    return sorted((*_price_jumps(bars), *_volume_jumps(bars)), key=lambda jump: jump.row)


def _price_jumps(bars: TickerBars) -> Iterator[Jump]:
    prices = np.log(bars.values[:, :4])
    path = prices[:, [0, 3]].reshape(-1)  # open, close, open, close, …
    spikes = _spikes(path)
    jump = partial(_jump, bars)
    for row, (first, depth) in spikes.items():
        yield jump(row, "spike", _spike_words(bars, prices, row, first, depth))
    high, low = prices[:, 1], prices[:, 2]
    top, bottom = prices[:, [0, 3]].max(axis=1), prices[:, [0, 3]].min(axis=1)
    for kind, depths, most in (
        ("wick", np.stack([high - top, bottom - low]), _WICK),
        ("outside", np.stack([top - high, low - bottom]), _OUTSIDE),
    ):
        for row in np.flatnonzero(depths.max(axis=0) >= most).tolist():
            if row not in spikes:
                side = int(np.argmax(depths[:, row]))
                yield jump(row, kind, _range_words(bars, row, kind, side))
    busy = np.zeros(len(prices) + 2, dtype=np.bool_)
    for row in spikes:  # the gaps into a spike of two bars and out of it
        busy[row : row + 3] = True
    for row, factor in _level_changes(path, busy):
        before, after = float(bars.values[row - 1, 3]), float(bars.values[row, 0])
        change = f"divided by {factor:g}" if factor > 1 else f"multiplied by {1 / factor:g}"
        words = (
            f"open {after!r} follows close {before!r}, and prices stay {change}, as after a split "
            "or a change of unit"
        )
        yield jump(row, "split", words, factor)


def _jump(bars: TickerBars, row: int, kind: str, words: str, factor: float = 0.0) -> Jump:
    return Jump(row, int(bars.time[row]), kind, words, factor)


# ---- spikes ----


def _spikes(path: _Array) -> dict[int, tuple[int, float]]:
    """Find departures of at most two bars that return.

    Args:
        path: (2n,) logarithms of open and close in turn.

    Returns:
        row → (number of its first price in `path`, smallest distance to both neighbours).
    """
    found: dict[int, tuple[int, float]] = {}
    least, most = path[1:-1], path[1:-1]
    for length in range(1, 5):  # prices in a departure
        if len(path) < length + 2:
            break
        if length > 1:
            least = np.minimum(least[:-1], path[length:-1])
            most = np.maximum(most[:-1], path[length:-1])
        before, after = path[: -length - 1], path[length + 1 :]
        nearest, farthest = np.minimum(before, after), np.maximum(before, after)
        depth = np.maximum(least - farthest, nearest - most)
        first = np.flatnonzero((depth >= _LEAST) & (farthest - nearest <= depth / 2)) + 1
        if not len(first):
            continue
        depth = depth[first - 1]
        # Prices with even numbers are opens: into them, and out of the close before, leads a gap.
        gap = (first % 2 == 0) | ((first + length) % 2 == 0)
        limit = np.maximum(
            DEVIATIONS * _deviation(path, first // 2), np.where(gap, _LEAST, _WITHOUT_GAP)
        )
        real = depth < np.minimum(limit, _ENOUGH)
        for number, size in zip(first[~real].tolist(), depth[~real].tolist(), strict=True):
            row = number // 2
            if size > found.get(row, (0, 0.0))[1]:
                found[row] = number, size
    return found


def _deviation(path: _Array, rows: _Ints) -> _Array:
    """Return the robust deviation of price changes around rows, without the rows themselves.

    It is 1.4826 times the median size of those that are not zero, so that bars without trades, and
    prices of a few ticks, do not make it zero.

    Returns:
        (rows,); zero where fewer than ten bars change.
    """
    offsets = np.concatenate([np.arange(-_AROUND, -2), np.arange(3, _AROUND + 1)])
    closes = path[1::2]
    made = np.zeros(len(rows))
    for start in range(0, len(rows), 1000):  # bounds the memory
        at = rows[start : start + 1000, None] + offsets
        inside = (at >= 1) & (at < len(closes))
        at = np.clip(at, 1, len(closes) - 1)
        sizes = np.abs(closes[at] - closes[at - 1])
        sizes[~inside | (sizes == 0)] = np.nan
        enough = np.isfinite(sizes).sum(axis=1) >= 10
        made[start : start + 1000][enough] = 1.4826 * np.nanmedian(sizes[enough], axis=1)
    return made


def _spike_words(bars: TickerBars, prices: _Array, row: int, first: int, depth: float) -> str:
    path = prices[:, [0, 3]].reshape(-1)
    last = first + 1  # behind the departure
    while last < len(path) - 1 and abs(path[last] - path[first - 1]) >= depth / 2:
        last += 1
    near = (path[first - 1] + path[last]) / 2
    away = [i for i in range(4) if abs(prices[row, i] - near) >= depth / 2]
    column = max(away, key=lambda i: float(abs(prices[row, i] - near)))
    before, after = (float(bars.values[i // 2, 3 * (i % 2)]) for i in (first - 1, last))
    times = float(np.exp(prices[row, column] - near))
    names = [PRICES[i] for i in away if i != column]
    also = f" ({', '.join(names)} likewise)" if names else ""
    return (
        f"{PRICES[column]} {float(bars.values[row, column])!r}{also} is {_times(times)} the prices "
        f"around it ({before!r}, {after!r}), which return at once"
    )


def _times(factor: float) -> str:
    if factor >= 1:
        return f"{factor:,.3g} times" if factor < 1e3 else f"{factor:,.0f} times"
    inverse = 1 / factor
    return f"1/{inverse:.3g} of" if inverse < 1e3 else f"1/{inverse:,.0f} of"


def _range_words(bars: TickerBars, row: int, kind: str, side: int) -> str:
    open_, high, low, close = (float(price) for price in bars.values[row, :4])
    if kind == "wick":
        name, value = (("high", high), ("low", low))[side]
        return f"{name} {value!r} is far from open {open_!r} and close {close!r}"
    beyond = max if side == 0 else min
    name, value = beyond((("open", open_), ("close", close)), key=lambda pair: pair[1])
    return f"{name} {value!r} is outside low {low!r} … high {high!r}"


# ---- changes that stay ----


def _level_changes(path: _Array, busy: NDArray[np.bool_]) -> Iterator[tuple[int, float]]:
    """Yield (row, factor by which earlier prices are to be divided) of gaps that stay.

    Args:
        path: (2n,) logarithms of open and close in turn.
        busy: rows whose gap belongs to a spike.
    """
    opens, closes = path[0::2], path[1::2]
    step = opens[1:] - closes[:-1]
    # Some vendors write the last close as the open: there, a split is within the bar.
    chained = len(step) > 1 and float(np.mean(step == 0)) > 0.99
    if chained:
        step = np.diff(closes)
    rows = np.flatnonzero((np.abs(step) >= _LEAST) & ~busy[1 : len(step) + 1]) + 1
    deviations = _deviation(path, rows)
    for row, deviation in zip(rows.tolist(), deviations.tolist(), strict=True):
        size = float(step[row - 1])
        before = np.median(path[max(0, 2 * row - 6) : 2 * row])
        after = np.median(path[2 * row + chained : 2 * row + 6])
        stays = abs(float(after - before) - size) <= abs(size) / 2
        factor = _split_factor(abs(size), deviation)
        if stays and factor and abs(size) >= min(_SPLIT_DEVIATIONS * deviation, _ENOUGH):
            yield row, factor if size < 0 else 1 / factor


def _split_factor(size: float, deviation: float) -> float:
    """Return the factor of a split of this logarithm; 0 if it is none."""
    tolerance = float(np.clip(3 * deviation, *_SPLIT_TOLERANCE))
    candidates = _SPLITS if size < _STAYING else _ROUND
    nearest = min(candidates, key=lambda k: abs(size - np.log(k)))
    if abs(size - np.log(nearest)) <= tolerance:
        return float(nearest)
    return float(f"{np.exp(size):.3g}") if size >= _STAYING else 0.0


def _volume_jumps(bars: TickerBars) -> Iterator[Jump]:
    """Find changes of the unit of volumes, by medians of blocks of at least ten bars."""
    block = max(_LEAST_BLOCK, bars_per_day(bars.timeframe))
    count = len(bars.time) // block
    if count < 2 * _BLOCKS + 1:
        return
    with np.errstate(divide="ignore"):
        logs = np.log(bars.values[:, 4])
    logs[~np.isfinite(logs)] = np.nan
    blocks = logs[: count * block].reshape(count, block)
    # Blocks that are mostly empty say nothing.
    full = np.isfinite(blocks).sum(axis=1) >= block // 2
    medians = np.full(count, np.nan)
    medians[full] = np.nanmedian(blocks[full], axis=1)
    weeks = np.lib.stride_tricks.sliding_window_view(medians, _BLOCKS)
    # The block in between may be half old, half new. NaN compares as False.
    old, new = weeks[: count - 2 * _BLOCKS], weeks[_BLOCKS + 1 :]
    change = np.median(new, axis=1) - np.median(old, axis=1)
    apart = np.maximum(new.min(axis=1) - old.max(axis=1), old.min(axis=1) - new.max(axis=1))
    size = np.where((np.abs(change) >= _VOLUME) & (apart >= _VOLUME_APART), np.abs(change), 0.0)
    while size.any():
        at = int(np.argmax(size))
        row = _change_point(logs, block * (at + _BLOCKS - 1), block * (at + _BLOCKS + 2))
        factor = float(f"{np.exp(change[at]):.2g}")
        words = (
            f"volume {float(bars.values[row, 4])!r}: volumes are {_times(factor)} those of the "
            "week before from here on, as after a change of unit"
        )
        yield _jump(bars, row, "volume", words, factor)
        size[max(0, at - _BLOCKS) : at + _BLOCKS + 1] = 0.0


def _change_point(logs: _Array, start: int, stop: int) -> int:
    """Return the row from `start` to `stop` that best divides two levels (least squares)."""
    part = logs[start:stop]
    rows = np.flatnonzero(np.isfinite(part))
    sums = np.cumsum(part[rows])
    left = np.arange(1, len(rows))
    right = len(rows) - left
    # Maximises the variance between both sides.
    between = sums[:-1] ** 2 / left + (sums[-1] - sums[:-1]) ** 2 / right
    return start + int(rows[int(np.argmax(between)) + 1])


# ---- what is unusual but taken ----


def unusual_moves(bars: TickerBars) -> list[tuple[int, float]]:
    """Return (row, factor) of closes that differ from the last by more than 20 robust deviations.

    Only factors above 1.5 or below 1/1.5 count, and jumps are left out.
    """
    closes = np.log(bars.values[:, 3])
    returns = np.diff(closes)
    moved = np.abs(returns[returns != 0])
    limit = max(_LEAST, DEVIATIONS * 1.4826 * float(np.median(moved)) if len(moved) else 0.0)
    rows = np.flatnonzero(np.abs(returns) > limit) + 1
    if not len(rows):
        return []
    wrong = {jump.row for jump in find_jumps(bars)}
    wrong |= {row + 1 for row in wrong}
    return [(row, float(np.exp(returns[row - 1]))) for row in rows.tolist() if row not in wrong]


def with_accepted(bars: TickerBars) -> TickerBars:
    """Return the bars with their jumps recorded as accepted."""
    times = sorted({jump.time for jump in find_jumps(bars)} | bars.accepted)
    if not times:
        return bars
    record = " ".join(map(str, times))
    return replace(bars, metadata={**bars.metadata, "accepted_jumps": record})
