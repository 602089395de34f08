"""Small markets and random parameters for tests of the environment."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.market import Market
from sweepd.envs.crypto.params import EnvParams, Instruments

WINDOWS = [(5, 100), (110, 290)]  # within the default length of sample_bars


def sample_bars(
    seed: int = 0,
    bars: int = 300,
    assets: int = 3,
    *,
    hole_share: float = 0.0,
    volatility: float = 0.02,
    timeframe: str = "1h",
) -> Bars:
    """Make a random walk with gaps between close and open; holes carry the last close."""
    rng = np.random.default_rng(seed)
    shape = (bars, assets)
    level = 10.0 ** rng.uniform(-1, 3, assets)
    close = level * np.exp(np.cumsum(rng.normal(0, volatility, shape), axis=0))
    open_ = np.vstack([close[:1], close[:-1]]) * np.exp(rng.normal(0, volatility / 5, shape))
    hole = rng.random(shape) < hole_share
    hole[0] = False
    for bar in range(1, bars):
        gone = hole[bar]
        close[bar, gone] = close[bar - 1, gone]
        open_[bar, gone] = close[bar - 1, gone]
    high, low = np.maximum(open_, close), np.minimum(open_, close)
    volume = np.where(hole, 0.0, rng.uniform(1, 10, shape))
    step = {"1h": 3600, "5m": 300, "1d": 86400}[timeframe]
    time = 1_700_000_000 // step * step + step * np.arange(bars)
    names = tuple(f"{chr(ord('A') + i) * 3}/USDT" for i in range(assets))
    return Bars(names, timeframe, time, open_, high, low, close, volume, hole, synthetic=True)


def sample_market(
    seed: int = 0,
    bars: int = 300,
    assets: int = 3,
    *,
    hole_share: float = 0.0,
    volatility: float = 0.02,
    features: int = 2,
    instruments: Instruments | None = None,
    timeframe: str = "1h",
) -> Market:
    """Return `sample_bars` with artificial features: column 0 is the bar's number, then noise."""
    made = sample_bars(
        seed, bars, assets, hole_share=hole_share, volatility=volatility, timeframe=timeframe
    )
    table = np.random.default_rng(seed + 1).normal(size=(bars, features)).astype(np.float32)
    table[:, 0] = np.arange(bars)
    return Market(made, "sample", table, instruments or Instruments.unrestricted(assets))


def random_params(seed: int, **fixed: float) -> EnvParams:
    """Draw parameters from wide ranges; each rule is on about half of the time."""
    rng = np.random.default_rng(seed)

    def sometimes(low: float, high: float, off: float = 0.0) -> float:
        return float(rng.uniform(low, high)) if rng.random() < 0.5 else off

    values: dict[str, float] = {
        "action_scale": float(np.exp(rng.uniform(np.log(0.01), 0.0))),
        "cash_reserve": sometimes(0, 0.5),
        "max_position": sometimes(0.1, 1.0, off=1.0),
        "trailing_stop": sometimes(0.01, 0.2),
        "max_holding_bars": int(sometimes(1, 20)),
        "max_holding_fraction": sometimes(0.05, 1.0, off=1.0),
        "alpha_weight": float(rng.uniform(0, 1)),
        "drawdown_penalty": sometimes(0, 1),
        "volatility_penalty": sometimes(0, 5),
        "concentration_penalty": sometimes(0, 0.1),
        "concentration_limit": float(rng.uniform(0, 1)),
        "cash_penalty": sometimes(0, 0.1),
        "time_decay_floor": sometimes(0, 1, off=1.0),
        "reward_scale": float(rng.uniform(1, 200)),
        "fee": sometimes(0, 0.02),
        "slippage": sometimes(0, 0.01),
        "minimum_order": sometimes(0, 500),
        "episode_bars": int(rng.integers(20, 60)),
        "initial_cash": float(10 ** rng.uniform(2, 5)),
        "held_scale": float(rng.integers(1, 50)),
    }
    return EnvParams(**(values | fixed))  # type: ignore[arg-type]


def random_short_params(seed: int, **fixed: float) -> EnvParams:
    """`random_params` with shorts: borrow fees that are seen in a bar, and frequent margin calls."""
    rng = np.random.default_rng(seed + 77)
    leverage = float(rng.choice([0.5, 1.0, 2.0, 5.0]))
    values: dict[str, float] = {
        "allow_short": True,
        "borrow_fee": float(rng.choice([0.0, 0.1, 20.0])),
        "max_leverage": leverage,
        "maintenance_margin": float(rng.choice([0.2, 0.8, 0.95])) / max(1.0, leverage),
    }
    return random_params(seed, **(values | fixed))


def random_actions(seed: int, steps: int, rows: int, assets: int) -> Tensor:
    """Return (steps, rows, assets) uniform in [-1, 1]."""
    return torch.rand(steps, rows, assets, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def run(env: CryptoEnv, actions: Tensor) -> list[Tensor]:
    """Return every observation, reward and end of episode, in order."""
    made = []
    for action in actions:
        step = env.step(action)
        made += [step.obs.clone(), step.reward.clone(), step.truncated.clone(), env.values()]
    return made
