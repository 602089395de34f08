"""Our environments as Stable-Baselines3 `VecEnv`s, for comparisons."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.gymnasium_view import row_spaces

try:
    from stable_baselines3.common.vec_env.base_vec_env import VecEnv as SB3VecEnv
except ImportError:
    sys.exit(
        "Stable-Baselines3 is not installed: pip install stable-baselines3, or leave it out with "
        "--peers."
    )


class SB3Env(SB3VecEnv):
    """`env` with NumPy arrays and normalised observations."""

    def __init__(self, env: VecEnv, state_avg: Tensor, state_std: Tensor) -> None:
        self.env, self.avg, self.scale = env, state_avg, 1.0 / state_std
        super().__init__(env.num_envs, *row_spaces(env))
        self.actions = np.zeros(0)

    def _array(self, obs: Tensor) -> np.ndarray:
        return ((obs - self.avg) * self.scale).numpy()

    def reset(self) -> np.ndarray:
        return self._array(self.env.reset())

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        made = self.env.step(torch.from_numpy(self.actions))
        truncated = made.truncated.numpy()
        done = made.terminated.numpy() | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if done.any():
            last = self._array(self.env.final_obs())
            for row in np.flatnonzero(done):
                infos[row] = {
                    "terminal_observation": last[row],
                    "TimeLimit.truncated": bool(truncated[row]),
                }
        return self._array(made.obs), made.reward.numpy().copy(), done, infos

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:  # noqa: ARG002
        return [getattr(self.env, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(
        self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any
    ) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:  # noqa: ARG002
        return [False] * self.num_envs

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        return [seed] * self.num_envs
