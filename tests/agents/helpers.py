"""Helpers of the agents' tests: programs on the toy environment, and comparison of states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sweepd.agents.algorithms.ppo import PPO, PPOParams
from sweepd.agents.engine.program import Program
from sweepd.agents.networks.optimizer import Adam
from sweepd.agents.networks.shape import Shape
from tests.agents.toy_env import ToyEnv

SMALL: dict[str, Any] = {"net_width": 16, "horizon": 12, "minibatch": 16, "epochs": 2}


def shape_for(env: ToyEnv, **changes: Any) -> Shape:
    """A small shape that fits the environment."""
    return Shape.for_env(env, **{**SMALL, "autoregressive": env.spec.masked, **changes})


def member_params(index: int, **changes: Any) -> PPOParams:
    """Params that differ from one member to the next in every number."""
    base = {
        "learning_rate": 1e-3 * (1 + 0.3 * index),
        "gamma": 0.9 + 0.01 * index,
        "gae_lambda": 0.95 - 0.02 * index,
        "clip": 0.2 + 0.02 * index,
        "entropy_coef": 0.01 * (1 + index),
        "initial_log_std": -1.0 + 0.1 * index,
        "value_coef": 0.5 + 0.1 * index,
        "max_grad_norm": 0.5 + 0.5 * index,
        "target_kl": (0.0, 0.002, 0.01, 0.0)[index % 4],
        "adam_eps": 10.0 ** (-8 + index % 4),
        "weight_decay": 0.01 * (index % 2),
        "lr_schedule": ("constant", "linear", "cosine")[index % 3],
        "weight_average": (0.5, 1.0, 0.0)[index % 3],
    }
    return PPOParams(**{**base, **changes})


def start(env: ToyEnv, members: dict[int, int], **changes: Any) -> PPO:
    """Return a program with member `members[slot]` in each slot; it decides params and seeds."""
    ppo = PPO(shape_for(env, **changes))
    for slot, member in members.items():
        ppo.add_member(slot, member_params(member), 100 + member, 8, env.state_avg, env.state_std)
        env.streams.seed(slot, 200 + member)
    ppo.begin(env.reset())
    return ppo


def rollouts(program: Program) -> list[int]:
    """Return how many rollouts each slot's member has trained on; 0 where it is empty."""
    return [member.rollouts if member else 0 for member in program.members]


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Equal to the bit, NaN equal to NaN."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor.nan_to_num(nan=123.0), other[name].nan_to_num(nan=123.0)), name


def adam_of(ppo: PPO) -> Adam:
    """Return an optimizer of a program's networks, as on a GPU."""
    return Adam(ppo.population.flat, ppo.population.pair.leaves, fused=False)


def make_adam_steps(adams: Sequence[Adam], scale: float) -> None:
    """Make the same 20 steps with optimizers of 4 members; the last member takes part in none.

    Args:
        adams: the optimizers.
        scale: of the gradients, which are random.
    """
    for adam in adams:
        adam.lr, adam.eps = [1e-3, 3e-4, 1e-2, 1e-3], [1e-8, 1e-5, 1e-3, 1e-8]
        adam.weight_decay = [0.0, 0.1, 0.01, 0.0]
        adam.prepare()
    largest = torch.tensor([0.5, 1e6, 3.0, 1.0])
    for step in range(20):
        grad = scale * torch.randn_like(adams[0].grad)
        active = torch.tensor([True, step % 2 == 0, step < 5, False])
        grad[:, 3] = torch.nan
        for adam in adams:
            adam.grad.copy_(grad)
            adam.apply(torch.linalg.vector_norm(adam.grad, dim=2), largest, active)
