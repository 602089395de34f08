"""Frozen actors of several programs in one call."""

from __future__ import annotations

import pytest
import torch

from sweepd.agents.engine.acting import Actors
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import actor_of
from tests.agents.helpers import start
from tests.agents.toy_env import ChoiceEnv, ChoicesEnv, MaskedEnv, ToyEnv


@pytest.mark.parametrize("kind", [ToyEnv, ChoiceEnv, ChoicesEnv])
@pytest.mark.parametrize("width", [16, 128])
def test_joined_programs_act_like_each_one_alone(kind: type[ToyEnv], width: int) -> None:
    env = kind(3, 4, privileged=True)
    parts = [
        start(env, {slot: first + slot for slot in range(3)}, net_width=width).act_fn()
        for first in (0, 3)
    ]
    together = Actors.together(parts)
    assert together.shape.slots == 6
    for rows in (1, 5):
        obs = torch.randn(6 * rows, env.state_dim)
        apart = torch.cat([part(half) for part, half in zip(parts, obs.chunk(2), strict=True)])
        assert torch.equal(together(obs), apart)


@pytest.mark.parametrize("kind", [ToyEnv, ChoiceEnv, ChoicesEnv, MaskedEnv])
def test_drawn_actions_are_those_of_the_frozen_policies(kind: type[ToyEnv]) -> None:
    env = kind(3, 50)
    ppo = start(env, {slot: slot for slot in range(3)})
    act = ppo.act_fn()
    obs = ppo.obs.clone()
    uniforms = torch.rand(len(obs), act.uniforms, dtype=torch.float64)
    legal = env.action_mask if env.spec.masked else None
    drawn = act(obs, legal, uniforms)
    assert not torch.equal(drawn, act(obs, legal))
    for slot in range(3):
        rows = slice(slot * 50, (slot + 1) * 50)

        def own(chosen: torch.Tensor, rows: slice = rows) -> torch.Tensor:
            every = chosen.new_zeros(len(obs), chosen.shape[1])
            every[rows] = chosen
            return env.action_mask(every)[rows]

        policy = FrozenPolicy([actor_of(ppo, slot)])
        assert policy.uniforms == act.uniforms
        frozen = policy.sample_batch(obs[rows], uniforms[rows], own if env.spec.masked else None)
        torch.testing.assert_close(drawn[rows].double(), frozen.double(), atol=1e-5, rtol=0.0)


def test_the_largest_and_least_random_numbers_give_actions() -> None:
    for kind in (ToyEnv, ChoiceEnv, ChoicesEnv):
        env = kind(2, 4)
        ppo = start(env, {0: 0, 1: 1})
        act = ppo.act_fn()
        below = torch.tensor([[0.0], [1.0 - 2.0**-53]] * 4, dtype=torch.float64)
        drawn = act(ppo.obs, None, below.expand(8, act.uniforms))
        if not env.if_discrete:
            assert bool(drawn.isfinite().all())
            continue
        sizes = torch.tensor(env.spec.choices)
        assert (drawn.view(4, 2, -1) == torch.stack((sizes * 0, sizes - 1))).all()
