"""Numbers and curves as text, for terminals and pages."""

from __future__ import annotations

import math
from collections.abc import Sequence

MISSING = "–"
BLOCKS = "▁▂▃▄▅▆▇█"


def percent(value: float | None, digits: int = 2) -> str:
    """Format a fraction as a signed percentage: 0.1 is "+10.00%".

    No decimals from 1,000% on; `MISSING` for None and for numbers that are not finite.
    """
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{100.0 * value:+,.{digits if abs(value) < 10 else 0}f}%"


def short_percent(value: float, digits: int = 4) -> str:
    """Format a fraction as an unsigned percentage of at most so many digits: 0.2 is "20%"."""
    return f"{100.0 * value:.{digits}g}%"


def duration(seconds: float | None) -> str:
    """Format seconds: 3725 is "1:02:05"; `MISSING` for None and values that are not finite."""
    if seconds is None or not 0 <= seconds < 1e8:
        return MISSING
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def hourly(rate: float | None) -> str:
    """Format trials per hour: 12.34 is "12.3"; `MISSING` for None."""
    return MISSING if rate is None else f"{rate:,.1f}"


def gpu_use(share: float | None, used: int, total: int, power: float | None = None) -> str:
    """Format the use of a GPU: "83% · 12.0/139.0 GiB · 310 W"; what is not known is left out.

    Args:
        share: share of time in which it was busy.
        used: bytes of memory in use.
        total: bytes of memory.
        power: power in watts.
    """
    parts = [] if share is None else [f"{share:.0%}"]
    parts.append(f"{used / 2**30:.1f}/{total / 2**30:.1f} GiB")
    parts += [] if power is None else [f"{power:.0f} W"]
    return " · ".join(parts)


def megabytes(size: float) -> str:
    """Format bytes: "3.1 MB"; from 1,000 MB on "1.2 GB". A megabyte is a million bytes."""
    return f"{size / 1e6:,.1f} MB" if size < 1e9 else f"{size / 1e9:,.1f} GB"


def years_or_days(years: float) -> str:
    """Format a length of bars in years of 365.25 days: "2.7 years"; less than one in days."""
    return f"{years:.1f} years" if years >= 0.95 else counted(round(365.25 * years), "day")


def counted(count: int, name: str) -> str:
    """Return 1 bar, 2 bars."""
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def value_text(value: object) -> str:
    """Format a value: floats with four significant digits, others as they are."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def minute(text: str | None) -> str:
    """Format UTC text to the minute: 2026-01-02T03:04:05.678Z as 2026-01-02 03:04."""
    return MISSING if text is None else text[:16].replace("T", " ")


def sparkline(values: Sequence[float], *, lowest: float | None = None) -> str:
    """Draw a curve of one block character per value.

    Args:
        values: the curve. Equal values give blocks of the lowest height.
        lowest: the value of the lowest block; by default the minimum of `values`.
    """
    if not values:
        return ""
    low = min(values) if lowest is None else lowest
    spread = max(values) - low
    if spread <= 0.0:
        return BLOCKS[0] * len(values)
    return "".join(
        BLOCKS[min(len(BLOCKS) - 1, int((value - low) / spread * len(BLOCKS)))] for value in values
    )
