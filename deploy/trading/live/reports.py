"""Events that a slot's trader derives from its bars: risk rules, transfers, days and trades.

Functions that compare with earlier bars take the slot's state, a JSON object, and return a new one:

    risk      reasons of the risk rules at the last decision
    kept out  spans [first, last] of bars in which rules stopped trading; last None while it lasts
    day       number of the UTC day, value at its start, equal weight then, trades and flow since
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sweepd.deploy.trading.brokers.base import Fill
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.flows import rebased
from sweepd.deploy.trading.live.records import AccountBar, Event
from sweepd.deploy.trading.paper_trader import Entry
from sweepd.envs.crypto.data.timeframe import DAY, format_time

State = dict[str, Any]
MOST_SPANS = 100  # spans that are kept in the state


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
