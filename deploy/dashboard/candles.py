"""Candles of a ticker with the account's orders and round trips marked."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sweepd.deploy.dashboard import formatting
from sweepd.deploy.trading.live.queries import Candles, Mark
from sweepd.deploy.trading.round_trips import RoundTrip
from sweepd.envs.crypto.data.timeframe import DAY

Figure = dict[str, Any]
MOST_CANDLES = 400
# Candles join so many bars that they begin at round times.
JOINED = (1, 2, 3, 4, 6, 12, 24, 48, 72, 144, 288)


@dataclass(frozen=True)
class Span:
    """Bars that open in first <= time < stop. seconds: between two candles."""

    first: int
    stop: int
    seconds: int


def span_of(last: int, days: int, step: int) -> Span:
    """Return the days that end with the bar that opened at `last`.

    Args:
        last: open of the newest bar to show.
        days: their number.
        step: seconds between two bars.
    """
    bars = max(1, days * DAY // step)
    joined = next((one for one in JOINED if bars <= MOST_CANDLES * one), JOINED[-1])
    return Span(last + step - days * DAY, last + step, joined * step)


def joined(found: Candles, seconds: int) -> Candles:
    """Return candles that begin at multiples of `seconds`, without holes if there is any bar."""
    keep = ~found.hole
    time = found.time[keep] // seconds * seconds
    if not time.size:
        return found
    starts, first = np.unique(time, return_index=True)
    last = np.append(first[1:], len(time)) - 1
    return Candles(
        starts,
        found.open[keep][first],
        np.maximum.reduceat(found.high[keep], first),
        np.minimum.reduceat(found.low[keep], first),
        found.close[keep][last],
        np.add.reduceat(found.volume[keep], first),
        np.zeros(len(starts), dtype=np.bool_),
    )


def candle_figure(
    candles: Candles, marks: Sequence[Mark], trips: Sequence[RoundTrip], span: Span
) -> Figure:
    """Return a figure of candles, volume, orders and round trips.

    Args:
        candles: as `joined` returns them.
        marks: fills of the ticker, joined by candle.
        trips: of the ticker.
        span: what the candles show.
    """
    times = [1000 * int(moment) for moment in candles.time]
    width = 1000 * span.seconds
    # A candle is drawn around its middle, where the orders of its bars are, too.
    middles = [moment + width // 2 for moment in times]
    data: list[Figure] = [
        {
            "type": "candlestick",
            "name": "price",
            "x": middles,
            **{name: getattr(candles, name).tolist() for name in ("open", "high", "low", "close")},
            "increasing": {"line": {"color": "tone:good", "width": 1}},
            "decreasing": {"line": {"color": "tone:bad", "width": 1}},
            "hoverinfo": "x+y",
        },
        {
            "type": "bar",
            "name": "volume",
            "x": middles,
            "y": candles.volume.tolist(),
            "yaxis": "y2",
            "marker": {"color": "tone:mark"},
            "showlegend": False,
            "hovertemplate": "volume %{y:,.6~g}<extra></extra>",
        },
    ]
    data += [_lines(trips, span, gains) for gains in (True, False)]
    data += [_marks(marks, side) for side in ("buy", "sell")]
    return {
        "data": [trace for trace in data if trace["x"]],
        "layout": {
            "xaxis": {
                "type": "date",
                "anchor": "y2",
                "rangeslider": {"visible": False},
                "range": [1000 * span.first, 1000 * span.stop],
            },
            "yaxis": {"domain": [0.24, 1.0], "title": {"text": "price"}},
            "yaxis2": {"domain": [0.0, 0.18], "title": {"text": "volume"}, "nticks": 3},
            "hovermode": "closest",
            # Another range, ticker or account begins with its own zoom.
            "uirevision": f"{span.first}",
        },
    }


def _marks(marks: Sequence[Mark], side: str) -> Figure:
    own = [mark for mark in marks if mark.side == side]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "buys" if side == "buy" else "sells",
        "x": [1000 * mark.at for mark in own],
        "y": [mark.price for mark in own],
        "text": [
            f"{side if mark.fills == 1 else f'{mark.fills} {side}s'} "
            f"{formatting.units(mark.units)} at {formatting.price(mark.price)}<br>"
            f"{formatting.money(mark.notional)}, fee {formatting.money(mark.fee)}"
            for mark in own
        ],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {
            "symbol": "triangle-up" if side == "buy" else "triangle-down",
            "size": 10,
            "color": "tone:account" if side == "buy" else "tone:equal",
            "line": {"width": 1, "color": "tone:paper"},
        },
    }


def _lines(trips: Sequence[RoundTrip], span: Span, gains: bool) -> Figure:
    """Return the closed round trips with or without a profit, as lines from entry to exit."""
    shown = [
        trip
        for trip in trips
        if trip.closed is not None
        and trip.exit is not None
        and (trip.realised > 0.0) == gains
        and trip.closed >= span.first
        and trip.opened < span.stop
    ]
    # None breaks the line between two round trips.
    points = itertools.chain.from_iterable(
        ((1000 * trip.opened, trip.entry), (1000 * (trip.closed or 0), trip.exit), (None, None))
        for trip in shown
    )
    x, y = zip(*points, strict=True) if shown else ((), ())
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "gains" if gains else "losses",
        "x": list(x),
        "y": list(y),
        "line": {
            "color": "tone:good" if gains else "tone:bad",
            "dash": "solid" if gains else "dot",
            "width": 2,
        },
        "hoverinfo": "skip",
    }
