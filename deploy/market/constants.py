"""Constant policies, traded by the same code as a candidate, which must differ from them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.rules import NearestConstant
from sweepd.deploy.market.scoring import first_decision, in_order, score_bundle, score_trials
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.market import make_market
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.crypto.scoring.evaluate import trade_windows
from sweepd.envs.crypto.splits import Window

Array = NDArray[np.float64]
MOST_BARS = 4_000  # enough for a correlation; more would only take longer
RANDOM_SEED = 0  # fixed, so that the finding about a bundle is reproducible


def constant_returns(bundle: Bundle, bars: Bars, window: Window) -> dict[str, Array]:
    """Per-bar returns of each constant policy over `window`, in the bundle's environment.

    The policies are always-buy (every action is 1), cash (0), random (uniform, with a fixed seed)
    and equal weight. Where shorts are allowed, always-short (every action is -1) and equal weight
    short (rebalanced at every bar) are added.

    Returns:
        (L,) returns by name.
    """
    part = in_order(bars.slice(0, window[1] + 1), bundle)
    if len(bundle.trials) > 1:
        return _by_sub_accounts(bundle, part, window)
    market = make_market(part, bundle.manifest.recipe.name, bundle.instruments)
    names = ["always-buy", "cash", "random"]
    if bundle.account.allow_short:
        names += ["always-short", "equal weight short"]
    env = CryptoEnv.for_windows(
        market,
        [bundle.account] * len(names),
        [[window]] * len(names),
        max_lookback=bundle.max_lookback,
    )
    generator = torch.Generator().manual_seed(RANDOM_SEED)

    def act(obs: Tensor) -> Tensor:
        actions = torch.zeros(len(names), env.action_dim)
        actions[0] = 1.0  # row 0: always-buy; row 1 stays 0: cash; row 2: uniform in [-1, 1)
        actions[2] = 2.0 * torch.rand(env.action_dim, generator=generator) - 1.0
        if bundle.account.allow_short:
            actions[3] = -1.0
            actions[4] = _towards_equal_short(obs[4], bundle.account, env.action_dim)
        return actions

    trades = trade_windows(env, act)
    returns = trades.returns[:, : window[1] - window[0]]
    return dict(zip(names, returns, strict=True)) | {"equal weight": trades.equal_weight[0]}


def _towards_equal_short(obs: Tensor, params: EnvParams, assets: int) -> Tensor:
    """Return the action that moves every weight towards an equal short one, (N,).

    Args:
        obs: (state_dim,).
        params: of the account.
        assets: N.
    """
    weight = -min(1.0, params.max_leverage) / assets
    return ((weight - obs[1 : 1 + assets]) / params.action_scale).clamp(-1.0, 1.0)


def _by_sub_accounts(bundle: Bundle, bars: Bars, window: Window) -> dict[str, Array]:
    """The same for several trials: each sub-account follows the constant policy."""
    count = len(bars.tickers)
    generator = np.random.default_rng(RANDOM_SEED)
    policies: dict[str, Callable[[], Array]] = {
        "always-buy": lambda: np.ones(count),
        "cash": lambda: np.zeros(count),
        "random": lambda: generator.uniform(-1.0, 1.0, count),
    }
    scores = {
        name: score_trials(bundle, bars, window, _ignoring(act)) for name, act in policies.items()
    }
    returns = {name: score.returns for name, score in scores.items()}
    return returns | {"equal weight": scores["cash"].equal_weight}


def _ignoring(act: Callable[[], Array]) -> Callable[[int, NDArray[np.float32]], Array]:
    """An acting function that ignores trial and observation."""
    return lambda _trial, _obs: act()


def correlation(one: Array, other: Array) -> float:
    """Pearson's correlation of (L,) returns.

    It is 1 for two series that do not vary, and 0 if only one of them does not vary.
    """
    # Pearson's coefficient is 0/0 for series that do not vary, such as those of cash.
    flat = [bool(np.ptp(values) == 0.0) for values in (one, other)]
    if any(flat):
        return 1.0 if all(flat) else 0.0
    return float(np.corrcoef(one, other)[0, 1])


def nearest_constant(bundle: Bundle, bars: Bars, before: int) -> NearestConstant:
    """The constant policy whose returns correlate most with those of the bundle's ensemble.

    Args:
        bundle: the bundle.
        bars: the study's bars.
        before: first bar of the hold-out; at most `MOST_BARS` bars before it are compared.
    """
    window = (max(first_decision(bundle), before - 1 - MOST_BARS), before - 1)
    own = score_bundle(bundle, bars, window)
    found = {
        name: correlation(own.returns, other)
        for name, other in constant_returns(bundle, bars, window).items()
    }
    name = max(found, key=lambda key: found[key])
    return NearestConstant(name, found[name], len(own.returns))
