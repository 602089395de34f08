"""An environment with steps of uneven duration, for benchmarks."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Uneven(gymnasium.Env[np.ndarray, int]):
    """Some steps, at random, are slow; the others are fast.

    Args:
        quick: seconds of a fast step.
        slow: seconds of a slow step.
        burn: whether steps keep the processor busy (like a simulation) or sleep (like a network).
        share: of the steps that are slow.
        lasting: whether it is environments instead whose share is slow, from their first reset on.
    """

    observation_space = Box(-1.0, 1.0, (4,), np.float32)
    action_space = Discrete(2)

    def __init__(
        self,
        quick: float = 0.0002,
        slow: float = 0.01,
        burn: bool = False,
        share: float = 0.05,
        lasting: bool = False,
    ) -> None:
        self._quick, self._slow, self._burn = quick, slow, burn
        self._share, self._lasting = share, lasting
        self._is_slow: bool | None = None  # where that lasts

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed, options=options)
        if self._lasting and self._is_slow is None:
            self._is_slow = bool(self.np_random.random() < self._share)
        return np.zeros(4, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:  # noqa: ARG002
        slow = self.np_random.random() < self._share if self._is_slow is None else self._is_slow
        takes = self._slow if slow else self._quick
        if self._burn:
            until = time.perf_counter() + takes
            while time.perf_counter() < until:
                pass
        else:
            time.sleep(takes)
        return np.zeros(4, np.float32), 0.0, False, False, {}
