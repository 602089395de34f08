"""A module like those of PettingZoo's parallel environments: two agents that bid against each other."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces


class Bids:
    """In each round both bid for a prize at once; the higher bid takes it from the other agent.

    Args:
        rounds: rounds of a game.
        masks: where the masks are: "observation", "info" or "" (a bid may then be made twice).
        numbers: whether bids are numbers from 0 to 3 instead of choices.
        rewards: "zero-sum", "mixed" (the loser keeps its part) or "shared" (both get the prize).
        leaves: the round after which the second agent leaves; 0: it stays.
        agents: number of agents.
    """

    metadata = {"name": "bids"}  # noqa: RUF012 - PettingZoo's own way

    def __init__(
        self,
        rounds: int = 3,
        masks: str = "observation",
        numbers: bool = False,
        rewards: str = "zero-sum",
        leaves: int = 0,
        agents: int = 2,
    ) -> None:
        self.possible_agents = [f"player_{index}" for index in range(agents)]
        self._rounds, self._masks, self._numbers = rounds, "" if numbers else masks, numbers
        self._rewards, self._leaves = rewards, leaves

    def observation_space(self, agent: str) -> spaces.Space[Any]:  # noqa: ARG002
        seen = spaces.Box(0.0, 9.0, (6,), np.float32)
        if self._masks != "observation":
            return seen
        return spaces.Dict({"observation": seen, "action_mask": spaces.Box(0, 1, (4,), np.int8)})

    def action_space(self, agent: str) -> spaces.Space[Any]:  # noqa: ARG002
        return spaces.Box(0.0, 3.0, (1,), np.float32) if self._numbers else spaces.Discrete(4)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:  # noqa: ARG002
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents, self.round = list(self.possible_agents), 0
        self._left = {agent: np.ones(4, np.int8) for agent in self.agents}
        self._prize = int(self._random.integers(1, 6))
        return self._seen(), self._infos()

    def _seen(self) -> dict[str, Any]:
        found = {}
        for agent in self.agents:
            numbers = np.array([self.round, self._prize, *self._left[agent]], np.float32)
            masked = {"observation": numbers, "action_mask": self._left[agent].copy()}
            found[agent] = masked if self._masks == "observation" else numbers
        return found

    def _infos(self) -> dict[str, Any]:
        inside = self._masks == "info"
        return {a: {"action_mask": self._left[a].copy()} if inside else {} for a in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        assert set(actions) == set(self.agents), actions
        bids = {agent: float(np.reshape(actions[agent], -1)[0]) for agent in self.agents}
        for agent, bid in bids.items():
            if self._masks:
                assert self._left[agent][int(bid)], f"{agent} bids {bid} again"
                self._left[agent][int(bid)] = 0
        first, second = (bids.get(agent, 0.0) for agent in self.possible_agents[:2])
        won = float(np.sign(first - second)) * self._prize
        rewards = dict(zip(self.possible_agents, (won, -won), strict=False))
        if self._rewards == "mixed":
            rewards = {agent: max(reward, 0.5) for agent, reward in rewards.items()}
        elif self._rewards == "shared":
            rewards = dict.fromkeys(self.possible_agents, abs(won))
        self.round += 1
        self._prize = int(self._random.integers(1, 6))
        over = self.round == self._rounds
        ended = {a: over or (a != "player_0" and self.round == self._leaves) for a in self.agents}
        rewards = {agent: rewards.get(agent, 0.0) for agent in self.agents}
        seen, infos = self._seen(), self._infos()
        self.agents = [agent for agent in self.agents if not ended[agent]]
        return seen, rewards, ended, dict.fromkeys(ended, False), infos

    def close(self) -> None:
        pass


parallel_env = Bids
