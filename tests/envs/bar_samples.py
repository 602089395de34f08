"""Small bars for tests: a seeded random walk, and the table of one file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.timeframe import bar_seconds

START = 1_704_067_200  # 2024-01-01 00:00 UTC
NOW = START + 3600 * 24 * 365  # long after any bar made here


def sample_bars(
    count: int = 50, tickers: tuple[str, ...] = ("BTC/USDT", "ETH/USDT"), timeframe: str = "1h"
) -> Bars:
    """Make a seeded random walk without holes."""
    rng = np.random.default_rng(5)
    shape = (count, len(tickers))
    close = 100.0 * np.exp(np.cumsum(rng.normal(0, 0.01, shape), axis=0))
    open_ = np.vstack([close[:1], close[:-1]])
    high, low = np.maximum(open_, close) * 1.002, np.minimum(open_, close) * 0.998
    time = START + np.arange(count) * bar_seconds(timeframe)
    volume = rng.uniform(1, 10, shape)
    return Bars(
        tickers, timeframe, time, open_, high, low, close, volume, np.zeros(shape, dtype=bool)
    )


def frame(count: int = 50, step: int = 3600, start: int = START) -> pd.DataFrame:
    """Make the table of one freqtrade file."""
    bars = sample_bars(count, ("X/USDT",))
    date = pd.to_datetime(start + np.arange(count) * step, unit="s", utc=True).as_unit("ms")
    columns = {
        name: getattr(bars, name)[:, 0] for name in ("open", "high", "low", "close", "volume")
    }
    return pd.DataFrame({"date": date, **columns})


def put(folder: Path, name: str, data: pd.DataFrame) -> Path:
    """Write a table in the format given by the suffix of `name`."""
    path = folder / name
    if path.suffix == ".feather":
        data.to_feather(path)
    elif path.suffix == ".parquet":
        data.to_parquet(path, index=False)
    else:
        data.to_csv(path, index=False)
    return path
