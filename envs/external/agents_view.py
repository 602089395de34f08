"""PettingZoo's APIs: environments with converted observations, and those of agents in a Tuple."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import gymnasium
from gymnasium import spaces

from sweepd.envs.support.errors import InputError


class Converted(Protocol):
    """The observations of one agent: their new space, and what converts one."""

    @property
    def space(self) -> Any: ...
    @property
    def apply(self) -> Any: ...


def is_pettingzoo(env: Any) -> bool:
    """Return whether an environment follows the parallel or the AEC API."""
    return hasattr(env, "possible_agents")


def agents_view(env: Any, converted: Mapping[Any, Converted]) -> Any:
    """Return the environment with every agent's observations converted."""
    return _AecView(env, converted) if hasattr(env, "last") else _ParallelView(env, converted)


class _View:
    """What both APIs share. Everything else is that of the environment."""

    def __init__(self, env: Any, converted: Mapping[Any, Converted]) -> None:
        self._env, self._converted = env, converted

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_env":  # while it is copied, there is none yet
            raise AttributeError(name)
        return getattr(self._env, name)

    def observation_space(self, agent: Any) -> Any:
        """Return the agent's observation space."""
        return self._converted[agent].space

    def _convert(self, observations: Mapping[Any, Any]) -> dict[Any, Any]:
        return {agent: self._converted[agent].apply(seen) for agent, seen in observations.items()}


class _ParallelView(_View):
    """The parallel API."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[Any, Any], Any]:
        """Begin an episode."""
        observations, infos = self._env.reset(seed=seed, options=options)
        return self._convert(observations), infos

    def step(self, actions: dict[Any, Any]) -> tuple[dict[Any, Any], Any, Any, Any, Any]:
        """Let all agents act."""
        observations, *rest = self._env.step(actions)
        rewards, terminated, truncated, infos = rest
        return self._convert(observations), rewards, terminated, truncated, infos


class _AecView(_View):
    """The AEC API."""

    def observe(self, agent: Any) -> Any:
        """Return what an agent sees."""
        return self._converted[agent].apply(self._env.observe(agent))

    def last(self, observe: bool = True) -> tuple[Any, Any, Any, Any, Any]:
        """Return what the agent to act sees, and its results."""
        seen, *rest = self._env.last(observe)
        agent = self._env.agent_selection
        reward, terminated, truncated, info = rest
        converted = self._converted[agent].apply(seen) if observe else seen
        return converted, reward, terminated, truncated, info


def agents_of(space: Any) -> int:
    """Return how many agents a Tuple space or a list of spaces is for; 0 for another space."""
    return len(space) if isinstance(space, spaces.Tuple | list | tuple) else 0


class ParallelFromTuples:
    """A `gymnasium.Env` of several agents, whose spaces and rewards are one per agent, in parallel.

    Level-based foraging and the robotic warehouse are such environments.
    """

    metadata: Mapping[str, Any] = {"render_modes": ()}

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        """Raises InputError if the spaces of observations and actions are not one per agent."""
        if not isinstance(env, gymnasium.Env):
            raise InputError(
                f"the wrapper agents is for a gymnasium.Env, and got a {type(env).__name__}"
            )
        observations: Any = env.observation_space
        actions: Any = env.action_space
        if not agents_of(actions) or agents_of(observations) != agents_of(actions):
            raise InputError(
                "the wrapper agents is for observation and action spaces that are a Tuple with one "
                f"space for each agent; they are {observations} and {actions}"
            )
        self._env = env
        self.possible_agents = [f"agent_{index}" for index in range(len(actions))]
        self.agents: list[str] = []
        self._observations = dict(zip(self.possible_agents, observations, strict=True))
        self._actions = dict(zip(self.possible_agents, actions, strict=True))

    def observation_space(self, agent: str) -> Any:
        """Return the agent's observation space."""
        return self._observations[agent]

    def action_space(self, agent: str) -> Any:
        """Return the agent's action space."""
        return self._actions[agent]

    def reset(
        self, seed: int | None = None, options: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode."""
        observations, _ = self._env.reset(seed=seed, options=options)
        self.agents = list(self.possible_agents)
        return self._named(observations), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Let all agents act; the episode ends for all of them together."""
        acting = list(self.agents)
        given = tuple(actions[agent] for agent in self.possible_agents)
        observations, rewards, terminated, truncated, _ = self._env.step(given)
        over, late = _all(terminated), _all(truncated)
        if over or late:
            self.agents = []
        return (
            self._named(observations),
            self._named(rewards),
            dict.fromkeys(acting, over),
            dict.fromkeys(acting, late),
            {agent: {} for agent in acting},
        )

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _named(self, values: Any) -> dict[str, Any]:
        return dict(zip(self.possible_agents, values, strict=True))


def _all(flags: Any) -> bool:
    """Return one flag, or whether those of all agents are set."""
    return all(flags) if hasattr(flags, "__len__") else bool(flags)
