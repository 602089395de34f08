"""Learners trained in external environments."""

from __future__ import annotations

import torch

from sweepd.agents.algorithms.ppo import PPO, PPOParams
from sweepd.agents.networks.shape import Shape
from sweepd.envs.external.sharded import Layout
from sweepd.envs.external.vec_env import ExternalVecEnv


def program(env: ExternalVecEnv) -> PPO:
    shape = Shape.for_env(env, horizon=16, net_width=16, net_depth=1, minibatch=32, epochs=1)
    return PPO(shape, torch.device("cpu"))


def test_a_learning_member_resumes_exactly_in_another_process_and_slot() -> None:
    env = ExternalVecEnv("CartPole-v1", 2, 4)
    learner = program(env)
    env.reset([1, 2])
    for slot in range(2):
        learner.add_member(slot, PPOParams(), slot, 8, torch.zeros(4), torch.ones(4))
    learner.begin(env.observe())
    learner.train(env, 3)
    kept = env.get_member(0), learner.get_member(0)

    other = ExternalVecEnv("CartPole-v1", 2, 4, layout=Layout(3, (5,)))
    resumed = program(other)
    other.set_member(1, kept[0])
    resumed.set_member(1, kept[1])
    resumed.begin(other.observe(), [1])
    learner.train(env, 3)
    resumed.train(other, 3)
    for one, two in zip(learner.export_member(0), resumed.export_member(1), strict=True):
        assert all(torch.equal(one[name], two[name]) for name in one)
    other.close()
