"""One closed bar of all assets, as feeds deliver it and traders process it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.support.errors import RunError

Array = NDArray[np.float64]
COLUMNS = ("open", "high", "low", "close", "volume", "hole")


@dataclass(frozen=True)
class ClosedBar:
    """One closed bar of all assets.

    time: its open, seconds since the epoch. The other fields have shape (N,) and the meaning that
    they have in `Bars`.
    """

    time: int
    open: Array
    high: Array
    low: Array
    close: Array
    volume: Array
    hole: NDArray[np.bool_]

    @classmethod
    def of(cls, bars: Bars, bar: int) -> ClosedBar:
        """Return bar number `bar` of `bars`."""
        return cls(int(bars.time[bar]), *(getattr(bars, name)[bar] for name in COLUMNS))

    def appended_to(self, bars: Bars) -> Bars:
        """Return `bars` with this bar appended."""
        rows = {
            name: np.concatenate([getattr(bars, name), getattr(self, name)[None]])
            for name in COLUMNS
        }
        return Bars(
            tickers=bars.tickers,
            timeframe=bars.timeframe,
            time=np.append(bars.time, self.time),
            synthetic=bars.synthetic,
            **rows,
        )

    def continuing(self, close: Array) -> ClosedBar:
        """Return the bar with the last closes (N,) that were seen in its holes."""
        if not self.hole.any():
            return self
        prices: dict[str, Any] = {
            name: np.where(self.hole, close, getattr(self, name)) for name in COLUMNS[:4]
        }
        return replace(self, **prices)

    def in_order(self, tickers: Sequence[str], wanted: Sequence[str]) -> ClosedBar:
        """Reorder the assets.

        Args:
            tickers: the assets of this bar, in order.
            wanted: the assets of the result, in order.

        Raises:
            RunError: the bar lacks one of the wanted assets.
        """
        if tuple(tickers) == tuple(wanted):
            return self
        places = {ticker: place for place, ticker in enumerate(tickers)}
        missing = [ticker for ticker in wanted if ticker not in places]
        if missing:
            raise RunError(f"the bars lack {', '.join(missing)}")
        order = [places[ticker] for ticker in wanted]
        return ClosedBar(self.time, *(getattr(self, name)[order] for name in COLUMNS))
