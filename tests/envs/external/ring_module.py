"""A module like PettingZoo's games for several in turns: an AEC environment of three agents."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces


class Ring:
    """Agents in turn take 0 to 2 from a pot; who makes it less than 0 is out and pays the others.

    Args:
        turns: turns of an agent, after which the game is cut off for those who are left.
        agents: number of agents.
    """

    metadata = {"is_parallelizable": False}  # noqa: RUF012 - PettingZoo's own way

    def __init__(self, turns: int = 4, agents: int = 3) -> None:
        self.possible_agents = [f"player_{index}" for index in range(agents)]
        self._turns = turns

    def observation_space(self, agent: str) -> spaces.Space[Any]:  # noqa: ARG002
        seen = spaces.Box(-9.0, 99.0, (3,), np.float32)
        return spaces.Dict({"observation": seen, "action_mask": spaces.Box(0, 1, (3,), np.int8)})

    def action_space(self, agent: str) -> spaces.Space[Any]:  # noqa: ARG002
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> None:  # noqa: ARG002
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents, self._live = list(self.possible_agents), list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self._pot, self._made = int(self._random.integers(2, 8)), 0
        self.agent_selection = self.agents[0]

    def observe(self, agent: str) -> Any:
        place = self.possible_agents.index(agent)
        legal = np.array([1, 1, int((self._pot + place) % 2)], np.int8)
        numbers = np.array([self._pot, place, len(self._live)], np.float32)
        return {"observation": numbers, "action_mask": legal}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:  # a dead step removes the agent
            assert action is None
            self.agents.remove(agent)
            for kept in (self.rewards, self._cumulative, self.terminations, self.truncations):
                del kept[agent]
            self.rewards = dict.fromkeys(self.agents, 0.0)
            if self.agents:
                self.agent_selection = self._next
                self._dead_first()
            return
        assert self.observe(agent)["action_mask"][action], action
        self._cumulative[agent] = 0.0
        self._pot -= int(action)
        self._made += 1
        self.rewards = {own: float(action) if own == agent else 0.0 for own in self.agents}
        after = self._live[(self._live.index(agent) + 1) % len(self._live)]
        if self._pot < 0:
            self._pot = int(self._random.integers(2, 8))
            self._live.remove(agent)
            self.terminations[agent] = True
            self.rewards = {own: -4.0 if own == agent else 1.5 for own in self.agents}
        if len(self._live) == 1:
            self.terminations.update(dict.fromkeys(self._live, True))
        elif self._made >= self._turns * len(self.possible_agents):
            self.truncations.update(dict.fromkeys(self._live, True))
        for own, reward in self.rewards.items():
            self._cumulative[own] += reward
        self._next = self.agent_selection = after
        self._dead_first()

    def _dead_first(self) -> None:
        over = [own for own in self.agents if self.terminations[own] or self.truncations[own]]
        if over:
            self.agent_selection = over[0]

    def last(self, observe: bool = True) -> tuple[Any, ...]:
        own = self.agent_selection
        seen = self.observe(own) if observe else None
        ends = self.terminations[own], self.truncations[own]
        return seen, self._cumulative[own], *ends, self.infos[own]

    def agent_iter(self) -> Any:
        while self.agents:
            yield self.agent_selection

    def close(self) -> None:
        pass


env = Ring
