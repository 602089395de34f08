"""The chart of a ticker: candles with orders and round trips, position, account and indicators.

Every range is answered with at most `MOST_CANDLES` candles, so a page that zooms asks for the new
range and gets finer ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweepd.deploy.dashboard import formatting
from sweepd.deploy.trading.live.queries import Candles, Mark
from sweepd.deploy.trading.round_trips import RoundTrip

Figure = dict[str, Any]
MOST_CANDLES = 400
# Candles join so many bars that they begin at round times.
JOINED = (1, 2, 3, 4, 6, 12, 24, 48, 72, 144, 288, 576, 1440, 2880, 4320, 10080, 20160, 43200)
# Heights of the chart's rows, relative to one another; each indicator is a row of its own.
HEIGHTS = {"price": 5.0, "volume": 1.0, "indicator": 1.2, "position": 1.2, "account": 1.6}
GAP = 0.5  # between two rows
LOG_FROM = 3.0  # ratio of highest to lowest value from which the account is drawn on a log scale


@dataclass(frozen=True)
class Span:
    """Bars that open in first <= time < stop. seconds: between two candles."""

    first: int
    stop: int
    seconds: int


def span_of(first: int, stop: int, step: int) -> Span:
    """Return the span of a range of time, begun early enough that its first candle is whole.

    Args:
        first: first moment to show, seconds since the epoch.
        stop: the moment after the last one.
        step: seconds between two bars.
    """
    bars = max(1, (stop - first) // step)
    joined = next((one for one in JOINED if bars <= MOST_CANDLES * one), JOINED[-1])
    seconds = joined * step
    # One candle more at the left edge is still at most `MOST_CANDLES` on the screen.
    return Span(first // seconds * seconds if joined > 1 else first, stop, seconds)


@dataclass(frozen=True, eq=False)
class JoinedBars:
    """Candles that begin at multiples of their length, without holes if there is any bar.

    last: open of each candle's last bar, whose close is the candle's.
    """

    candles: Candles
    last: NDArray[np.int64]


def joined(found: Candles, seconds: int) -> JoinedBars:
    """Return bars joined to candles of `seconds`."""
    keep = ~found.hole
    opens = found.time[keep]
    time = opens // seconds * seconds
    if not time.size:
        return JoinedBars(found, found.time)
    starts, first = np.unique(time, return_index=True)
    last = np.append(first[1:], len(time)) - 1
    candles = Candles(
        starts,
        found.open[keep][first],
        np.maximum.reduceat(found.high[keep], first),
        np.minimum.reduceat(found.low[keep], first),
        found.close[keep][last],
        np.add.reduceat(found.volume[keep], first),
        np.zeros(len(starts), dtype=np.bool_),
    )
    return JoinedBars(candles, opens[last])


@dataclass(frozen=True)
class AccountLine:
    """The account at the close of each candle; None where it has no line.

    value: quote units. weight: the position's value as a fraction of it, negative if short. units:
    held, in present units.
    """

    value: list[float | None]
    weight: list[float | None]
    units: list[float | None]

    @property
    def is_wide(self) -> bool:
        """Whether its values differ so much that a log scale shows them better."""
        known = [value for value in self.value if value is not None]
        return bool(known) and 0.0 < LOG_FROM * min(known) < max(known)


def candle_figure(
    candles: Candles,
    marks: Sequence[Mark],
    trips: Sequence[RoundTrip],
    span: Span,
    account: AccountLine,
    indicators: Mapping[str, Sequence[float | None]],
) -> Figure:
    """Return a figure of candles, volume, orders, round trips, and rows below them.

    Args:
        candles: as `joined` returns them.
        marks: fills of the ticker, joined by candle.
        trips: of the ticker.
        span: what the candles show.
        account: at the candles' closes.
        indicators: values at the candles' closes, by name.
    """
    width = 1000 * span.seconds
    # A candle is drawn around its middle, where the orders of its bars are, too.
    middles = [1000 * int(moment) + width // 2 for moment in candles.time]
    price: list[Figure] = [
        {
            "type": "candlestick",
            "name": "price",
            "x": middles,
            **{name: getattr(candles, name).tolist() for name in ("open", "high", "low", "close")},
            "increasing": {"line": {"color": "tone:good", "width": 1}},
            "decreasing": {"line": {"color": "tone:bad", "width": 1}},
            "hoverinfo": "x+y",
        },
        *(_trips(trips, span, gains) for gains in (True, False)),
        *(_marks(marks, side) for side in ("buy", "sell")),
    ]
    volume = {
        "type": "bar",
        "name": "volume",
        "x": middles,
        "y": candles.volume.tolist(),
        "marker": {"color": "tone:mark"},
        "showlegend": False,
        "hovertemplate": "volume %{y:,.6~g}<extra></extra>",
    }
    held = [formatting.units(units) for units in account.units]
    position = _line("position", middles, account.weight, "rival2", "%{y:.1%}, %{text} units") | {
        "text": held,
        "fill": "tozeroy",
        "line": {"shape": "hv", "width": 1.5},
    }
    rows: list[tuple[str, list[Figure], Figure]] = [
        ("price", price, {"title": {"text": "price"}}),
        ("volume", [volume], _small("volume")),
        *(
            ("indicator", [_line(name, middles, values, "rival3", "%{y:.3f}")], _small(name))
            for name, values in indicators.items()
        ),
        ("position", [position], _small("position") | {"tickformat": ".0%"}),
        (
            "account",
            [_line("account", middles, account.value, "account", "%{y:,.2f}")],
            _small("account") | {"type": "log" if account.is_wide else "linear"},
        ),
    ]
    figure = _stacked(rows)
    figure["layout"] |= {
        "hovermode": "closest",
        "legend": {"orientation": "h", "y": -0.06},
        # Another range begins with its own zoom.
        "uirevision": f"{span.first} {span.stop}",
    }
    figure["layout"]["xaxis"] |= {
        "rangeslider": {"visible": False},
        "range": [1000 * span.first, 1000 * span.stop],
    }
    return figure


def _stacked(rows: Sequence[tuple[str, list[Figure], Figure]]) -> Figure:
    """Return a figure of rows with one axis of time, given kind, traces and axis of each."""
    total = sum(HEIGHTS[kind] for kind, _, _ in rows) + GAP * (len(rows) - 1)
    data: list[Figure] = []
    layout: Figure = {}
    top = total
    for number, (kind, traces, axis) in enumerate(rows, start=1):
        bottom = max(0.0, top - HEIGHTS[kind])
        name = "" if number == 1 else str(number)
        layout[f"yaxis{name}"] = axis | {
            "domain": [round(bottom / total, 4), round(top / total, 4)],
            # Dragging chooses a range of time; prices follow it.
            "fixedrange": True,
        }
        data += [trace | ({"yaxis": f"y{name}"} if name else {}) for trace in traces if trace["x"]]
        top = bottom - GAP
    layout["xaxis"] = {"type": "date", "anchor": f"y{len(rows)}"}
    return {"data": data, "layout": layout}


def _small(title: str) -> Figure:
    return {"title": {"text": title, "font": {"size": 10}}, "nticks": 3}


def _line(name: str, x: list[int], y: Sequence[float | None], tone: str, template: str) -> Figure:
    shown = [None if one is None or not math.isfinite(one) else one for one in y]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "tone": tone,
        "x": x if any(one is not None for one in shown) else [],
        "y": shown,
        "line": {"width": 1.5},
        "showlegend": False,
        "hovertemplate": f"{name} {template}<extra></extra>",
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


def _trips(trips: Sequence[RoundTrip], span: Span, gains: bool) -> Figure:
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
