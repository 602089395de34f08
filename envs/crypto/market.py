"""A tradable market: bars, features, the exchange's limits, and tables for batched access."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sweepd.envs.crypto.params import Instruments
from sweepd.envs.crypto.splits import Window, first_decision
from sweepd.envs.support.errors import InputError

if TYPE_CHECKING:
    from sweepd.envs.crypto.data.bars import Bars


@dataclass(frozen=True)
class Tables:
    """A market's tensors on one device, laid out for gathering. T bars, N assets, M features.

    The newest bar comes first: bar t has place T - 1 - t. So the lags of an observation, newest
    first, are contiguous in memory, and one index serves all tables.

    Attributes:
        prices: (2N, T) float64, opens of all assets, then closes. In markets with holes (3N, T),
            with 1.0 for tradable bars and 0.0 for holes. Asset-first, like the ledger.
        next_fill: (N, T) float64, place of the first bar from there on that is not a hole; -1 if
            there is none. None in markets without holes.
        next_open: (N, T) float64, open of that bar; 1 if there is none.
        features: (T, M) float32.
    """

    prices: Tensor
    next_fill: Tensor | None
    next_open: Tensor
    features: Tensor

    @cached_property
    def prices_by_bar(self) -> Tensor:
        """(T, 2N) or (T, 3N): `prices` bar-first, for the native step. Made at first use."""
        return self.prices.t().contiguous()

    def lagged(self, lookback: int) -> Tensor:
        """Return each bar's features and those of the bars before it, newest first.

        (T - lookback + 1, lookback · M) float32, indexed by place. A view: rows overlap in memory.
        """
        bars, columns = self.features.shape
        return self.features.as_strided((bars - lookback + 1, lookback * columns), (columns, 1))


@dataclass(frozen=True, eq=False)
class Market:
    """Bars with their features.

    Attributes:
        bars: T bars of N assets.
        recipe: name of the recipe of the features.
        features: (T, M) float32. Rows before `memory` - 1 are undefined.
        instruments: limits of the exchange.
        memory: W, the number of bars on which a row of features depends, itself included.
        asset_features: features of each asset. The first columns are those of asset 0, of asset 1, …;
            the others belong to no asset.
    """

    bars: Bars
    recipe: str
    features: np.ndarray
    instruments: Instruments
    memory: int = 1
    asset_features: int = 0
    _tables: dict[torch.device, Tables] = field(default_factory=dict, repr=False)

    @property
    def tickers(self) -> tuple[str, ...]:
        return self.bars.tickers

    @property
    def assets(self) -> int:
        """Return N, the number of assets."""
        return len(self.bars.tickers)

    @property
    def length(self) -> int:
        """Return T, the number of bars."""
        return int(self.bars.close.shape[0])

    @property
    def feature_count(self) -> int:
        """Return M, the number of feature columns of one bar."""
        return int(self.features.shape[1])

    def first_bar(self, max_lookback: int) -> int:
        """Return the first bar at which an observation with `max_lookback` bars exists."""
        return first_decision(self.memory, max_lookback)

    def tables(self, device: torch.device | str = "cpu") -> Tables:
        """Return the market's tensors on `device`, created once per device."""
        device = torch.device(device)
        if device not in self._tables:
            self._tables[device] = _make_tables(self, device)
        return self._tables[device]


def make_market(
    bars: Bars, recipe: str = "default", instruments: Instruments | None = None
) -> Market:
    """Compute the features of `bars` by the named recipe.

    Raises:
        InputError: `instruments` do not match the tickers.
    """
    # Not at the top: TA-Lib is loaded only where features are computed.
    from sweepd.envs.crypto.features import compute_features, get_recipe

    assets = len(bars.tickers)
    instruments = instruments or Instruments.unrestricted(assets)
    if len(instruments.increment) != assets:
        raise InputError(
            f"instruments are given for {len(instruments.increment)} tickers, but the bars have "
            f"{assets}"
        )
    found = get_recipe(recipe)
    features, own = compute_features(bars, found), len(found.asset_features)
    return Market(bars, recipe, features, instruments, found.memory, own)


def _make_tables(market: Market, device: torch.device) -> Tables:
    bars, length = market.bars, market.length
    hole = bars.hole.T
    columns = [bars.open.T, bars.close.T]
    next_open, next_fill = bars.open.T, None
    if hole.any():
        columns.append(~hole)
        # For every bar, the index of the next bar that is not a hole (`length` if there is none):
        # a running minimum from the end.
        own = np.where(hole, length, np.arange(length))
        following = np.minimum.accumulate(own[:, ::-1], axis=1)[:, ::-1]
        found = np.take_along_axis(bars.open.T, np.minimum(following, length - 1), axis=1)
        next_open, next_fill = np.where(following < length, found, 1.0), following

    def tensor(values: np.ndarray, dtype: type = np.float64) -> Tensor:
        return torch.from_numpy(np.array(values, dtype=dtype, order="C")).to(device)

    # Reversed in time: see `Tables`.
    return Tables(
        prices=tensor(np.concatenate(columns)[:, ::-1]),
        next_fill=None if next_fill is None else tensor(length - 1 - next_fill[:, ::-1]),
        next_open=tensor(next_open[:, ::-1]),
        features=tensor(market.features[::-1], np.float32),
    )


def observation_normaliser(
    market: Market, windows: Sequence[Window], lookback: int, max_lookback: int
) -> tuple[Tensor, Tensor]:
    """Compute the normaliser of a member's observations over its training bars.

    Market features get the mean and the population standard deviation over all bars at which the
    windows allow decisions (1 if the deviation is 0). Portfolio columns get 0 and 1, and so do lags
    beyond the member's `lookback`, which are always 0.

    Returns:
        Mean and standard deviation, (state_dim,) float32 each.
    """
    # Only training bars: statistics of test bars would leak into training. Windows may overlap.
    bars = np.unique(np.concatenate([np.arange(first, last) for first, last in windows]))
    values = market.features[bars].astype(np.float64)
    mean, deviation = values.mean(axis=0), values.std(axis=0)
    deviation[deviation < 1e-8] = 1.0  # a constant column becomes 0 instead of amplified noise
    # The layout of an observation: portfolio first, then the features lag by lag (`CryptoEnv`).
    columns, portfolio = market.feature_count, 1 + 3 * market.assets
    average = np.zeros(portfolio + max_lookback * columns)
    spread = np.ones_like(average)
    for lag in range(lookback):
        at = slice(portfolio + lag * columns, portfolio + (lag + 1) * columns)
        average[at], spread[at] = mean, deviation
    return torch.from_numpy(average).float(), torch.from_numpy(spread).float()
