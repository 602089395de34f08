"""The bars that a session has at hand: enough for every policy's warm-up, and for trying out a new one."""

from __future__ import annotations

import numpy as np

from deploy.paper_trader import BAR_COLUMNS, ClosedBar
from envs.crypto.bars import Bars


class History:
    """The newest closed bars, as many as there were at the start."""

    def __init__(self, bars: Bars) -> None:
        self.bars = bars

    def append(self, bar: ClosedBar) -> None:
        """Put the next bar at the end, and leave the oldest one out."""
        old = self.bars
        rows = {name: np.concatenate([getattr(old, name)[1:], getattr(bar, name)[None]]) for name in BAR_COLUMNS}
        self.bars = Bars(
            tickers=old.tickers,
            timeframe=old.timeframe,
            time=np.append(old.time[1:], bar.time),
            synthetic=old.synthetic,
            **rows,
        )
