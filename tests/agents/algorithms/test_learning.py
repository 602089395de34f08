"""PPO learns a task whose optimum is known. (Markets: `scripts/bench/quality/learning.py`.)"""

from __future__ import annotations

import torch
from torch import Tensor

from sweepd.agents.algorithms.ppo import PPO, PPOParams
from sweepd.agents.engine.acting import Actors
from sweepd.agents.networks.shape import Shape
from tests.agents.toy_env import ChoiceEnv, MaskedEnv, ToyEnv


def test_defaults_learn_the_toy_task() -> None:
    """Every seed reaches a noise-free reward above 0.93 of 1, from about 0.5 at the start."""
    members = 3
    env = ToyEnv(members, 16, max_step=20)
    shape = Shape(
        state_dim=env.state_dim,
        action_dim=env.action_dim,
        slots=members,
        net_width=32,
        num_envs=16,
        horizon=32,
        minibatch=128,
    )
    ppo = PPO(shape)
    for slot in range(members):
        ppo.add_member(slot, PPOParams(), slot, 30, env.state_avg, env.state_std)
    ppo.begin(env.reset([1, 2, 3]))
    act = ppo.act_fn()
    start = trial(env, act)
    history = ppo.train(env, 30)
    learned = trial(env, ppo.act_fn())
    assert float(start.max()) < 0.8
    assert float(learned.min()) > 0.93
    assert torch.equal(start, trial(env, act))  # an acting function is a snapshot
    assert float(history[-1].explained_variance.min()) > 0.3
    assert float(history[-1].std.max()) < float(history[0].std.min())


def test_defaults_learn_to_choose() -> None:
    """The same with one of five numbers as the action, which can't be met exactly."""
    members = 3
    env = ChoiceEnv(members, 16, choices=5, max_step=20)
    shape = Shape(
        state_dim=env.state_dim,
        action_dim=5,
        if_discrete=True,
        slots=members,
        net_width=32,
        num_envs=16,
        horizon=32,
        minibatch=128,
    )
    ppo = PPO(shape)
    for slot in range(members):
        ppo.add_member(slot, PPOParams(), slot, 30, env.state_avg, env.state_std)
    ppo.begin(env.reset([1, 2, 3]))
    start = trial(env, ppo.act_fn())
    history = ppo.train(env, 30)
    learned = trial(env, ppo.act_fn())
    assert float(start.max()) < 0.8
    assert float(learned.min()) > 0.9
    assert float(history[-1].entropy.max()) < float(history[0].entropy.min())
    assert not history[-1].std.any()


def test_ppo_learns_two_choices_with_illegal_options() -> None:
    """The best of the legal ones gives 0.82."""
    env = MaskedEnv(1, 16, max_step=20)
    ppo = PPO(Shape.for_env(env, net_width=32, horizon=32, minibatch=128, autoregressive=True))
    params = PPOParams(learning_rate=3e-3, entropy_coef=0.005)
    ppo.add_member(0, params, 0, 6, env.state_avg, env.state_std)
    ppo.begin(env.reset([1]))
    start = trial(env, ppo.act_fn())
    ppo.train(env, 6)
    learned = trial(env, ppo.act_fn())
    assert float(start) < 0.2
    assert float(learned) > 0.7


def trial(env: ToyEnv, act: Actors) -> Tensor:
    """(members,) mean reward of 60 steps."""
    obs, total = env.reset(77), torch.zeros(env.num_envs)
    for _ in range(60):
        step = env.step(act(obs, env.action_mask))
        obs, total = step.obs, total + step.reward
    return total.view(env.num_members, -1).mean(1) / 60
