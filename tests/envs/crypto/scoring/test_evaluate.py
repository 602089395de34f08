"""Trading test groups in one batch and joining them into paths."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.market import Market
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.crypto.scoring.evaluate import path_trades, trade_windows
from sweepd.envs.crypto.splits import CrossValidation, make_splits
from sweepd.envs.support.errors import InputError, RunError
from tests.envs.market_samples import random_params, sample_market
from tests.envs.reference_market import ReferenceMarket


def two_assets(bars: int = 300, hole_share: float = 0.0) -> Market:
    return sample_market(bars=bars, assets=2, hole_share=hole_share)


def policy(obs: Tensor) -> Tensor:
    """A deterministic policy that depends on the observation."""
    wave = torch.sin(obs[:, -2:].double() * 7.0 + obs[:, :2].double() * 3.0)
    return wave.float()


def test_every_window_equals_the_reference() -> None:
    market = two_assets(hole_share=0.1)
    params = [random_params(seed) for seed in (3, 4)]
    windows = [[(5, 60), (60, 200)], [(100, 290), (17, 18)]]
    env = CryptoEnv.for_windows(market, params, windows)
    taken: list[Tensor] = []

    def act(obs: Tensor) -> Tensor:
        taken.append(policy(obs))
        return taken[-1]

    made = trade_windows(env, act)
    assert made.lengths.tolist() == [55, 140, 190, 1]
    assert made.returns.shape == (4, 190)
    flat = [window for own in windows for window in own]
    for row, (first, last) in enumerate(flat):
        bars = market.bars
        own = ReferenceMarket(
            bars.open.tolist(),
            bars.close.tolist(),
            bars.hole.tolist(),
            params[row // 2],
            first,
            100,
        )
        for step in range(last - first):
            value, equal = own.value(), own.equal_weight()
            own.step(taken[step][row].tolist())
            assert made.returns[row, step] == pytest.approx(
                own.value() / value - 1, rel=1e-9, abs=1e-13
            )
            assert made.equal_weight[row, step] == pytest.approx(
                own.equal_weight() / equal - 1, rel=1e-9, abs=1e-13
            )
            assert made.trades[row, step] == own.bill.trades
            assert made.fees[row, step] == pytest.approx(own.bill.fees / value, rel=1e-9, abs=1e-13)
            assert made.notional[row, step] == pytest.approx(
                own.bill.notional / value, rel=1e-9, abs=1e-13
            )
            assert made.exposure[row, step] == pytest.approx(1 - own.cash / own.value(), abs=1e-11)
        assert own.bar == last
    for name in ("returns", "equal_weight", "trades", "fees", "notional", "exposure"):
        for row, length in enumerate(made.lengths):
            assert not getattr(made, name)[row, length:].any()


def test_evaluation_is_deterministic_without_a_seed() -> None:
    env = CryptoEnv.for_windows(two_assets(), EnvParams(), [[(5, 60), (60, 200)]])
    one, two = trade_windows(env, policy), trade_windows(env, policy)
    np.testing.assert_array_equal(one.returns, two.returns)
    np.testing.assert_array_equal(one.equal_weight, two.equal_weight)


def test_a_window_traded_alone_gives_the_same_numbers() -> None:
    market = two_assets(hole_share=0.05)
    windows = [(5, 60), (60, 200), (150, 290)]
    together = trade_windows(CryptoEnv.for_windows(market, EnvParams(), [windows]), policy)
    for row, window in enumerate(windows):
        alone = trade_windows(CryptoEnv.for_windows(market, EnvParams(), [[window]]), policy)
        np.testing.assert_array_equal(alone.returns[0], together.returns[row, : alone.lengths[0]])


def test_paths_contain_the_returns_of_their_groups() -> None:
    market = two_assets(bars=900)
    scheme = CrossValidation(groups=4, test_groups=2)
    splits = make_splits(900, "1h", scheme, first_bar=0, holdout=0.1, lookback=1, memory=1)
    order = [(fold.index, group) for fold in splits.folds for group in fold.test_groups]
    windows = [splits.test_windows(fold) for fold in splits.folds]
    params = [EnvParams(action_scale=0.05 + 0.05 * fold.index) for fold in splits.folds]
    # two trials in one batch; the second one's rows are joined
    env = CryptoEnv.for_windows(market, [*reversed(params), *params], [*windows, *windows])
    made = trade_windows(env, policy)
    paths = path_trades(splits, made, order, first_row=len(order))
    assert paths.returns.shape == (math.comb(3, 1), len(splits.path_bars))
    for path in range(3):
        column = 0
        for fold, group in zip(splits.paths[path], splits.path_groups, strict=True):
            row = len(order) + order.index((int(fold), group))
            a, b = splits.groups[group]
            assert made.lengths[row] == b - a
            for name in ("returns", "equal_weight", "trades", "fees", "notional", "exposure"):
                got = getattr(paths, name)[path, column : column + b - a]
                np.testing.assert_array_equal(got, getattr(made, name)[row, : b - a])
            column += b - a


def test_members_need_equally_many_windows() -> None:
    with pytest.raises(InputError, match="equally many"):
        CryptoEnv.for_windows(two_assets(), EnvParams(), [[(5, 60)], [(5, 60), (60, 200)]])
    with pytest.raises(InputError, match="at least one"):
        CryptoEnv.for_windows(two_assets(), EnvParams(), [])


def test_an_illegal_action_ends_the_evaluation() -> None:
    env = CryptoEnv.for_windows(two_assets(), EnvParams(), [[(5, 60)]])
    with pytest.raises(RunError, match="illegal actions from step 1 on:"):
        trade_windows(env, lambda obs: torch.full((len(obs), 2), math.nan))
