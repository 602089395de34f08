"""Which tickers limit the range that all tickers of a market have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sweepd.envs.crypto.data.bar_files import TickerBars, read_bars, select_files, stamp
from sweepd.envs.crypto.data.timeframe import bars_between

_NAMED = 8  # tickers in a sentence


@dataclass(frozen=True)
class Span:
    """The range of a ticker's bars: first and last are opening times in seconds UTC."""

    ticker: str
    first: int
    last: int


def limits_of_files(
    data_dir: Path, timeframe: str, tickers: Sequence[str] | None, needed: int
) -> str:
    """Return what `describe_limits` says of the files of a folder.

    Raises:
        InputError: a file cannot be read.
    """
    series = [
        read_bars(path, timeframe) for path in select_files(data_dir, timeframe, tickers).values()
    ]
    return describe_limits(spans_of(series), timeframe, needed)


def spans_of(series: Sequence[TickerBars]) -> list[Span]:
    """Return the ranges of tickers."""
    return [Span(bars.ticker, int(bars.time[0]), int(bars.time[-1])) for bars in series]


def describe_limits(spans: Sequence[Span], timeframe: str, needed: int) -> str:
    """Say which tickers limit the common range, and which to leave out; "" for one ticker.

    Args:
        spans: of all tickers.
        timeframe: of the bars.
        needed: bars that a study needs; 0 if no number would be enough.
    """
    if len(spans) < 2:
        return ""
    newest = max(spans, key=lambda span: span.first)
    oldest = min(spans, key=lambda span: span.last)
    limits = (
        f"the range common to the {len(spans)} tickers begins with {newest.ticker} "
        f"({stamp(newest.first)} UTC) and ends with {oldest.ticker} ({stamp(oldest.last)} UTC)"
    )
    out = _left_out(spans, timeframe, needed)
    if out is None:
        return f"{limits}; no choice of these tickers has enough"
    left, bars = out
    names = ", ".join(span.ticker for span in left[:_NAMED])
    more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    return f"{limits}; without {names}{more} it has {bars:,} bars (leave them out of --tickers)"


def _left_out(spans: Sequence[Span], timeframe: str, needed: int) -> tuple[list[Span], int] | None:
    """Return the fewest tickers without which the others have enough bars, and how many."""
    if not needed:
        return None
    by_start = sorted(spans, key=lambda span: -span.first)
    for count in range(1, len(spans)):
        best: tuple[int, list[Span]] | None = None
        # The latest starts, then the earliest ends among the others.
        for starts in range(count + 1):
            out = by_start[:starts]
            rest = sorted(by_start[starts:], key=lambda span: span.last)
            out, rest = [*out, *rest[: count - starts]], rest[count - starts :]
            first, last = max(s.first for s in rest), min(s.last for s in rest)
            bars = bars_between(timeframe, first, last) + 1 if first <= last else 0
            if best is None or bars > best[0]:
                best = bars, out
        assert best is not None
        if best[0] >= needed:
            return best[1], best[0]
    return None
