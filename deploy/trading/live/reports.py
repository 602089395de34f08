"""Events that a slot's trader derives from its bars: risk rules, transfers, days and trades.

Functions that compare with earlier bars take the slot's state, a JSON object, and return a new one:

    risk      reasons of the risk rules at the last decision
    kept out  spans [first, last] of bars in which rules stopped trading; last None while it lasts
    day       number of the UTC day, value at its start, equal weight then, trades and flow since
    missed    bars that were booked without a decision since the last newest one
    undecided newest bars in a row that came too late to be decided
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.trading.brokers.base import Fill
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.flows import rebased
from sweepd.deploy.trading.live.events import Started
from sweepd.deploy.trading.live.records import UNDECIDED_BARS, AccountBar, Event
from sweepd.deploy.trading.paper_trader import Entry
from sweepd.envs.crypto.data.timeframe import DAY, format_time

State = dict[str, Any]
MOST_SPANS = 100  # spans that are kept in the state


def start_events(
    event: Started, bundle: Bundle, last: int, *, continues: bool
) -> list[tuple[str, str]]:
    """Return what is told of a start, kind and text.

    Args:
        event: the start.
        bundle: that is traded.
        last: open of the last processed bar.
        continues: whether the slot has traded before.
    """
    told = []
    if event.lost is not None:
        why = f"{event.lost.why}; the champion takes over at the start, not at a bar"
        told = [("alert", why), ("swapped", swap_text(bundle, event.lost.name))]
    if not continues:
        text = f"{bundle_words(bundle)} starts with broker {event.options.broker}"
        return [*told, ("started", text)]
    told.append(("started", f"continues after the bar of {format_time(last)}"))
    for ticker, why in event.untradable.items():
        text = f"{ticker}: {why} any more; its position stays, and the other tickers are traded"
        told.append(("untradable", text))
    return told


def swap_text(bundle: Bundle, before: str) -> str:
    """Return in a sentence that a bundle takes over from another one."""
    return f"{bundle_words(bundle)} takes over from {before}, with the present positions"


def bundle_words(bundle: Bundle) -> str:
    """Return a bundle's name and origin."""
    market = ", synthetic market" if bundle.manifest.data.synthetic else ""
    return f"{bundle.name} (trial {bundle.origin.trial} of {bundle.origin.study}{market})"


def note_delay(
    state: State, bar: int, delay: float, limit: float, *, newest: bool
) -> tuple[State, list[Event]]:
    """Count bars that were missed or came too late, and return the events.

    Args:
        state: the slot's state.
        bar: open of the closed bar.
        delay: seconds since it ended.
        limit: after which it is not decided.
        newest: no later bar has closed.
    """
    missed = state.get("missed", 0)
    if not newest:
        return state | {"missed": missed + 1}, []
    events: list[Event] = []
    if missed:
        text = f"{missed} missed bars were booked; nothing was traded in them"
        events.append(("caught up", text, bar))
    undecided = state.get("undecided", 0) + 1 if delay > limit else 0
    if undecided == UNDECIDED_BARS:
        text = (
            f"{undecided} bars in a row came too late to be decided, the last one {delay:,.0f} s "
            f"after its end, and the limit is {limit:,.0f} s: check this machine's clock and the "
            "feed, or set --max-delay"
        )
        events.append(("alert", text, bar))
    return state | {"missed": 0, "undecided": undecided}, events


def note_risk(entry: Entry, state: State) -> tuple[State, list[Event]]:
    """Return an event when the reasons of the risk rules change, and the spans without trading."""
    reasons, before = list(entry.verdict.reasons), state.get("risk", [])
    # Bars without a decision (missed ones) have no reasons of their own.
    if entry.action is None or reasons == before:
        return state, []
    spans = [list(span) for span in state.get("kept out", [])]
    if reasons and not before:
        spans.append([entry.time, None])
    elif not reasons:
        spans[-1][1] = entry.time
    text = "; ".join(reasons) or "no risk rule restricts trading any more"
    state = state | {"risk": reasons, "kept out": spans[-MOST_SPANS:]}
    return state, [("risk", text, entry.time)]


def transfer_events(entry: Entry, bar: ClosedBar, tickers: Sequence[str]) -> list[Event]:
    """Return an event for a transfer or a cost that no order explains."""
    if not (entry.flow or entry.flow.cost):
        return []
    kind = "transfer" if entry.flow else "cost"
    return [(kind, entry.flow.text(tickers, bar.close), bar.time)]


def note_day(line: AccountBar, equal_weight: float, state: State) -> tuple[State, list[Event]]:
    """Return one event per UTC day, when the first bar of the next day is done.

    Args:
        line: the bar's line of the slot's own account.
        equal_weight: value of the benchmark at the same close.
        state: the slot's state.
    """
    today = {
        "day": line.time // DAY,
        "value": line.value,
        "equal": equal_weight,
        "trades": 0,
        "flow": 0.0,
    }
    before = state.get("day")
    if before is None:
        return state | {"day": today}, []
    # Transfers move the day's initial value, so that they are no gain of the day.
    base = rebased(before["value"], line.value, line.flow)
    trades, flow = before["trades"] + line.trades, before.get("flow", 0.0) + line.flow
    if before["day"] == today["day"]:
        if not (line.trades or line.flow):
            return state, []
        return state | {"day": before | {"value": base, "trades": trades, "flow": flow}}, []
    gained = line.value / base - 1 if base > 0.0 else 0.0
    held = equal_weight / before["equal"] - 1
    moved = f", transfers {flow:+,.2f}" if flow else ""
    text = (
        f"{format_time(before['day'] * DAY)[:10]}: {line.value:,.2f} ({gained:+.2%}{moved}), "
        f"equal weight {held:+.2%}, {trades} trades"
    )
    return state | {"day": today}, [("day", text, line.time)]


def trade_text(fill: Fill) -> str:
    """Return the result of an order in a sentence."""
    order = fill.order
    text = f"{order.side} {order.ticker} was not filled"
    if fill.status == "filled":
        text = (
            f"{order.side} {fill.units:.8g} {order.ticker} at {fill.price:,.8g} "
            f"for {fill.notional:,.2f}"
        )
    return f"{text}; {fill.reason}" if fill.reason else text
