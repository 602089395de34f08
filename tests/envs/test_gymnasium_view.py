"""The environments' Gymnasium and ElegantRL interfaces."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.gymnasium_view import CRYPTO_ID, GymnasiumVectorView, GymnasiumView, register
from sweepd.envs.support.errors import RunError
from tests.envs.market_samples import sample_market


@pytest.mark.parametrize("short", [False, True])
def test_the_single_environment_passes_gymnasiums_check(short: bool) -> None:
    register()
    env = gymnasium.make(CRYPTO_ID, market=sample_market(), episode_bars=30, allow_short=short)
    with pytest.warns(
        UserWarning, match="infinity"
    ):  # returns have no bounds, and gymnasium would like some
        check_env(env.unwrapped, skip_render_check=True)


def test_registering_twice_changes_nothing() -> None:
    register()
    first = gymnasium.registry[CRYPTO_ID]
    register()
    assert gymnasium.registry[CRYPTO_ID] is first


def test_made_without_a_market_it_trades_a_synthetic_one() -> None:
    register()
    env = gymnasium.make(CRYPTO_ID)
    obs, _ = env.reset(seed=1)
    assert env.observation_space.contains(obs)
    assert env.unwrapped.env.market.bars.synthetic  # type: ignore[attr-defined]


def test_the_vector_view_has_gymnasiums_semantics() -> None:
    register()
    env = gymnasium.make_vec(CRYPTO_ID, num_envs=4, market=sample_market(), episode_bars=10)
    assert env.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert env.action_space.shape == (4, 3)
    assert env.single_action_space.shape == (3,)
    obs, _ = env.reset(seed=7)
    assert env.observation_space.contains(obs)
    again, _ = env.reset(seed=7)
    np.testing.assert_array_equal(obs, again)
    action = np.full((4, 3), 0.5, dtype=np.float32)
    for step in range(1, 21):
        obs, reward, terminated, truncated, infos = env.step(action)
        assert obs.dtype == np.float32
        assert reward.shape == (4,)
        assert not terminated.any()
        assert truncated.all() == (step % 10 == 0)
        if truncated.any():
            assert infos["_final_obs"].all()
            assert infos["final_obs"][2][0] < 0.9  # it had bought something
            np.testing.assert_array_equal(
                obs[:, 0], 1.0
            )  # and the new episode begins with cash alone
        else:
            assert not infos


def test_returned_arrays_stay_as_they_were() -> None:
    env = GymnasiumVectorView(CryptoEnv(sample_market(), EnvParams(), [(0, 200)], 2))
    first, _ = env.reset(seed=1)
    kept = first.copy()
    rewards = [env.step(np.full((2, 3), a, dtype=np.float32))[1] for a in (0.3, -0.2)]
    np.testing.assert_array_equal(first, kept)
    assert not np.array_equal(rewards[0], rewards[1])


def test_single_and_vector_views_are_one_environment() -> None:
    market = sample_market()
    one = GymnasiumView(CryptoEnv(market, EnvParams(episode_bars=15), [(0, 250)], 1))
    many = GymnasiumVectorView(CryptoEnv(market, EnvParams(episode_bars=15), [(0, 250)], 1))
    np.testing.assert_array_equal(one.reset(seed=5)[0], many.reset(seed=5)[0][0])
    rng = np.random.default_rng(0)
    for _ in range(15):
        action = rng.uniform(-1, 1, 3).astype(np.float32)
        single, batch = one.step(action), many.step(action[None])
        assert single[1] == batch[1][0]
        assert single[3] == batch[3][0]
    np.testing.assert_array_equal(single[0], batch[4]["final_obs"][0])


def test_an_illegal_action_is_refused_at_once() -> None:
    env = GymnasiumView(CryptoEnv(sample_market(), EnvParams(), [(0, 200)], 1))
    env.reset(seed=1)
    with pytest.raises(RunError, match="BBB/USDT"):
        env.step(np.array([0.1, np.nan, 0.2], dtype=np.float32))


def test_only_single_rows_become_single_environments() -> None:
    with pytest.raises(ValueError, match="one row, not 2"):
        GymnasiumView(CryptoEnv(sample_market(), EnvParams(), [(0, 200)], 2))


def test_it_has_the_attributes_that_elegantrl_reads() -> None:
    env = CryptoEnv(sample_market(), EnvParams(episode_bars=20), [(0, 200)], 5)
    assert (env.env_name, env.num_envs, env.max_step) == (CRYPTO_ID, 5, 20)
    assert (env.state_dim, env.action_dim, env.if_discrete) == (1 + 3 * 3 + 2, 3, False)
    assert env.reset(0).shape == (5, env.state_dim)
    assert torch.float32 == env.reset(0).dtype
