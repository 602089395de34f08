"""Timeframes: names of bar lengths and conversions."""

from __future__ import annotations

from envs.support.errors import InputError

SECONDS: dict[str, int] = {
    "1m": 60,
    "3m": 180,
    "5m": 300,
    "15m": 900,
    "30m": 1800,
    "1h": 3600,
    "2h": 7200,
    "4h": 14400,
    "6h": 21600,
    "8h": 28800,
    "12h": 43200,
    "1d": 86400,
}
DAY = 86_400  # seconds
SECONDS_PER_YEAR = 365.25 * DAY


def bar_seconds(timeframe: str) -> int:
    """Return the length of a bar in seconds.

    Raises:
        InputError: the name is not in `SECONDS`.
    """
    if timeframe not in SECONDS:
        raise InputError(
            f"timeframe {timeframe!r} is not known; choose one of {', '.join(SECONDS)}"
        )
    return SECONDS[timeframe]


def bars_per_year(timeframe: str) -> float:
    """Return the bars in a year of 365.25 days, which annualise Sharpe ratios."""
    return SECONDS_PER_YEAR / bar_seconds(timeframe)


def bars_per_day(timeframe: str) -> int:
    """Return the whole bars in a day, at least one."""
    return max(1, DAY // bar_seconds(timeframe))


def bars_per_week(timeframe: str) -> int:
    """Return the whole bars in a week, at least one."""
    return max(1, 7 * DAY // bar_seconds(timeframe))
