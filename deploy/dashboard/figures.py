"""Figures for Plotly's JavaScript. Colours are names (`tone`) that the page resolves, light or
dark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sweepd.deploy.dashboard.series import Day, EquityCurve
from sweepd.deploy.dashboard.view import SlotView
from sweepd.deploy.promotion.sections import short
from sweepd.deploy.trading.live.records import EQUAL_WEIGHT, ParityDay

Figure = dict[str, Any]
# Number of tones of challengers and of held tickers; the fifth has the first tone, another dash.
RIVALS, HELD = 4, 4
DASHES = ("solid", "dash", "dot", "dashdot")


def account_tones(accounts: Sequence[tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Return tone and dash of every account, given pairs of name and kind."""
    found, rivals, held = {}, 0, 0
    for name, kind in accounts:
        if kind in ("account", "shadow"):
            found[name] = ("account", "solid" if kind == "account" else "dot")
        elif kind == "challenger":
            found[name] = (f"rival{rivals % RIVALS}", DASHES[rivals // RIVALS % len(DASHES)])
            rivals += 1
        elif name in (EQUAL_WEIGHT, "cash"):
            found[name] = (
                "equal" if name == EQUAL_WEIGHT else "cash",
                "solid" if name == EQUAL_WEIGHT else "dash",
            )
        else:
            found[name] = (f"held{held % HELD}", "dot" if held < HELD else "dashdot")
            held += 1
    return found


def equity_figure(view: SlotView) -> Figure:
    """Return a figure of all accounts: returns since its left edge, and drawdowns below.

    Held tickers are hidden until they are selected in the legend.
    """
    tones = account_tones([(curve.account, curve.kind) for curve in view.curves])
    data: list[Figure] = []
    for curve in view.curves:
        # Single tickers would hide the account among many lines.
        hidden = curve.kind == "benchmark" and curve.account not in (EQUAL_WEIGHT, "cash")
        look = _look(curve, tones[curve.account], "legendonly" if hidden else True)
        times = [1000 * moment for moment in curve.time]
        returns = [round(value - 1.0, 6) for value in curve.value]
        data.append(look | {"x": times, "y": returns, "hovertemplate": "%{y:+.2%}"})
        if curve.account != "cash":
            below = [-value for value in curve.drawdown]
            data.append(
                look
                | {"x": times, "y": below, "yaxis": "y2", "showlegend": False, "hoverinfo": "skip"}
            )
    begin = min((curve.time[0] for curve in view.curves), default=0)
    marks = [(moment, hash_) for moment, hash_ in view.marks if moment > begin]
    layout: Figure = {
        "xaxis": {"type": "date", "anchor": "y2"},
        "yaxis": {"domain": [0.34, 1.0], "tickformat": "+.1~%", "title": {"text": "return"}},
        "yaxis2": {"domain": [0.0, 0.28], "tickformat": ".1~%", "title": {"text": "below peak"}},
        "hovermode": "x unified",
        "shapes": [
            {
                "type": "line",
                "yref": "paper",
                "y0": 0.34,
                "y1": 1,
                "x0": 1000 * at,
                "x1": 1000 * at,
                "tone": "mark",
            }
            for at, _ in marks
        ],
        "annotations": [
            {
                "x": 1000 * at,
                "y": 1,
                "yref": "paper",
                "xanchor": "left",
                "yanchor": "top",
                "showarrow": False,
                "text": f" champion {short(hash_)[:8]}",
            }
            for at, hash_ in marks
        ],
    }
    return {"data": data, "layout": layout}


def rate_figure(history: Mapping[str, Any]) -> Figure:
    """Return a figure of trials per hour over a study's time."""
    parts = history["rates"]
    bars = {
        "type": "bar",
        "tone": "account",
        "name": "trials/hour",
        "offset": 0,
        "showlegend": False,
        "x": [1000 * part["at"] for part in parts],
        "width": [1000 * part["seconds"] for part in parts],
        "y": [round(part["per_hour"], 3) for part in parts],
        "customdata": [part["finished"] for part in parts],
        "hovertemplate": "%{y:.1f} trials/hour, %{customdata} finished<extra></extra>",
    }
    layout = {
        "xaxis": {"type": "date"},
        "yaxis": {"title": {"text": "trials/hour"}, "rangemode": "tozero"},
    }
    return {"data": [bars], "layout": layout}


def best_figure(history: Mapping[str, Any]) -> Figure:
    """Return a figure of the complete trials' values, and the best so far."""
    values = history["values"]
    times = [1000 * one["at"] for one in values]
    dots = {
        "type": "scatter",
        "mode": "markers",
        "tone": "cash",
        "name": "a trial",
        "x": times,
        "y": [one["value"] for one in values],
        "text": [f"trial {one['trial']}" for one in values],
        "hovertemplate": "%{text}: %{y:+.4f}<extra></extra>",
        "marker": {"size": 6},
    }
    line = {
        "type": "scatter",
        "mode": "lines",
        "tone": "account",
        "name": "best so far",
        "x": times,
        "y": [one["best"] for one in values],
        "line": {"shape": "hv", "width": 2.5},
        "hovertemplate": "best so far %{y:+.4f}<extra></extra>",
    }
    return {
        "data": [dots, line],
        "layout": {
            "xaxis": {"type": "date"},
            "yaxis": {"title": {"text": "objective"}},
            "hovermode": "closest",
        },
    }


def _look(curve: EquityCurve, tone: tuple[str, str], visible: bool | str) -> Figure:
    colour, dash = tone
    return {
        "type": "scatter",
        "mode": "lines",
        "name": curve.account,
        "legendgroup": curve.account,
        "tone": colour,
        "visible": visible,
        "line": {"dash": dash, "width": 2.6 if curve.kind == "account" else 1.5},
    }


def days_figure(days: Sequence[Day]) -> Figure:
    """Return a figure of the profit of each day (given newest first), and the sum below it."""
    days = days[::-1]
    times = [1000 * day.day for day in days]
    total, sums = 0.0, []
    for day in days:
        total += day.profit
        sums.append(round(total, 2))
    bars = {
        "type": "bar",
        "name": "profit of the day",
        "x": times,
        "y": [round(day.profit, 2) for day in days],
        "marker": {"color": ["tone:good" if day.profit > 0.0 else "tone:bad" for day in days]},
        "hovertemplate": "%{x|%Y-%m-%d}: %{y:+,.2f}<extra></extra>",
    }
    line = {
        "type": "scatter",
        "mode": "lines",
        "tone": "account",
        "name": "sum",
        "x": times,
        "y": sums,
        "yaxis": "y2",
        "line": {"width": 2},
        "hovertemplate": "%{x|%Y-%m-%d}: %{y:+,.2f} in all<extra></extra>",
    }
    return {
        "data": [bars, line],
        "layout": {
            "xaxis": {"type": "date", "anchor": "y2"},
            "yaxis": {"domain": [0.46, 1.0], "title": {"text": "day"}},
            "yaxis2": {"domain": [0.0, 0.4], "title": {"text": "sum"}},
            "showlegend": False,
            "hovermode": "closest",
        },
    }


def parity_figure(days: Sequence[ParityDay]) -> Figure:
    """Return a figure of the account's return minus the simulator's, by day (oldest first)."""
    times = [1000 * day.day for day in days]
    bars = {
        "type": "bar",
        "name": "account minus simulator",
        "x": times,
        "y": [day.gap for day in days],
        "marker": {"color": ["tone:good" if day.gap > 0.0 else "tone:bad" for day in days]},
        "hovertemplate": "%{x|%Y-%m-%d}: %{y:+.4%}<extra></extra>",
    }
    return {
        "data": [bars],
        "layout": {
            "xaxis": {"type": "date"},
            "yaxis": {"tickformat": "+.3~%", "title": {"text": "account - simulator"}},
            "showlegend": False,
            "hovermode": "closest",
        },
    }
