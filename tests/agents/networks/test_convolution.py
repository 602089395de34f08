"""Image observations: what a program stores and learns of them, and which sizes are refused."""

from __future__ import annotations

import pytest
import torch

from sweepd.agents.algorithms.ppo import PPO, PPOParams
from sweepd.agents.networks.convolution import filters_for, planes
from sweepd.agents.networks.shape import Shape
from sweepd.envs.support.errors import InputError
from tests.agents.helpers import shape_for
from tests.agents.toy_env import ImageEnv


def test_images_stay_uint8_until_the_network_and_a_program_learns_from_them() -> None:
    env = ImageEnv(1, 16, choices=5, max_step=20)
    ppo = PPO(shape_for(env, num_envs=16, horizon=16, minibatch=64, epochs=8, net_width=32))
    assert ppo.rollout.obs.dtype == ppo.rollout.transitions.obs.dtype == torch.uint8
    ppo.add_member(
        0, PPOParams(entropy_coef=0.01, learning_rate=3e-3), 0, 6, env.state_avg, env.state_std
    )
    ppo.begin(env.reset(3))
    before = score(env, ppo)
    ppo.train(env, 5)
    assert before < 0.6
    assert score(env, ppo) > 0.75
    assert ppo.get_member(0)["obs"].dtype == torch.uint8


def score(env: ImageEnv, ppo: PPO) -> float:
    """Mean reward of 20 steps."""
    act, obs, total = ppo.act_fn(), env.reset(77), 0.0
    for _ in range(20):
        step = env.step(act(obs))
        obs, total = step.obs, total + float(step.reward.mean())
    ppo.begin(obs)
    return total / 20


def test_invalid_image_shapes_are_refused() -> None:
    filters = filters_for((4, 84, 84))
    assert [(one.kernel, one.stride) for one in filters] == [(8, 4), (4, 2)]
    assert planes((4, 84, 84), filters) == [(4, 84, 84), (16, 20, 20), (32, 9, 9)]
    with pytest.raises(InputError, match="at least 5 x 5, and image_shape is \\(1, 4, 9\\)"):
        filters_for((1, 4, 9))
    with pytest.raises(InputError, match="image_shape has 100 columns"):
        Shape(state_dim=99, action_dim=2, if_discrete=True, image_shape=(1, 10, 10))
