"""A curve of one line's height, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], *, lowest: float | None = None) -> str:
    """A block per value, from the lowest to the highest of them; all the same height where they are equal.

    lowest: what the lowest block stands for, by default the smallest value.
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
