"""Adjustments of bars before a split, or before volumes changed their unit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sweepd.envs.crypto.data.importing.names import to_ticker
from sweepd.envs.support.errors import InputError

Kind = Literal["split", "volume-unit"]
FORMS = {"split": "AAPL/USD=2020-08-31:4", "volume-unit": "BTC/USDT=2024-01-01:1000"}


@dataclass(frozen=True)
class Adjustment:
    """A change of the bars before a time.

    Attributes:
        kind: "split": prices are divided by the factor, and volumes multiplied; "volume-unit":
            volumes are multiplied.
        ticker: "AAPL/USD"; None for all.
        time: of the first bar that is not changed, seconds UTC.
        factor: above zero.
    """

    kind: str
    ticker: str | None
    time: int
    factor: float

    @property
    def record(self) -> str:
        """Return the adjustment as it is recorded in the file of its ticker."""
        return f"{self.kind}:{self.time}:{self.factor!r}"


def parse_adjustments(kind: Kind, texts: Iterable[str], quote: str) -> tuple[Adjustment, ...]:
    """Read values of `--split` and `--volume-unit`: [TICKER=]TIME:FACTOR.

    Args:
        kind: the flag.
        texts: its values.
        quote: currency of tickers that are no pairs.

    Raises:
        InputError: a value is not of this form.
    """
    made = []
    for text in texts:
        name, equals, rest = text.rpartition("=")
        day, _, number = rest.rpartition(":")
        ticker = to_ticker(name, quote) if equals else None
        try:
            time = pd.Timestamp(day.strip())
            time = time.tz_localize("UTC") if time.tzinfo is None else time.tz_convert("UTC")
            factor = float(number)
            if pd.isna(time) or not (math.isfinite(factor) and factor > 0):
                raise ValueError
            if equals and ticker is None:
                raise ValueError
        except (ValueError, TypeError, AttributeError):
            raise InputError(
                f"--{kind} {text!r}: write TICKER=TIME:FACTOR, the time (UTC) being that of the "
                f"first bar after the change, like {FORMS[kind]}"
            ) from None
        made.append(Adjustment(kind, ticker, int(time.timestamp()), factor))
    return tuple(made)


def adjustments_of(recorded: str) -> tuple[Adjustment, ...]:
    """Return the adjustments that a file's record names, see `Adjustment.record`."""
    parts = (text.split(":") for text in recorded.split())
    return tuple(Adjustment(kind, None, int(time), float(factor)) for kind, time, factor in parts)


def adjust(
    seconds: NDArray[np.int64], values: NDArray[np.float64], adjustments: Sequence[Adjustment]
) -> NDArray[np.float64]:
    """Return values with the bars before each adjustment changed.

    Args:
        seconds: (n,) opening times, UTC.
        values: (n, 5) open, high, low, close, volume.
        adjustments: of their ticker.
    """
    values = values.copy()
    for one in adjustments:
        before = seconds < one.time
        if one.kind == "split":
            values[before, :4] /= one.factor
        values[before, 4] *= one.factor
    return values
