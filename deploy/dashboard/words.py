"""How numbers and moments are written, in the terminal and on the page."""

from __future__ import annotations

import datetime as dt
import math

from envs.support.formatting import MISSING


def figure(value: float | None) -> str:
    """A share of any size as per cent with three digits that mean something: +0.0071 %, +13.1 %."""
    return MISSING if value is None or not math.isfinite(value) else f"{100.0 * value:+.3g} %"


def counted(count: int, name: str) -> str:
    """1 bar, 2 bars."""
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def share(value: float | None) -> str:
    """0.1 as 10.0 %."""
    return MISSING if value is None or not math.isfinite(value) else f"{100.0 * value:.1f} %"


def ratio(value: float | None) -> str:
    """A Sharpe ratio."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:+.2f}"


def money(value: float | None) -> str:
    """Quote units, to the cent."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:,.2f}"


def price(value: float | None) -> str:
    """Quote units per unit: small ones with more digits."""
    return money(value) if value is None or abs(value) >= 10.0 else f"{value:.6g}"


def units(value: float | None) -> str:
    """Of an asset."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:,.8g}"


def moment(seconds: float | None) -> str:
    """Seconds since the epoch as 2026-01-02 03:04 (UTC)."""
    return (
        MISSING
        if seconds is None
        else f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%d %H:%M}"
    )


def minute(text: str | None) -> str:
    """2026-01-02T03:04:05.678Z as 2026-01-02 03:04."""
    return MISSING if text is None else text[:16].replace("T", " ")


def seconds_of(text: str) -> float:
    """UTC text as the tables have it in seconds since the epoch."""
    return dt.datetime.fromisoformat(text).timestamp()


def span(seconds: float | None) -> str:
    """A length of time in its largest unit: 45 s, 12 min, 5.0 h, 3.2 days."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    for unit, name in ((60.0, "min"), (3600.0, "h"), (86400.0, "days")):
        count = seconds / unit
        if name == "days" or count < (120 if name == "min" else 48):
            return f"{count:.0f} {name}" if name == "min" or count >= 100 else f"{count:.1f} {name}"
    raise AssertionError("days are the last unit")
