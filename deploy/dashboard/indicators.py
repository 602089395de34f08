"""The features that a policy observes, computed from a trader's stored bars for its chart."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweepd.deploy.dashboard.candles import Span
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.live.queries import Records
from sweepd.deploy.trading.live.records import Adjustment, Trader
from sweepd.deploy.trading.live.revisions import adjusted
from sweepd.envs.crypto.features import Recipe, compute_features, get_recipe
from sweepd.envs.support.errors import InputError


@dataclass(frozen=True)
class Indicators:
    """The features of a bundle.

    tickers: of the bundle, in its order.
    """

    recipe: Recipe
    tickers: tuple[str, ...]

    @classmethod
    def of(cls, registry: Registry, bundle: str | None) -> Indicators | None:
        """Return those of a registered bundle; None if its recipe is not known here."""
        market = None if bundle is None else registry.market(bundle)
        name = None if bundle is None else registry.recipe(bundle)
        if market is None or name is None:
            return None
        try:
            return cls(get_recipe(name), market[1])
        except InputError:  # registered by code of the user's own
            return None

    @property
    def names(self) -> tuple[str, ...]:
        """The features that can be chosen: those of an asset, and the shared ones."""
        return (*self.recipe.asset_features, *self.recipe.shared_features)

    def values(
        self,
        records: Records,
        trader: Trader,
        ticker: str,
        chosen: Sequence[str],
        span: Span,
        times: NDArray[np.int64],
        adjustments: tuple[Adjustment, ...],
    ) -> dict[str, list[float | None]]:
        """Return the chosen features at the closes of some bars.

        Args:
            records: stored bars.
            trader: the slot's trader.
            ticker: whose features.
            chosen: names of features.
            span: the range of the bars.
            times: opens of the bars; None is returned where too few bars precede one.
            adjustments: changes of units that are followed.

        Raises:
            InputError: too few bars are stored, or there is a gap between them.
        """
        found, rows = _features(
            records, trader.slot, trader.timeframe, self, span, trader.last_bar, adjustments
        )
        places = np.minimum(np.searchsorted(found, times), len(found) - 1)
        known = (found[places] == times) & (places >= self.recipe.memory - 1)
        columns = self.recipe.columns(self.tickers)

        def column(name: str) -> list[float | None]:
            shared = name in self.recipe.shared_features
            place = columns.index(name if shared else f"{ticker} {name}")
            values = rows[places, place].tolist()
            return [
                value if is_known else None for value, is_known in zip(values, known, strict=True)
            ]

        return {name: column(name) for name in chosen}


@functools.lru_cache(maxsize=8)
def _features(
    records: Records,
    slot: str,
    timeframe: str,
    of: Indicators,
    span: Span,
    _last: int | None,
    adjustments: tuple[Adjustment, ...],
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the opens of a span's bars and their features; `_last`: the newest stored bar."""
    since = records.bars_before(slot, of.tickers[0], span.first, of.recipe.memory - 1)
    try:
        bars = records.bars(slot, timeframe, of.tickers, since=since, until=span.stop)
    except ValueError:
        raise InputError("the stored bars of this range have gaps") from None
    bars = adjusted(bars, [one for one in adjustments if one.ticker in of.tickers])
    return bars.time, compute_features(bars, of.recipe)
