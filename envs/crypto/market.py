"""A market ready to be traded in: bars, their features, what the exchange allows, and the tables a batch gathers
from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from envs.crypto.params import Instruments
from envs.support.errors import InputError

if TYPE_CHECKING:
    from envs.crypto.bars import Bars

Window = tuple[int, int]


@dataclass(frozen=True)
class Tables:
    """A market on one device, laid out for gathering. T bars, N assets, M feature columns.

    The newest bar comes first: bar t has the place T-1-t. So the lags of an observation, newest first, lie one after
    another in memory, and one index serves all tables.

    prices: (2N, T) float64, opens of all assets, then closes; (3N, T) where the market has holes, and then 1.0 for bars
    that can be traded in and 0.0 for holes. Asset-first, since the step works on (N, rows).
    next_fill: (N, T) float64, the place of the first bar from there on that is no hole (-1 where there is none); None
    without holes. next_open: (N, T) float64, the open of that bar (1 where there is none).
    features: (T, M) float32.
    """

    prices: Tensor
    next_fill: Tensor | None
    next_open: Tensor
    features: Tensor

    def lagged(self, lookback: int) -> Tensor:
        """(T - lookback + 1, lookback * M) float32, a view: at a bar's place its features and those of the bars
        before.
        """
        bars, columns = self.features.shape
        return self.features.as_strided((bars - lookback + 1, lookback * columns), (columns, 1))


@dataclass(frozen=True, eq=False)
class Market:
    """Bars with their features.

    recipe: the name of the recipe that made the features.
    features: (T, M) float32. Rows before `memory` - 1 mean nothing.
    memory: W, the bars that one row of features looks back on (its own included).
    """

    bars: Bars
    recipe: str
    features: np.ndarray
    instruments: Instruments
    memory: int = 1
    _tables: dict[torch.device, Tables] = field(default_factory=dict, repr=False)

    @property
    def tickers(self) -> tuple[str, ...]:
        return self.bars.tickers

    @property
    def assets(self) -> int:
        """N."""
        return len(self.bars.tickers)

    @property
    def length(self) -> int:
        """T, the number of bars."""
        return int(self.bars.close.shape[0])

    @property
    def feature_count(self) -> int:
        """M, the feature columns of one bar."""
        return int(self.features.shape[1])

    def first_bar(self, max_lookback: int) -> int:
        """The first bar at which an observation with `max_lookback` bars of features exists."""
        return self.memory - 1 + max_lookback - 1

    def tables(self, device: torch.device | str = "cpu") -> Tables:
        """The market as tensors on `device`; made once per device."""
        device = torch.device(device)
        if device not in self._tables:
            self._tables[device] = _make_tables(self, device)
        return self._tables[device]


def make_market(
    bars: Bars, recipe: str = "default", instruments: Instruments | None = None
) -> Market:
    """Compute the features of `bars` by the named recipe. Raises InputError where instruments don't fit the tickers."""
    from envs.crypto.features import (
        compute_features,
        get_recipe,
    )  # TA-Lib is loaded only where features are computed

    assets = len(bars.tickers)
    instruments = instruments or Instruments.unrestricted(assets)
    if len(instruments.increment) != assets:
        raise InputError(
            f"instruments are given for {len(instruments.increment)} tickers, but the bars have {assets}"
        )
    found = get_recipe(recipe)
    return Market(bars, recipe, compute_features(bars, found), instruments, found.memory)


def _make_tables(market: Market, device: torch.device) -> Tables:
    bars, length = market.bars, market.length
    hole = bars.hole.T
    columns = [bars.open.T, bars.close.T]
    next_open, next_fill = bars.open.T, None
    if hole.any():
        columns.append(~hole)
        own = np.where(hole, length, np.arange(length))
        following = np.minimum.accumulate(own[:, ::-1], axis=1)[:, ::-1]
        found = np.take_along_axis(bars.open.T, np.minimum(following, length - 1), axis=1)
        next_open, next_fill = np.where(following < length, found, 1.0), following

    def tensor(values: np.ndarray, dtype: type = np.float64) -> Tensor:
        return torch.from_numpy(np.array(values, dtype=dtype, order="C")).to(device)

    return Tables(
        prices=tensor(np.concatenate(columns)[:, ::-1]),
        next_fill=None if next_fill is None else tensor(length - 1 - next_fill[:, ::-1]),
        next_open=tensor(next_open[:, ::-1]),
        features=tensor(market.features[::-1], np.float32),
    )


def observation_normaliser(
    market: Market, windows: Sequence[Window], lookback: int, max_lookback: int
) -> tuple[Tensor, Tensor]:
    """Mean and deviation of a member's observations over its training bars: two (state_dim,) float32 tensors.

    Portfolio entries have 0 and 1; so have lags beyond the member's own `lookback`, which it sees as zeros. Market
    features have the mean and the population deviation over all bars at which the windows let it decide (1 where that
    is 0).
    """
    bars = np.unique(np.concatenate([np.arange(first, last) for first, last in windows]))
    values = market.features[bars].astype(np.float64)
    mean, deviation = values.mean(axis=0), values.std(axis=0)
    deviation[deviation < 1e-8] = 1.0
    columns, portfolio = market.feature_count, 1 + 3 * market.assets
    average = np.zeros(portfolio + max_lookback * columns)
    spread = np.ones_like(average)
    for lag in range(lookback):
        at = slice(portfolio + lag * columns, portfolio + (lag + 1) * columns)
        average[at], spread[at] = mean, deviation
    return torch.from_numpy(average).float(), torch.from_numpy(spread).float()
