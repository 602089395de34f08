"""A trader's history: the newest bars, and the features of the lags that its policies observe."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.features import Recipe, compute_features
from sweepd.envs.support.errors import RunError

Array = NDArray[np.float64]


class FeatureHistory:
    """The newest bars, as many as the recipe needs, and the features of the newest lags.

    Args:
        recipe: of the features.
        lookback: number of lags that are kept.
    """

    def __init__(self, recipe: Recipe, lookback: int) -> None:
        self._recipe = recipe
        self._lags: deque[NDArray[np.float32]] = deque(maxlen=lookback)
        self._bars: Bars | None = None
        # With the next bar, these bars fill the recipe's memory for every lag.
        self.bars_needed = recipe.memory + lookback - 2

    def load(self, bars: Bars, lags: int) -> None:
        """Load at least `bars_needed` bars, and compute the features of the last `lags`."""
        count, memory = len(bars), self._recipe.memory
        self._lags.clear()
        if lags:
            window = bars.slice(count - (memory + lags - 1), count)
            self._lags.extend(compute_features(window, self._recipe)[-lags:])
        self._bars = bars.slice(count - (memory - 1), count)

    def append(self, bar: ClosedBar) -> None:
        """Append a bar, and compute its features."""
        # The recipe depends on `memory` bars, so the newest row is all that must be computed.
        full = bar.appended_to(self._loaded)
        self._lags.append(compute_features(full, self._recipe)[-1])
        self._bars = full.slice(1, len(full))

    @property
    def time(self) -> int:
        """Open of the newest bar, seconds since the epoch."""
        return int(self._loaded.time[-1])

    @property
    def close(self) -> Array:
        """Closes of the newest bar, (N,)."""
        closes: Array = self._loaded.close[-1]
        return closes

    def lags(self, count: int) -> NDArray[np.float32]:
        """Return the features of the newest `count` bars, flattened, the newest bar first."""
        return np.concatenate(list(reversed(self._lags))[:count])

    @property
    def _loaded(self) -> Bars:
        if self._bars is None:
            raise RunError("the trader was not started with a history")
        return self._bars
