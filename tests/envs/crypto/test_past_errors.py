"""Errors that earlier trading environments had without any error message; none may return."""

from __future__ import annotations

import dataclasses
import itertools
import tomllib
from importlib.resources import files

import numpy as np
import pytest
import torch
from torch import Tensor

from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.demo_market import make_demo_market
from sweepd.envs.crypto.data.timeframe import bars_per_year
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.features import compute_features, get_recipe
from sweepd.envs.crypto.market import Market
from sweepd.envs.crypto.params import EnvParams, Instruments
from sweepd.envs.crypto.scoring.metrics import sharpe
from sweepd.envs.crypto.splits import CrossValidation, make_splits
from sweepd.optimize.study.space.subject import MARKET_PPO
from tests.envs.market_samples import random_params, sample_market


def flat_market(
    closes: list[float], opens: list[float] | None = None, instruments: Instruments | None = None
) -> Market:
    """Make one asset with those prices. Opens default to the previous closes; no real features."""
    close = np.array(closes)[:, None]
    before = np.vstack([close[:1], close[:-1]]) if opens is None else np.array(opens)[:, None]
    shape = close.shape
    time = 3600 * np.arange(len(closes))
    bars = Bars(
        ("AAA/USDT",),
        "1h",
        time,
        before,
        np.maximum(before, close),
        np.minimum(before, close),
        close,
        np.ones(shape),
        np.zeros(shape, dtype=bool),
        synthetic=True,
    )
    features = np.zeros((len(closes), 1), dtype=np.float32)
    return Market(bars, "none", features, instruments or Instruments.unrestricted(1))


def replay(market: Market, params: EnvParams, actions: list[float]) -> CryptoEnv:
    """Trade the whole market from bar 0 with these actions."""
    env = CryptoEnv.for_windows(market, params, [[(0, market.length - 1)]])
    env.reset()
    for action in actions:
        env.step(torch.tensor([[action]]))
    return env


FREE = EnvParams(fee=0.0, slippage=0.0, cash_reserve=0.0, action_scale=0.5, minimum_order=10.0)


# ---- an action scale that makes every order smaller than the minimum ----


def test_small_actions_trade_at_every_corner_of_the_default_ranges() -> None:
    table = tomllib.loads((files("sweepd.optimize") / "spaces" / "wide.toml").read_text())["env"]
    ranges = {name: (entry["low"], entry["high"]) for name, entry in table.items()}
    ranges["trailing_stop"] = (0.0, *ranges["trailing_stop"])
    ordering = ("action_scale", "cash_reserve", "max_position", "trailing_stop")
    corners = list(itertools.product(*(ranges.pop(name) for name in ordering)))
    market = sample_market(bars=400, assets=10, volatility=0.02)
    # The other parameters do not change orders: they are all at their low or all at their high end.
    others = [{name: bounds[side] for name, bounds in ranges.items()} for side in (0, 1)]
    params = [
        EnvParams(**dict(zip(ordering, corner, strict=True)), **other)
        for corner in corners
        for other in others
    ]
    env = CryptoEnv(market, params, [(20, 399)], 2, accounts=True)
    env.reset(0)
    generator = torch.Generator().manual_seed(0)
    trades = torch.zeros(env.num_envs, dtype=torch.float64)
    for _ in range(100):
        env.step(torch.randn(env.num_envs, 10, generator=generator).mul_(0.2).clamp_(-1, 1))
        assert env.account is not None
        trades += env.account.trades
    assert float(trades.min()) >= 30, params[int(trades.argmin()) // 2]


# ---- a batch that is another MDP than the single environment ----


def test_one_row_and_many_are_the_same_mdp() -> None:
    market = sample_market(hole_share=0.1)
    params = [random_params(seed, episode_bars=30) for seed in range(5)]
    many = CryptoEnv(market, params, [(5, 290)], 1, accounts=True)
    first = many.reset(range(5))
    actions = torch.rand(70, 5, 3, generator=torch.Generator().manual_seed(1)) * 2 - 1
    steps = [many.step(action) for action in actions]
    for row in range(5):
        one = CryptoEnv(market, params[row], [(5, 290)], 1, accounts=True)
        assert torch.equal(one.reset([row])[0], first[row])
        for action, batch in zip(actions, steps, strict=True):
            single = one.step(action[row : row + 1])
            assert torch.equal(single.obs[0], batch.obs[row])
            assert torch.equal(single.reward[0], batch.reward[row])


def test_cash_is_never_negative() -> None:
    env = CryptoEnv(
        sample_market(assets=6),
        dataclasses.replace(FREE, action_scale=1.0),
        [(0, 299)],
        16,
        accounts=True,
    )
    env.reset(1)
    for _ in range(50):
        env.step(torch.ones(16, 6))
        assert env.account is not None
        assert float(env.account.exposure.max()) <= 1.0
        assert float(env.portfolio().cash.min()) >= 0.0


# ---- a reset that forgets part of the state ----


@pytest.mark.parametrize("by_hand", [False, True])
def test_every_later_episode_equals_the_first(by_hand: bool) -> None:
    """After an eventful episode, the same bars and actions give the same results to the bit."""
    market = sample_market(hole_share=0.1)
    params = random_params(
        1, trailing_stop=0.02, max_holding_bars=3, drawdown_penalty=1.0, time_decay_floor=0.1
    )
    only_start = [(10, 10 + params.episode_bars)]
    env = CryptoEnv(market, params, only_start, 2, privileged_age=True)
    actions = (
        torch.rand(params.episode_bars, 2, 3, generator=torch.Generator().manual_seed(1)) * 2 - 1
    )
    episodes: list[list[Tensor]] = []
    obs = env.reset(1)
    for _ in range(3):
        seen = [obs]
        for action in actions:
            step = env.step(action)
            seen += [step.reward, step.obs]
        assert bool(step.truncated.all())
        obs = step.obs
        if by_hand:
            env.step(actions[0])
            obs = env.reset(2)
        episodes.append(seen)
    for later in episodes[1:]:
        for one, two in zip(episodes[0][:-1], later[:-1], strict=True):
            assert torch.equal(one, two)


# ---- stop-loss amounts in the wrong unit ----


def test_a_triggered_stop_sells_the_whole_position() -> None:
    market = flat_market([100.0, 100.0, 100.0, 120.0, 107.9, 107.9, 107.9])
    params = dataclasses.replace(FREE, trailing_stop=0.1)
    held = replay(market, params, [1.0, 0.0, 0.0, 0.0])
    assert held.portfolio().units.item() == pytest.approx(50.0)  # bar 4 closes below 120 · 0.9
    sold = replay(market, params, [1.0, 0.0, 0.0, 0.0, 0.0])
    assert sold.portfolio().units.item() == 0.0
    assert sold.portfolio().cash.item() == pytest.approx(5000 + 50 * 107.9)
    spared = replay(
        market, dataclasses.replace(FREE, trailing_stop=0.11), [1.0, 0.0, 0.0, 0.0, 0.0]
    )
    assert spared.portfolio().units.item() == pytest.approx(50.0)


def test_a_stop_overrides_a_buy() -> None:
    market = flat_market([100.0, 100.0, 80.0, 80.0, 80.0])
    env = replay(market, dataclasses.replace(FREE, trailing_stop=0.1), [1.0, 1.0, 1.0])
    assert env.portfolio().units.item() == 0.0


# ---- prices and decisions that are bars old or not closed yet ----


def test_orders_fill_at_the_next_open_only() -> None:
    closes, opens = [100.0] * 8, [100.0, 100.0, 100.0, 90.0, 100.0, 100.0, 100.0, 100.0]
    env = replay(
        flat_market(closes, opens), FREE, [0.0, 0.0, 1.0]
    )  # decided at close 2, filled at open 3
    assert env.portfolio().units.item() == pytest.approx(5000 / 90)
    bought = env.portfolio().units.item()
    for bar in range(8):
        moved = list(opens)
        moved[bar] *= 1.25
        units = replay(flat_market(closes, moved), FREE, [0.0, 0.0, 1.0]).portfolio().units.item()
        assert (units != bought) == (bar == 3), bar


def test_decisions_see_the_closed_bar_and_nothing_after_it() -> None:
    market = sample_market()
    env = CryptoEnv(market, FREE, [(50, 60)], 1, accounts=True)
    actions = torch.rand(5, 1, 3, generator=torch.Generator().manual_seed(0))

    def observed(changed_from: int) -> Tensor:
        bars = market.bars
        later = np.arange(market.length)[:, None] >= changed_from
        other = dataclasses.replace(
            bars,
            **{
                name: np.where(later, 3 * getattr(bars, name), getattr(bars, name))
                for name in ("open", "high", "low", "close")
            },
        )
        features = np.where(later, 9.0, market.features).astype(np.float32)
        world = CryptoEnv(
            Market(other, "sample", features, market.instruments), FREE, [(50, 60)], 1
        )
        world.reset(0)
        for action in actions:
            obs = world.step(action).obs
        return obs

    env.reset(0)
    for action in actions:
        obs = env.step(action).obs
    now = int(env.bars()[0])
    assert torch.equal(observed(now + 1), obs)
    assert not torch.equal(observed(now), obs)


# ---- a stop that never ends; small remainders that cannot be sold ----


def test_after_a_stop_the_asset_can_be_bought_again_with_a_new_high() -> None:
    closes = [100.0, 100.0, 200.0, 150.0, 150.0, 150.0, 150.0, 150.0, 150.0]
    params = dataclasses.replace(FREE, trailing_stop=0.2)
    stopped = replay(flat_market(closes), params, [1.0, 0.0, 0.0, 0.0])
    assert stopped.portfolio().units.item() == 0.0
    again = replay(flat_market(closes), params, [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    assert again.portfolio().units.item() > 0.0  # the old high of 200 would have stopped it at 150


@pytest.mark.parametrize("increment", [0.0, 0.5])
def test_the_smallest_positions_can_be_sold_completely(increment: float) -> None:
    market = flat_market(
        [100.0, 100.0, 0.01, 0.01, 0.01, 0.01], instruments=Instruments((0.0,), (increment,))
    )
    params = dataclasses.replace(FREE, action_scale=0.01, fee=0.001)
    env = replay(market, params, [1.0, 0.0])
    assert (
        0 < env.values()[0].item() - env.portfolio().cash.item() < 0.02
    )  # a hundredth of the minimum order
    env = replay(market, params, [1.0, 0.0, -1e-3])
    assert env.portfolio().units.item() == 0.0
    assert env.portfolio().cost.item() == 0.0


def test_a_holding_rule_below_the_minimum_order_does_not_block_the_asset() -> None:
    """A tenth of the position is below the minimum: dropped, but the clock restarts."""
    market = flat_market([100.0] * 12)
    params = dataclasses.replace(
        FREE, action_scale=0.005, max_holding_bars=2, max_holding_fraction=0.1
    )
    env = replay(market, params, [1.0, 0.0, 0.0, 0.0])
    assert env.account is not None
    assert env.account.dropped.item() == 1
    assert env.portfolio().units.item() == pytest.approx(0.5)
    assert env.portfolio().held.item() == 0
    env = replay(market, params, [1.0, 0.0, 0.0, 0.0, -0.5])
    assert env.portfolio().units.item() == pytest.approx(0.25)


# ---- tickers in another order ----


def test_the_order_of_assets_is_the_order_of_tickers_everywhere() -> None:
    """Permuted assets in bars and actions permute positions, observations and money alike."""
    rules = Instruments((0.0, 5.0, 50.0, 0.0), (0.0, 0.1, 0.0, 1.0))
    market = sample_market(assets=4, hole_share=0.1, instruments=rules)
    order = [2, 0, 3, 1]
    bars = market.bars
    turned_bars = dataclasses.replace(
        bars,
        tickers=tuple(bars.tickers[i] for i in order),
        **{
            name: getattr(bars, name)[:, order]
            for name in ("open", "high", "low", "close", "volume", "hole")
        },
    )
    turned_rules = Instruments(
        tuple(rules.minimum_order[i] for i in order), tuple(rules.increment[i] for i in order)
    )
    turned = Market(turned_bars, "sample", market.features, turned_rules)
    params = random_params(3, episode_bars=60)
    one, two = (CryptoEnv(m, params, [(5, 290)], 4, accounts=True) for m in (market, turned))
    one.reset(1)
    two.reset(1)
    for action in torch.rand(50, 4, 4, generator=torch.Generator().manual_seed(0)) * 2 - 1:
        first, second = one.step(action), two.step(action[:, order])
        torch.testing.assert_close(
            one.portfolio().units[:, order], two.portfolio().units, rtol=1e-12, atol=0
        )
        torch.testing.assert_close(one.values(), two.values(), rtol=1e-12, atol=0)
        blocks = [first.obs[:, 1 + 4 * k : 5 + 4 * k][:, order] for k in range(3)]
        torch.testing.assert_close(torch.cat(blocks, dim=1), second.obs[:, 1:13])


# ---- a feature that is identically zero ----


def test_no_feature_of_the_default_recipe_is_constant() -> None:
    bars = make_demo_market(3, assets=2, bars=3000)
    recipe = get_recipe("default")
    table = compute_features(bars, recipe)[recipe.memory - 1 :]
    for name, column in zip(recipe.columns(bars.tickers), table.T, strict=True):
        assert np.std(column) > 1e-3, name


# ---- an episode across two windows; a purge that removes nothing ----


def test_episodes_stay_between_the_purged_bars() -> None:
    bars = 6000
    market = sample_market(bars=bars, assets=1)
    scheme = CrossValidation(groups=5, test_groups=2)
    splits = make_splits(bars, "1h", scheme, first_bar=63, holdout=0.15, lookback=1, memory=64)
    assert splits.purge == 66
    for fold in splits.folds:
        tested = np.zeros(bars, dtype=bool)
        for group in fold.test_groups:
            a, b = splits.groups[group]
            tested[a - splits.purge : b + splits.purge + splits.embargo] = True
        tested[splits.holdout[0] :] = True
        env = CryptoEnv(market, EnvParams(episode_bars=48), fold.train, 32)
        env.reset(fold.index)
        for step in range(1, 145):
            decided = env.bars().numpy()
            assert not tested[decided].any()
            env.step(torch.zeros(32, 1))
            if step % 48:
                np.testing.assert_array_equal(env.bars().numpy(), decided + 1)
            assert not tested[decided + 1].any()  # nor valued there


# ---- Sharpe with the factor of another timeframe ----


def test_sharpe_depends_on_the_timeframe_and_not_on_the_length_of_the_test() -> None:
    returns = np.random.default_rng(0).normal(1e-4, 1e-2, 5000)
    hourly, five = sharpe(returns, bars_per_year("1h")), sharpe(returns, bars_per_year("5m"))
    assert five / hourly == pytest.approx(np.sqrt(12))
    assert sharpe(np.tile(returns, 4), bars_per_year("1h")) == pytest.approx(hourly, rel=1e-3)
    assert hourly == pytest.approx(np.sqrt(24 * 365.25) * returns.mean() / returns.std(ddof=1))


# ---- hyperparameters that never arrive ----


def test_every_searched_parameter_of_the_environment_exists() -> None:
    """test_env.py checks for all fields of EnvParams that each changes the trajectory."""
    for name in MARKET_PPO.presets:
        table = tomllib.loads((files("sweepd.optimize") / "spaces" / f"{name}.toml").read_text())
        known = {field.name for field in dataclasses.fields(EnvParams)}
        assert set(table.get("env", {})) <= known, name


# ---- all parallel environments starting at the same bar ----


def test_parallel_rows_start_at_different_bars_in_every_episode() -> None:
    market = sample_market(bars=3000)
    env = CryptoEnv(market, [EnvParams(episode_bars=30)] * 3, [(10, 2990)], 64)
    env.reset(5)
    env.draw(31)
    first = env.bars()
    for member in range(3):
        assert len(first[64 * member : 64 * member + 64].unique()) == 64
    assert not torch.equal(first[:64], first[64:128])
    for _ in range(30):
        env.step(torch.zeros(192, 3))
    second = env.bars()
    assert len(second[:64].unique()) == 64
    assert float((second == first).double().mean()) < 0.1


# ---- one member's NaN ----


def test_a_nan_stays_in_its_member_and_ends_with_a_reset() -> None:
    market = sample_market()
    spoilt, clean = (
        CryptoEnv(market, [EnvParams(episode_bars=12)] * 3, [(5, 290)], 4) for _ in range(2)
    )
    actions = torch.rand(40, 12, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1
    broken = actions.clone()
    broken[3:, 4:8] = torch.nan
    spoilt.reset(1)
    clean.reset(1)
    others = [0, 1, 2, 3, 8, 9, 10, 11]
    for bad, good in zip(broken, actions, strict=True):
        one, two = spoilt.step(bad), clean.step(good)
        assert torch.equal(one.obs[others], two.obs[others])
        assert torch.equal(one.reward[others], two.reward[others])
    assert spoilt.faults().tolist() == [4 <= row < 8 for row in range(12)]
    spoilt.reset_member(1, 3)
    assert bool(spoilt.observe().isfinite().all())
    assert not bool(spoilt.faults().any())
