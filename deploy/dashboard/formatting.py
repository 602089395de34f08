"""Formats of numbers and times in the terminal and on the page."""

from __future__ import annotations

import datetime as dt
import math

from sweepd.envs.support.formatting import MISSING


def figure(value: float | None) -> str:
    """Return a fraction as a percentage with three significant digits: +0.0071%, +13.1%."""
    return MISSING if value is None or not math.isfinite(value) else f"{100.0 * value:+.3g}%"


def share(value: float | None) -> str:
    """Return 0.1 as 10.0%."""
    return MISSING if value is None or not math.isfinite(value) else f"{100.0 * value:.1f}%"


def ratio(value: float | None) -> str:
    """Return a Sharpe ratio."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:+.2f}"


def money(value: float | None) -> str:
    """Return quote units, to the cent."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:,.2f}"


def price(value: float | None) -> str:
    """Return quote units per unit; small prices have more digits."""
    return money(value) if value is None or abs(value) >= 10.0 else f"{value:.6g}"


def units(value: float | None) -> str:
    """Return an amount of an asset."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:,.8g}"


def moment(seconds: float | None) -> str:
    """Return seconds since the epoch as 2026-01-02 03:04 (UTC)."""
    return (
        MISSING
        if seconds is None
        else f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%d %H:%M}"
    )


def seconds_of(text: str) -> float:
    """Return UTC text of the tables as seconds since the epoch."""
    return dt.datetime.fromisoformat(text).timestamp()


def span(seconds: float | None) -> str:
    """Return a duration in its largest unit: 45 s, 12 min, 5.0 h, 3.2 days."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    for unit, name in ((60.0, "min"), (3600.0, "h"), (86400.0, "days")):
        count = seconds / unit
        if name == "days" or count < (120 if name == "min" else 48):
            return f"{count:.0f} {name}" if name == "min" or count >= 100 else f"{count:.1f} {name}"
    raise AssertionError("days are the last unit")
