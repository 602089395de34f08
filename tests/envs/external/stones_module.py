"""A module like those of PettingZoo's board games: an AEC environment of two agents in turns."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces


class Stones:
    """One pile; an agent takes one to three stones, and who takes the last one wins.

    Args:
        most: largest pile; the pile of an episode is drawn from 4 on.
        masks: where the masks are: "observation" or "info".
        fails: a number of stones at which `step` raises.
        agents: number of agents.
    """

    metadata = {"is_parallelizable": False}  # noqa: RUF012 - PettingZoo's own way

    def __init__(
        self, most: int = 9, masks: str = "observation", fails: int = -1, agents: int = 2
    ) -> None:
        self.possible_agents = [f"player_{index}" for index in range(agents)]
        self._most, self._masks, self._fails = most, masks, fails
        self.closed = False

    def observation_space(self, agent: str) -> spaces.Space[Any]:  # noqa: ARG002
        pile = spaces.Box(0.0, 1.0, (self._most + 1,), np.float32)
        if self._masks == "info":
            return pile
        return spaces.Dict({"observation": pile, "action_mask": spaces.Box(0, 1, (3,), np.int8)})

    def action_space(self, agent: str) -> spaces.Space[Any]:  # noqa: ARG002
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> None:  # noqa: ARG002
        self.pile = int(np.random.default_rng(seed).integers(4, self._most + 1))
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: self._info() for agent in self.agents}
        self.agent_selection = self.agents[0]

    def _mask(self, agent: str) -> np.ndarray:
        legal = np.arange(1, 4) <= self.pile
        return (legal & (agent == self.agent_selection)).astype(np.int8)

    def _info(self) -> dict[str, Any]:
        legal = (np.arange(1, 4) <= self.pile).astype(np.int8)
        return {"action_mask": legal} if self._masks == "info" else {}

    def observe(self, agent: str) -> Any:
        pile = np.eye(self._most + 1, dtype=np.float32)[self.pile]
        return (
            pile
            if self._masks == "info"
            else {"observation": pile, "action_mask": self._mask(agent)}
        )

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        taken = int(action) + 1
        if taken > self.pile:
            raise ValueError(f"there are {self.pile} stones, and {taken} were taken")
        self.pile -= taken
        if self.pile == self._fails:
            raise RuntimeError("a stone is lost")
        after = self.possible_agents.index(agent) + 1
        other = self.possible_agents[after % len(self.possible_agents)]
        if self.pile == 0:
            self.rewards = {one: 1.0 if one == agent else -1.0 for one in self.agents}
            self.terminations = dict.fromkeys(self.agents, True)
        self.agent_selection = other
        self.infos = {one: self._info() for one in self.agents}

    def last(self, observe: bool = True) -> tuple[Any, ...]:
        agent = self.agent_selection
        seen = self.observe(agent) if observe else None
        return seen, self.rewards[agent], self.terminations[agent], False, self.infos[agent]

    def agent_iter(self) -> Any:
        while self.agents:
            yield self.agent_selection

    def close(self) -> None:
        self.closed = True


env = Stones
