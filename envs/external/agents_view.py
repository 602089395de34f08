"""PettingZoo's environments with converted observations, in both of its APIs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


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
