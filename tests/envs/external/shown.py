"""Environments of any observation space, which show samples of it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

MISSIONS = ("go to the red ball", "pick up the key", "Go to the KEY, please")


class Shown(gymnasium.Env[Any, Any]):
    """An environment of any observation space, which shows samples of it."""

    def __init__(self, space: spaces.Space[Any], texts: tuple[str, ...] = ()) -> None:
        self.observation_space, self.action_space = space, spaces.Discrete(2)
        self._texts = texts

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        if seed is not None:
            self.observation_space.seed(seed)
        self._count = 0
        return self._show(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._count += 1
        return self._show(), float(action), self._count > 3, False, {}

    def _show(self) -> Any:
        seen = self.observation_space.sample()
        if self._texts and isinstance(seen, dict) and "mission" in seen:
            seen["mission"] = self._texts[int(self.np_random.integers(len(self._texts)))]
        return seen


class Mission(spaces.Space[str]):
    """Texts of an environment's own space, as MiniGrid's missions."""

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        del mask, probability
        return MISSIONS[0]

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)


GRID = spaces.Dict(
    {
        "grid": spaces.Box(0, 255, (7, 7, 3), np.uint8),
        "legs": spaces.Discrete(4),
        "mission": Mission((), str),  # type: ignore[arg-type]
    }
)


def mission() -> Shown:
    """Return an environment that shows a grid and a text, as MiniGrid does."""
    return Shown(GRID, MISSIONS)


def graph() -> Shown:
    """Return an environment that shows a graph."""
    return Shown(spaces.Graph(spaces.Box(0, 1, (1,)), None))
