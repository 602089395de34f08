"""Programs of SAC (on `ToyEnv`) and D3QN (on `ChoiceEnv`), for the tests."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sweepd.agents.algorithms.d3qn import D3QN, D3QNParams
from sweepd.agents.algorithms.off_policy import OffPolicy
from sweepd.agents.algorithms.off_policy_params import OffPolicyParams
from sweepd.agents.algorithms.sac import SAC, SACParams
from tests.agents.helpers import shape_for
from tests.agents.toy_env import ToyEnv


def program_for(env: ToyEnv, **changes: Any) -> OffPolicy:
    """An empty program with small sizes."""
    sizes = {
        "minibatch": 16,
        "updates": 6,
        "buffer": 40 * env.envs_per_member,
        "horizon": 12,
    } | changes
    kind = D3QN if env.if_discrete else SAC
    return kind(shape_for(env, algorithm=kind.algorithm, **sizes))


def member_params(env: ToyEnv, index: int, **changes: Any) -> OffPolicyParams:
    """Params that differ from one member to the next."""
    base = {
        "learning_rate": 1e-3 * (1 + 0.3 * index),
        "gamma": 0.9 + 0.01 * index,
        "soft_update_tau": 0.01 * (1 + index),
        "reward_scale": 1.0 + 0.5 * index,
        "max_grad_norm": 0.5 + 0.5 * index,
        "adam_eps": 10.0 ** (-8 + index % 4),
        "weight_decay": 0.01 * (index % 2),
        "warmup": (0, 60, 30)[index % 3],
        "lr_schedule": ("constant", "linear", "cosine")[index % 3],
    }
    if env.if_discrete:
        return D3QNParams(**{**base, "explore_end": 0.05 * index, **changes})
    return SACParams(
        **{
            **base,
            "target_entropy": -1.0 + 0.1 * index,
            "initial_alpha": 0.1 * (index + 1),
            **changes,
        }
    )


def started(env: ToyEnv, members: dict[int, int], **changes: Any) -> tuple[OffPolicy, ToyEnv]:
    """Return a program with member `members[slot]` in each slot; it decides params and seeds."""
    program = program_for(env, **changes)
    for slot, member in members.items():
        program.add_member(
            slot, member_params(env, member), 100 + member, 8, env.state_avg, env.state_std
        )
        env.streams.seed(slot, 200 + member)
    program.begin(env.reset())
    return program, env


def train_with(kind: type[ToyEnv], params: OffPolicyParams) -> dict[str, Tensor]:
    """A member's state after three rollouts with these params."""
    env = kind(1, 4)
    program = program_for(env, updates=4)
    program.add_member(0, params, 1, 6, env.state_avg, env.state_std)
    program.begin(env.reset(5))
    program.train(env, 3)
    return program.get_member(0)
