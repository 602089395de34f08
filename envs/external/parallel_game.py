"""A PettingZoo parallel environment: a row per possible agent, those who are not there masked."""

from __future__ import annotations

from typing import Any

import numpy as np

from envs.external.actions import ActionLayout
from envs.external.buffers import Buffers
from envs.external.observations import ObservationLayout


class ParallelGame:
    """See `Game`. An agent who has left shows zeros, and is absent until the game's next episode; that begins once all
    have left. The rows of agents who were not there at all, or left without an end, end with the game.
    """

    def __init__(
        self, env: Any, buffers: Buffers, observations: ObservationLayout, actions: ActionLayout
    ) -> None:
        self._env, self._buffers, self._actions = env, buffers, actions
        self._seen = observations.writer(buffers.obs)
        self._rows = {agent: row for row, agent in enumerate(env.possible_agents)}
        self._ended = np.zeros(
            len(self._rows), dtype=bool
        )  # rows that have had their end in this game

    def reset(self, seed: int | None) -> None:
        observations, _ = self._env.reset(seed=seed)
        self._ended[:] = False
        self._show(observations)

    def step(self) -> None:
        buffers, rows = self._buffers, self._rows
        buffers.reward[:], buffers.terminated[:], buffers.truncated[:] = 0.0, False, False
        decoded = self._actions.decode(buffers.action)
        acting = list(self._env.agents)
        observations, rewards, terminated, truncated, _ = self._env.step(
            {agent: decoded[rows[agent]] for agent in acting}
        )
        self._show(observations)
        for (
            agent,
            reward,
        ) in rewards.items():  # also of agents that did not act: their last action earned it
            buffers.reward[rows[agent]] = reward
        for agent in acting:
            row = rows[agent]
            buffers.terminated[row], buffers.truncated[row] = terminated[agent], truncated[agent]
            if terminated[agent] or truncated[agent]:
                buffers.final[row] = buffers.obs[row]
                buffers.obs[row : row + 1].view("u1")[:] = 0
        there = {rows[agent] for agent in self._env.agents}
        for row in range(len(rows)):
            buffers.present[row] = row in there
        self._ended |= buffers.terminated | buffers.truncated
        if not there:
            buffers.terminated[~self._ended] = True
            self.reset(None)

    def close(self) -> None:
        self._env.close()

    def _show(self, observations: dict[Any, Any]) -> None:
        """What those see who see anything."""
        buffers = self._buffers
        buffers.obs.view("u1")[:] = 0
        buffers.present[:] = False
        for agent, observation in observations.items():
            row = self._rows[agent]
            self._seen.one(row, observation)
            buffers.present[row] = True
