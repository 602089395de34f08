"""SAC and D3QN learn a task whose optimum is known.

(Pendulum and Acrobot: `scripts/bench/quality/learning_vs_sb3.py`.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from sweepd.agents.algorithms.d3qn import D3QN, D3QNParams
from sweepd.agents.algorithms.sac import SAC, SACParams
from sweepd.agents.engine.program import Act
from sweepd.agents.networks.shape import Shape
from tests.agents.toy_env import ChoiceEnv, ToyEnv


def test_sac_learns_the_toy_task() -> None:
    members = 2
    env = ToyEnv(members, 8, max_step=20)
    sizes = {"net_width": 32, "horizon": 16, "minibatch": 64, "updates": 40, "buffer": 8_000}
    sac = SAC(Shape.for_env(env, algorithm="sac", **sizes))
    for slot in range(members):
        sac.add_member(
            slot, SACParams(gamma=0.9, warmup=256), slot, 12, env.state_avg, env.state_std
        )
    sac.begin(env.reset([1, 2]))
    start = trial(env, sac.act_fn())
    history = sac.train(env, 12)
    learned = trial(env, sac.act_fn())
    assert float(start.max()) < 0.8
    assert float(learned.min()) > 0.9
    assert float(history[-1].alpha.max()) < float(history[2].alpha.min())


def test_d3qn_learns_to_choose() -> None:
    members = 2
    env = ChoiceEnv(members, 8, choices=5, max_step=20)
    sizes = {"net_width": 32, "horizon": 16, "minibatch": 64, "updates": 40, "buffer": 8_000}
    d3qn = D3QN(Shape.for_env(env, algorithm="d3qn", **sizes))
    for slot in range(members):
        d3qn.add_member(
            slot, D3QNParams(gamma=0.9, warmup=256), slot, 12, env.state_avg, env.state_std
        )
    d3qn.begin(env.reset([1, 2]))
    start = trial(env, d3qn.act_fn())
    d3qn.train(env, 12)
    assert float(start.max()) < 0.8
    assert float(trial(env, d3qn.act_fn()).min()) > 0.88


def trial(env: ToyEnv, act: Act) -> Tensor:
    """(members,) mean reward of 60 steps."""
    obs, total = env.reset(77), torch.zeros(env.num_envs)
    for _ in range(60):
        step = env.step(act(obs))
        obs, total = step.obs, total + step.reward
    return total.view(env.num_members, -1).mean(1) / 60
