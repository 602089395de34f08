"""The chart's page: a range of a ticker's bars, and what is drawn with them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from werkzeug.exceptions import BadRequest

from sweepd.deploy.dashboard.asked import Asked, date_of, moment_of
from sweepd.deploy.dashboard.candles import (
    AccountLine,
    JoinedBars,
    Span,
    candle_figure,
    joined,
    span_of,
)
from sweepd.deploy.dashboard.indicators import Indicators
from sweepd.deploy.dashboard.pages import chosen
from sweepd.deploy.trading.live.profits import fills_at_once
from sweepd.deploy.trading.live.queries import Records
from sweepd.deploy.trading.live.records import Adjustment
from sweepd.deploy.trading.live.revisions import units_since
from sweepd.envs.crypto.data.timeframe import DAY, bar_seconds
from sweepd.envs.support.errors import InputError

ALL = "all"
RANGES = {
    "1": "1 day",
    "7": "7 days",
    "30": "30 days",
    "90": "90 days",
    "365": "1 year",
    ALL: "all",
}
FEWEST_CANDLES = 100  # in the range that is shown first


def chart(asked: Asked) -> dict[str, Any]:
    """Return the values of the page's template.

    Raises:
        BadRequest: a range or an indicator is not one.
    """
    records, slot = asked.opened.records, asked.slot
    bars, ticker = records.bar_span(slot), asked.asset or next(iter(asked.tickers), "")
    if bars is None or not ticker:
        return {"ticker": ticker, "bars": None}
    step = bar_seconds(asked.trader.timeframe)
    end = bars[1] + step
    days, first, stop = _range(asked, bars[0], end, step)
    span = span_of(first, stop, step)
    adjustments = tuple(asked.opened.store.adjustments(slot))
    found = _joined(records, slot, ticker, span, adjustments)
    candles = found.candles
    marks = records.marks(
        slot,
        asked.account,
        ticker,
        since=span.first,
        until=span.stop,
        seconds=span.seconds,
        adjustments=adjustments,
        immediate=fills_at_once(asked.trader, asked.account),
    )
    profits = asked.opened.profits.read(asked.trader, asked.account)
    trips = [trip for trip in profits.trips if trip.ticker == ticker] if profits else []
    account = _account(asked, ticker, found, adjustments)
    shown, names, problem = _indicators(asked, ticker, span, found, adjustments)
    width, around = stop - first, asked.address("asset", "indicator", "days")
    moved = [max(bars[0], first - width), min(end, stop + width)]
    if days:
        # Days end at a day, so that their address stays readable.
        earlier = around.to(to=date_of(first)) if days != ALL else ""
        later = around.to(to=date_of(min(bars[1], stop - step + width)))
    else:
        earlier = around.to(first=moment_of(moved[0]), stop=moment_of(moved[0] + width))
        later = around.to(first=moment_of(moved[1] - width), stop=moment_of(moved[1]))
    return {
        "ticker": ticker,
        "bars": bars,
        "days": days,
        "ranges": RANGES,
        "until": asked.request.args.get("to"),
        "span": span,
        "candles": candles,
        "account_line": account,
        "buys": sum(mark.fills for mark in marks if mark.side == "buy"),
        "sells": sum(mark.fills for mark in marks if mark.side == "sell"),
        "earlier": earlier if first > bars[0] else None,
        "later": later if stop < end else None,
        "indicators": names,
        "drawn": shown,
        "indicator_problem": problem,
        "figures": {"candles": candle_figure(candles, marks, trips, span, account, shown)}
        if candles.time.size
        else {},
        "address": around,
    }


def _range(asked: Asked, begin: int, end: int, step: int) -> tuple[str, int, int]:
    """Return the chosen number of days ("" for a range of moments), and first and last moment."""
    first, stop = asked.moment("first"), asked.moment("stop")
    if first is not None and stop is not None:
        if first >= stop:
            raise BadRequest("first must be before stop.")
        # Only what is stored: newer bars would change a range that is kept.
        stop = min(max(stop, begin + step), end)
        return "", min(max(first, begin), stop - step), stop
    fitting = (key for key in RANGES if key != ALL and int(key) * DAY >= FEWEST_CANDLES * step)
    days = chosen(asked.request, "days", RANGES, next(fitting, "365"))
    if days == ALL:
        return days, begin, end
    day = asked.day("to")
    stop = end if day is None else min(end, day + DAY)
    return days, stop - int(days) * DAY, stop


@functools.lru_cache(maxsize=16)
def _joined(
    records: Records, slot: str, ticker: str, span: Span, adjustments: tuple[Adjustment, ...]
) -> JoinedBars:
    """Return the candles of a span whose bars are all stored; they never change otherwise."""
    found = records.candles(
        slot, ticker, since=span.first, until=span.stop, adjustments=adjustments
    )
    return joined(found, span.seconds)


def _account(
    asked: Asked, ticker: str, found: JoinedBars, adjustments: Sequence[Adjustment]
) -> AccountLine:
    """Return the account at the candles' closes."""
    times, closes = found.last.tolist(), found.candles.close.tolist()
    lines = asked.opened.records.lines(asked.slot, asked.account, times)
    line = AccountLine([], [], [])
    for time, close in zip(times, closes, strict=True):
        value, held = lines.get(time, (None, {}))
        # Present units, as the closes.
        units = held.get(ticker, 0.0) / units_since(adjustments, ticker, time)[0]
        line.value.append(value)
        line.units.append(None if value is None else units)
        line.weight.append(units * close / value if value else None)
    return line


def _indicators(
    asked: Asked, ticker: str, span: Span, found: JoinedBars, adjustments: tuple[Adjustment, ...]
) -> tuple[dict[str, list[float | None]], Sequence[str], str]:
    """Return the chosen indicators by name, the names to choose from, and why none is drawn."""
    opened = asked.opened
    accounts = {one.name: one.bundle for one in opened.store.accounts(asked.slot)}
    bundle = accounts.get(asked.account) or opened.registry.slot(asked.slot).champion
    known = Indicators.of(opened.registry, bundle)
    wanted = [name for name in asked.request.args.get("indicator", "").split(",") if name]
    if known is None:
        return {}, (), "The features of its policy are not known here." if wanted else ""
    for name in wanted:
        if name not in known.names:
            raise BadRequest(f"indicator={name}: choose one of {', '.join(known.names)}.")
    if not wanted or not found.last.size:
        return {}, known.names, ""
    try:
        shown = known.values(
            opened.records, asked.trader, ticker, wanted, span, found.last, adjustments
        )
    except InputError as problem:
        return {}, known.names, f"No indicator can be drawn: {problem}."
    return shown, known.names, ""
