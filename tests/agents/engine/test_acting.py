"""Frozen actors of several programs in one call."""

from __future__ import annotations

import pytest
import torch

from agents.engine.acting import Actors
from tests.agents.helpers import start
from tests.agents.toy_env import ChoiceEnv, ChoicesEnv, ToyEnv


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
