"""The leaked oracle: features that contain future returns, as a positive control."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.features import get_recipe, register_recipe


@functools.cache  # a name can be registered only once
def leaking_recipe(name: str, bars_ahead: int, scale: float) -> str:
    """Register the default features plus a leaked one per asset, and return `name`.

    The leaked feature is `scale` times the asset's log return over the next `bars_ahead` bars.
    """
    default = get_recipe("default")

    def compute(bars: Bars) -> NDArray[np.float64]:
        assets, own = len(bars.tickers), len(default.asset_features)
        values = default.compute(bars)
        future = np.zeros_like(bars.close)
        future[:-bars_ahead] = np.log(bars.close[bars_ahead:] / bars.close[:-bars_ahead])
        per_asset = values[:, : assets * own].reshape(-1, assets, own)
        per_asset = np.concatenate((per_asset, scale * future[:, :, None]), axis=2)
        return np.concatenate(
            (per_asset.reshape(len(values), -1), values[:, assets * own :]), axis=1
        )

    names = (*default.asset_features, "leak")
    return register_recipe(replace(default, name=name, asset_features=names, compute=compute)).name
