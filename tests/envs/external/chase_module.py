"""A module like PettingZoo's: two wolves chase a hare on a ring, and their spaces differ."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

CELLS, STEPS = 7, 8


class Chase:
    """A wolf steps left, stays or steps right; a hare stays or steps right, and sees both wolves.

    Where a wolf is on the hare's cell, every wolf gets 1 and the hare -1 (a step costs a wolf 0.1).

    Args:
        numbers: whether actions are numbers, whose sign is the direction.
        masks: whether the hare's observation has a mask: it may not stay where a wolf is.
        leaves: the step after which the first wolf leaves; 0: it stays.
    """

    metadata = {"name": "chase"}  # noqa: RUF012 - PettingZoo's own way

    def __init__(self, numbers: bool = False, masks: bool = False, leaves: int = 0) -> None:
        self.possible_agents = ["wolf_0", "hare_0", "wolf_1"]
        self._numbers, self._masks, self._leaves = numbers, masks, leaves

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        if agent != "hare_0":
            return spaces.Box(-1.0, 1.0, (1,), np.float32)
        both = spaces.Dict(cells=spaces.MultiDiscrete([CELLS, CELLS]), late=spaces.Box(0, 1, (1,)))
        if not self._masks:
            return both
        return spaces.Dict(observation=both, action_mask=spaces.Box(0, 1, (2,), np.int8))

    def action_space(self, agent: str) -> spaces.Space[Any]:
        wolf = agent != "hare_0"
        if self._numbers:
            return spaces.Box(-1.0, 1.0, (1,)) if wolf else spaces.Box(0.0, 4.0, (2,))
        return spaces.Discrete(3, start=-1) if wolf else spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:  # noqa: ARG002
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents, self.time = list(self.possible_agents), 0
        places = self._random.choice(CELLS, 3, replace=False)
        self.cell = dict(zip(self.possible_agents, places.tolist(), strict=True))
        return self._seen(), {agent: {} for agent in self.agents}

    def _seen(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        away = {a: (self.cell[a] - self.cell["hare_0"]) % CELLS for a in self.agents}
        for agent in self.agents:
            if agent != "hare_0":
                near = (away[agent] + CELLS // 2) % CELLS - CELLS // 2
                found[agent] = np.array([near / (CELLS // 2)], np.float32)
                continue
            cells = np.array([away.get("wolf_0", 0), away.get("wolf_1", 0)])
            found[agent] = {"cells": cells, "late": np.array([self.time / STEPS], np.float32)}
            if self._masks:
                legal = np.array([int(cells.all()), 1], np.int8)
                found[agent] = {"observation": found[agent], "action_mask": legal}
        return found

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        assert set(actions) == set(self.agents), actions
        self.moved = {
            agent: self.action_space(agent).contains(own) for agent, own in actions.items()
        }
        assert all(self.moved.values()), actions
        for agent, action in actions.items():
            step = int(np.sign(np.round(np.reshape(action, -1)[0] - 2 * (agent == "hare_0"))))
            step = step if self._numbers else int(action)
            self.cell[agent] = (self.cell[agent] + step) % CELLS
        self.time += 1
        wolves = [agent for agent in self.agents if agent != "hare_0"]
        caught = any(self.cell[agent] == self.cell["hare_0"] for agent in wolves)
        rewards = {a: (-caught if a == "hare_0" else caught - 0.1) + 0.0 for a in self.agents}
        late = dict.fromkeys(self.agents, self.time == STEPS)
        over = {agent: agent == "wolf_0" and self.time == self._leaves for agent in self.agents}
        seen = self._seen()
        self.agents = [agent for agent in self.agents if not (late[agent] or over[agent])]
        return seen, rewards, over, late, {agent: {} for agent in seen}

    def close(self) -> None:
        pass


parallel_env = Chase
