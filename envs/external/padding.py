"""Agents with different spaces, padded to the same ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sweepd.envs.external.actions import ActionLayout
from sweepd.envs.external.observations import MASK, OBSERVATION
from sweepd.envs.support.errors import InputError

Space = spaces.Space[Any]


class PaddedAgents:
    """A PettingZoo parallel environment whose agents have spaces of the same size.

    Observations that differ are flattened (`gymnasium.spaces.flatten`) and end in zeros. An agent
    with fewer options of a discrete action has a mask, without the others; of an action of numbers,
    those that an agent does not have are ignored.
    """

    def __init__(self, env: Any) -> None:
        """Raises InputError if the spaces cannot be padded."""
        self._env = env
        agents = list(env.possible_agents)
        self._seen = {agent: _without_mask(env.observation_space(agent)) for agent in agents}
        self._layouts = {agent: ActionLayout(env.action_space(agent)) for agent in agents}
        own_mask = any(_has_mask(env.observation_space(agent)) for agent in agents)
        self._same_actions = _same([env.action_space(agent) for agent in agents])
        self._flat = not _same(list(self._seen.values()))
        self._action, self._options = self._common_action(list(self._layouts.values()))
        observation = self._common_observation()
        self._masked = self._options > 0 and (own_mask or not self._same_actions)
        if self._masked:
            flags = spaces.Box(0, 1, (self._options,), np.int8)
            observation = spaces.Dict({OBSERVATION: observation, MASK: flags})
        self._observation = observation

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_env":  # while it is copied, there is none yet
            raise AttributeError(name)
        return getattr(self._env, name)

    def observation_space(self, agent: Any) -> Space:  # noqa: ARG002
        """Return the common space."""
        return self._observation

    def action_space(self, agent: Any) -> Space:  # noqa: ARG002
        """Return the common space."""
        return self._action

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[Any, Any], Any]:
        """Begin an episode."""
        observations, infos = self._env.reset(seed=seed, options=options)
        return self._convert(observations), infos

    def step(self, actions: Mapping[Any, Any]) -> tuple[dict[Any, Any], Any, Any, Any, Any]:
        """Let all agents act."""
        given = {agent: self._own_action(agent, action) for agent, action in actions.items()}
        observations, *rest = self._env.step(given)
        rewards, terminated, truncated, infos = rest
        return self._convert(observations), rewards, terminated, truncated, infos

    def _common_action(self, layouts: list[ActionLayout]) -> tuple[Space, int]:
        """Return the common action space, and the number of its options; 0 of numbers."""
        first = layouts[0]
        if self._same_actions:
            return first.space, sum(first.choices)
        if all(layout.single for layout in layouts):
            most = max(layout.choices[0] for layout in layouts)
            return spaces.Discrete(most), most
        if any(layout.discrete for layout in layouts):
            raise InputError(
                "its agents have different actions, of which only single choices (Discrete) and "
                "numbers (Box) can be padded: "
                + ", ".join(dict.fromkeys(str(layout.space) for layout in layouts))
            )
        width = max(layout.width for layout in layouts)
        return spaces.Box(-1.0, 1.0, (width,), np.float32), 0

    def _common_observation(self) -> Space:
        seen = list(self._seen.values())
        if not self._flat:
            return seen[0]
        boxes = []
        for space in seen:
            try:
                box: Any = spaces.flatten_space(space)
            except NotImplementedError:
                box = None
            if not isinstance(box, spaces.Box):
                raise InputError(
                    f"its agents have different observations, and {space} has no fixed number of "
                    "columns"
                )
            boxes.append(box)
        width = max(box.shape[0] for box in boxes)
        low, high = np.zeros(width), np.zeros(width)
        for box in boxes:
            columns = box.shape[0]
            low[:columns] = np.minimum(low[:columns], box.low)
            high[:columns] = np.maximum(high[:columns], box.high)
        return spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)

    def _own_action(self, agent: Any, action: Any) -> Any:
        """Return an action of the common space as the agent's."""
        if self._same_actions:
            return action
        layout = self._layouts[agent]
        row = np.reshape(action, (1, -1))[:, : layout.width].astype(layout.dtype)
        return layout.decode(row)[0]

    def _convert(self, observations: Mapping[Any, Any]) -> dict[Any, Any]:
        return {agent: self._converted(agent, seen) for agent, seen in observations.items()}

    def _converted(self, agent: Any, seen: Any) -> Any:
        own = self._env.observation_space(agent)
        alone = seen
        if _has_mask(own):
            rest = {name: part for name, part in seen.items() if name != MASK}
            alone = rest if len(rest) > 1 else next(iter(rest.values()))
        if self._flat:
            numbers = spaces.flatten(self._seen[agent], alone)
            alone = np.zeros(_part(self._observation).shape, np.float32)
            alone[: len(numbers)] = numbers
        if not self._masked:
            return alone
        flags: NDArray[np.int8] = np.zeros(self._options, np.int8)
        flags[: sum(self._layouts[agent].choices)] = seen[MASK] if _has_mask(own) else 1
        return {OBSERVATION: alone, MASK: flags}


def padded(env: Any) -> Any:
    """Return a parallel environment whose agents have the same spaces; itself if they have.

    Raises:
        InputError: the spaces cannot be padded.
    """
    agents = list(env.possible_agents)
    same = _same([env.observation_space(agent) for agent in agents]) and _same(
        [env.action_space(agent) for agent in agents]
    )
    return env if same else PaddedAgents(env)


def _same(every: Sequence[Space]) -> bool:
    return all(space == every[0] for space in every)


def _has_mask(space: Space) -> bool:
    return isinstance(space, spaces.Dict) and MASK in space.spaces


def _without_mask(space: Space) -> Space:
    if not isinstance(space, spaces.Dict) or MASK not in space.spaces:
        return space
    rest = {name: part for name, part in space.items() if name != MASK}
    return spaces.Dict(rest) if len(rest) > 1 else next(iter(rest.values()))


def _part(space: Space) -> Any:
    return space[OBSERVATION] if isinstance(space, spaces.Dict) else space
