"""What a program tells the environment before every rollout:
`sweepd.envs.core.policies.Policies`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.engine.program import Program
from sweepd.envs.core.policies import Policies
from tests.agents.helpers import start
from tests.agents.off_policy_helpers import started
from tests.agents.toy_env import ChoiceEnv, ChoicesEnv, ToyEnv

MEMBERS = {0: 2, 2: 1}  # slot 1 is empty


def program(kind: str, env: ToyEnv) -> Program:
    if kind == "ppo":
        return start(env, MEMBERS)
    if kind == "recurrent ppo":
        return start(env, MEMBERS, recurrent="gru", bptt=4)
    if kind == "exported ppo":  # without an `acting_weights` of its own
        made = start(env, MEMBERS)
        made.acting_weights = lambda: Program.acting_weights(made)  # type: ignore[method-assign]
        return made
    return started(env, MEMBERS)[0]


def acting_actor(own: Any, slot: int) -> dict[str, Tensor]:
    """Return a member's actor for rollouts: of PPO the present weights, else the exported ones."""
    if type(own) is PPO and "acting_weights" not in vars(own):
        return own.population.actor.member(slot)
    return dict(own.export_member(slot)[0])


@pytest.mark.parametrize(
    ("kind", "env_type"),
    [
        ("ppo", ToyEnv),
        ("ppo", ChoicesEnv),
        ("recurrent ppo", ChoiceEnv),
        ("exported ppo", ToyEnv),
        ("sac", ToyEnv),
        ("d3qn", ChoiceEnv),
    ],
)
def test_the_environment_is_told_before_every_rollout(
    kind: str, env_type: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = env_type(3, 4)
    own = program(kind, env)
    seen: list[tuple[list[Any], dict[str, Tensor], dict[int, dict[str, Tensor]]]] = []
    steps = 0

    def begin_rollout(policies: Policies) -> None:
        # Once a horizon, before its first step.
        assert steps == len(seen) * own.shape.horizon
        weights = {name: part.clone() for name, part in policies.acting_weights().items()}
        progress = [policies.progress(slot) for slot in range(3)]
        seen.append((progress, weights, {slot: acting_actor(own, slot) for slot in MEMBERS}))

    def step(*args: Any, **kwargs: Any) -> Any:
        nonlocal steps
        steps += 1
        return plain_step(*args, **kwargs)

    plain_step = env.step
    monkeypatch.setattr(env, "begin_rollout", begin_rollout)
    monkeypatch.setattr(env, "step", step)
    own.train(env, 3)
    for index, (progress, weights, exported) in enumerate(seen):
        assert progress == [(index, 8), None, (index, 8)]
        for slot, actor in exported.items():
            assert actor.keys() == weights.keys()
            for name, part in actor.items():
                assert weights[name].shape == (3, *part.shape)
                assert torch.equal(weights[name][slot], part), name
    assert len(seen) == 3
    changed = [torch.equal(seen[0][1][name], seen[2][1][name]) for name in seen[0][1]]
    assert not all(changed)
