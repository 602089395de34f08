"""PettingZoo's AEC environments, whose agents act one after the other, as parallel ones.

That is valid where an environment's state changes only once all agents have acted, which PettingZoo's environments say
in `metadata["is_parallelizable"]`.
"""

from __future__ import annotations

from typing import Any

from envs.support.errors import InputError


def is_aec(env: Any) -> bool:
    """Whether it follows PettingZoo's AEC API."""
    return all(hasattr(env, name) for name in ("agent_iter", "last", "possible_agents"))


class ParallelFromAec:
    """An AEC environment with PettingZoo's parallel API. Raises InputError where it does not say that this is valid."""

    def __init__(self, env: Any) -> None:
        metadata = getattr(env, "metadata", None) or {}
        if not metadata.get("is_parallelizable"):
            raise InputError(
                f"{env} is an AEC environment whose agents act one after the other (its metadata has no "
                "is_parallelizable): what an agent sees depends on who acted before it in the same round, and policies "
                "here act at the same time; use its parallel_env, or set is_parallelizable where agents act on the "
                "state of the round's beginning"
            )
        self._env = env
        self.possible_agents = list(env.possible_agents)
        self.agents: list[Any] = []

    def observation_space(self, agent: Any) -> Any:
        """That agent's."""
        return self._env.observation_space(agent)

    def action_space(self, agent: Any) -> Any:
        """That agent's."""
        return self._env.action_space(agent)

    def reset(
        self, seed: int | None = None, options: Any = None
    ) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Begin a game: what every agent sees."""
        self._env.reset(seed=seed, options=options)
        self.agents = list(self._env.agents)
        return {agent: self._env.observe(agent) for agent in self.agents}, {}

    def step(self, actions: dict[Any, Any]) -> tuple[dict[Any, Any], ...]:
        """A round: every agent acts once, in the environment's order. Rewards are summed over the round.

        Raises RuntimeError where the environment asks another agent than the next one in order.
        """
        env, acting = self._env, list(self.agents)
        rewards = dict.fromkeys(acting, 0.0)
        for agent in acting:
            if env.agent_selection != agent:
                raise RuntimeError(
                    f"{env} asks agent {env.agent_selection!r} to act where {agent!r} is next in order: its agents do "
                    "not act once each in every round, so it is not parallelizable"
                )
            env.step(actions[agent])
            for other, reward in env.rewards.items():
                rewards[other] = rewards.get(other, 0.0) + reward
        terminated = {agent: bool(env.terminations.get(agent, True)) for agent in acting}
        truncated = {agent: bool(env.truncations.get(agent, False)) for agent in acting}
        seen = {agent: env.observe(agent) for agent in acting if agent in env.agents}
        while env.agents and (
            env.terminations[env.agent_selection] or env.truncations[env.agent_selection]
        ):
            env.step(None)  # takes leave of an agent that is done
        self.agents = list(env.agents)
        return seen, rewards, terminated, truncated, {agent: {} for agent in acting}

    def close(self) -> None:
        """Close it."""
        self._env.close()
