"""Gymnasium environments that say in `info["action_mask"]` which of their options are legal, as Taxi does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium import spaces

from envs.external.actions import ActionLayout
from envs.external.observations import MASK

OBSERVATION = "observation"


class InfoMask(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The mask beside the observation, in a Dict: where environments of all kinds are asked for it."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        flags = spaces.MultiBinary(sum(ActionLayout(env.action_space).choices))
        self.observation_space = spaces.Dict({OBSERVATION: env.observation_space, MASK: flags})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return {OBSERVATION: observation, MASK: info[MASK]}, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return {OBSERVATION: observation, MASK: info[MASK]}, reward, terminated, truncated, info


def tells(env: gymnasium.Env[Any, Any], info: Mapping[str, Any]) -> bool:
    """Whether the environment is one of these. info: of a reset."""
    return isinstance(env.action_space, spaces.Discrete | spaces.MultiDiscrete) and MASK in info
