"""Adapters: environments of several APIs, as the shards of `sweepd.envs.external.shards` use them.

* Wrappers: `InfoMask` (Gymnasium with masks in `info`); of PettingZoo's AEC API, `ParallelFromAec`
  (a round of all agents is a step) and `ParallelFromTurns` (a turn is a step).
* Row adapters, which read and write rows of the shared buffers: `ParallelAdapter` (PettingZoo's
  parallel API), `VectorAdapter` (`gymnasium.vector`), `BufferedAdapter` (PufferLib-style).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from sweepd.envs.external.actions import ActionLayout
from sweepd.envs.external.observations import MASK, OBSERVATION, ObservationLayout
from sweepd.envs.external.shared_memory import Buffers
from sweepd.envs.support.errors import InputError


class InfoMask(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Moves `info["action_mask"]` into the observation, as a Dict of observation and mask.

    Taxi is such an environment: it says in `info` which actions have an effect.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        flags = spaces.MultiBinary(sum(ActionLayout(env.action_space).choices))
        self.observation_space = spaces.Dict({OBSERVATION: env.observation_space, MASK: flags})

    @staticmethod
    def applies(env: gymnasium.Env[Any, Any], info: Mapping[str, Any]) -> bool:
        """Return whether an environment has such masks. info: that of a reset."""
        return isinstance(env.action_space, spaces.Discrete | spaces.MultiDiscrete) and MASK in info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return {OBSERVATION: observation, MASK: info[MASK]}, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return {OBSERVATION: observation, MASK: info[MASK]}, reward, terminated, truncated, info


class _OfAec:
    """A PettingZoo AEC environment, whose agents act in turn, with the parallel API."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.possible_agents = list(env.possible_agents)
        self.agents: list[Any] = []

    def observation_space(self, agent: Any) -> Any:
        """Return the agent's observation space."""
        return self._env.observation_space(agent)

    def action_space(self, agent: Any) -> Any:
        """Return the agent's action space."""
        return self._env.action_space(agent)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _remove_done(self) -> None:
        """Remove the agents whose turn it is and that are done."""
        env = self._env
        while env.agents and (
            env.terminations[env.agent_selection] or env.truncations[env.agent_selection]
        ):
            env.step(None)  # the API's way to do so


class ParallelFromAec(_OfAec):
    """A PettingZoo AEC environment, whose agents act in turn, with the parallel API.

    The conversion is valid if the state changes only after all agents have acted, which
    PettingZoo's environments declare by `metadata["is_parallelizable"]`.
    """

    @staticmethod
    def applies(env: Any) -> bool:
        """Return whether an environment follows the AEC API."""
        return all(hasattr(env, name) for name in ("agent_iter", "last", "possible_agents"))

    @staticmethod
    def converts(env: Any) -> bool:
        """Return whether an AEC environment declares that the conversion is valid."""
        return bool((getattr(env, "metadata", None) or {}).get("is_parallelizable"))

    def reset(
        self, seed: int | None = None, options: Any = None
    ) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Begin an episode; return every agent's observation, and no infos."""
        self._env.reset(seed=seed, options=options)
        self.agents = list(self._env.agents)
        return {agent: self._env.observe(agent) for agent in self.agents}, {}

    def step(self, actions: dict[Any, Any]) -> tuple[dict[Any, Any], ...]:
        """Have every agent act once, in the environment's order; sum rewards over the round.

        Raises:
            RuntimeError: The environment selects another agent than the next one in order.
        """
        env, acting = self._env, list(self.agents)
        rewards = dict.fromkeys(acting, 0.0)
        for agent in acting:
            if env.agent_selection != agent:
                raise RuntimeError(
                    f"{env} asks agent {env.agent_selection!r} to act where {agent!r} is next in "
                    "order: its agents do not act once each in every round, so it is not "
                    "parallelizable"
                )
            env.step(actions[agent])
            for other, reward in env.rewards.items():
                rewards[other] = rewards.get(other, 0.0) + reward
        terminated = {agent: bool(env.terminations.get(agent, True)) for agent in acting}
        truncated = {agent: bool(env.truncations.get(agent, False)) for agent in acting}
        observations = {agent: env.observe(agent) for agent in acting if agent in env.agents}
        self._remove_done()
        self.agents = list(env.agents)
        return observations, rewards, terminated, truncated, {agent: {} for agent in acting}


class ParallelFromTurns(_OfAec):
    """A PettingZoo AEC environment, whose agents act in turn, with the parallel API: a turn is a step.

    Only the agent to act is among `agents` and observes; the others are absent until their turn.
    A step brings the rewards of all agents for this turn.
    """

    def reset(
        self, seed: int | None = None, options: Any = None
    ) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Begin an episode; return the observation and the info of the agent to act."""
        self._env.reset(seed=seed, options=options)
        return self._look()

    def step(self, actions: dict[Any, Any]) -> tuple[dict[Any, Any], ...]:
        """Have the agent to act do so, and remove those that are done."""
        env = self._env
        env.step(actions[env.agent_selection])
        rewards = {agent: float(reward) for agent, reward in env.rewards.items()}
        terminated, truncated = dict(env.terminations), dict(env.truncations)
        self._remove_done()
        observations, infos = self._look()
        return observations, rewards, terminated, truncated, infos

    def _look(self) -> tuple[dict[Any, Any], dict[Any, Any]]:
        env = self._env
        self.agents = [env.agent_selection] if env.agents else []
        infos = getattr(env, "infos", {})
        return (
            {agent: env.observe(agent) for agent in self.agents},
            {agent: infos.get(agent) or {} for agent in self.agents},
        )


def parallel_from_aec(env: Any) -> ParallelFromAec | ParallelFromTurns:
    """Return an AEC environment with the parallel API: in rounds where it declares so, else in turns."""
    return ParallelFromAec(env) if ParallelFromAec.converts(env) else ParallelFromTurns(env)


class RowAdapter(Protocol):
    """One environment that reads its actions from, and writes its results to, rows of its own.

    `step` also begins the next episode where one has ended.
    """

    def reset(self, seed: int) -> None: ...
    def step(self) -> None: ...
    def close(self) -> None: ...


class ParallelAdapter:
    """A PettingZoo parallel environment: one row per possible agent.

    An agent that has left shows zeros and is absent until the next episode, which begins once all
    agents have left. Rows whose agents never appeared, or left without being terminated or
    truncated, are terminated with the episode.
    """

    def __init__(
        self, env: Any, buffers: Buffers, observations: ObservationLayout, actions: ActionLayout
    ) -> None:
        self._env, self._buffers, self._actions = env, buffers, actions
        self._writer = observations.writer(buffers.obs)
        self._rows = {agent: row for row, agent in enumerate(env.possible_agents)}
        self._ended = np.zeros(len(self._rows), dtype=bool)  # rows done in this episode

    def reset(self, seed: int | None) -> None:
        observations, _ = self._env.reset(seed=seed)
        self._ended[:] = False
        self._show(observations)

    def step(self) -> None:
        buffers, rows = self._buffers, self._rows
        buffers.reward[:], buffers.terminated[:], buffers.truncated[:] = 0.0, False, False
        decoded = self._actions.decode(buffers.action)
        observations, rewards, terminated, truncated, _ = self._env.step(
            {agent: decoded[rows[agent]] for agent in self._env.agents}
        )
        self._show(observations)
        # Rewards may include agents that did not act now: their last action earned it.
        for agent, reward in rewards.items():
            buffers.reward[rows[agent]] = reward
        # In turns, an agent may end that did not act now.
        for agent, over in terminated.items():
            row, late = rows[agent], truncated[agent]
            if self._ended[row] or not (over or late):
                continue
            buffers.terminated[row], buffers.truncated[row] = over, late
            buffers.final[row] = buffers.obs[row]
            buffers.obs[row : row + 1].view("u1")[:] = 0
        present = {rows[agent] for agent in self._env.agents}
        for row in range(len(rows)):
            buffers.present[row] = row in present
        # The next episode begins in the same step, once no agent is left. Rows that have not ended
        # by themselves are terminated, so that every row's episode ends.
        self._ended |= buffers.terminated | buffers.truncated
        if not present:
            buffers.terminated[~self._ended] = True
            self.reset(None)

    def close(self) -> None:
        self._env.close()

    def _show(self, observations: dict[Any, Any]) -> None:
        """Write the observations of the agents that have one; zero the other rows."""
        buffers = self._buffers
        buffers.obs.view("u1")[:] = 0
        buffers.present[:] = False
        for agent, observation in observations.items():
            row = self._rows[agent]
            self._writer.one(row, observation)
            buffers.present[row] = True


class VectorAdapter:
    """A `gymnasium.vector.VectorEnv` made by the user: one row per sub-environment.

    In autoreset mode NEXT_STEP, an episode's end is followed by a step that only resets. For that
    step the row shows its last observation and is absent, and its action is ignored.
    """

    def __init__(
        self, env: Any, buffers: Buffers, observations: ObservationLayout, actions: ActionLayout
    ) -> None:
        """Raises InputError if the environment does not reset by itself."""
        self._env, self._buffers, self._actions = env, buffers, actions
        self._writer = observations.writer(buffers.obs)
        self._final_writer = observations.writer(buffers.final)
        self._mode = autoreset_mode(env)
        if self._mode is AutoresetMode.DISABLED:
            raise InputError(
                f"{env} does not reset by itself; make it with an autoreset_mode of SAME_STEP or "
                "NEXT_STEP"
            )

    def reset(self, seed: int) -> None:
        observations, _ = self._env.reset(seed=seed)
        self._writer.batch(observations)
        self._buffers.present[:] = True

    def step(self) -> None:
        buffers = self._buffers
        action = self._actions.decode_batch(buffers.action)
        observations, buffers.reward[:], buffers.terminated[:], buffers.truncated[:], infos = (
            self._env.step(action)
        )
        # With SAME_STEP these are the first observations of new episodes where one has ended.
        self._writer.batch(observations)
        ended = buffers.terminated | buffers.truncated
        if self._mode is AutoresetMode.SAME_STEP:
            for row in np.flatnonzero(ended).tolist():
                self._final_writer.one(row, infos["final_obs"][row])
        else:
            buffers.final[ended] = buffers.obs[ended]
            np.logical_not(ended, out=buffers.present)

    def close(self) -> None:
        self._env.close()


def autoreset_mode(env: Any) -> AutoresetMode:
    """Return when a vector environment resets; NEXT_STEP, Gymnasium's default, if not declared."""
    return AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))


class BufferedAdapter:
    """A PufferLib-style environment, which is given arrays when made and writes into them.

    It begins new episodes by itself and then shows only their first observation. So the final
    observation of an episode is taken to be the one before its last step.
    """

    def __init__(
        self,
        make: Callable[[dict[str, NDArray[Any]]], Any],
        buffers: Buffers,
        observations: ObservationLayout,
        actions: ActionLayout,
    ) -> None:
        """Make the environment.

        Args:
            make: Makes it from its argument `buf`, arrays by name.
            buffers: The rows of its agents.
            observations: Layout of one agent's observations, a Box.
            actions: Layout of one agent's actions.

        Raises:
            InputError: The environment does not use the arrays it is given.
        """
        self._buffers, self._actions = buffers, actions
        (self._shown,) = observations.fields(buffers.obs)
        # It writes directly into the shared rows where they have its dtype; otherwise (float64, …)
        # into an array that is converted after every step.
        dtype, rows = observations.space.dtype, len(self._shown)
        self._written = (
            self._shown if self._shown.dtype == dtype else np.zeros(self._shown.shape, dtype)
        )
        shape = (rows,) if actions.single else (rows, *(actions.space.shape or ()))
        self._action = np.zeros(shape, np.int32 if actions.discrete else actions.space.dtype)
        buffers.present[:] = True
        self._env = make(
            {
                "observations": self._written,
                "rewards": buffers.reward,
                "terminals": buffers.terminated,
                "truncations": buffers.truncated,
                "masks": buffers.present,
                "actions": self._action,
            }
        )
        # Some environments copy the arrays instead of writing into them.
        if self._env.observations is not self._written:
            raise InputError("the environment does not use the arrays that it is given as buf")
        self._before = buffers.obs.copy()

    def reset(self, seed: int) -> None:
        self._env.reset(seed=seed)
        self._convert()

    def step(self) -> None:
        buffers = self._buffers
        self._before[:] = buffers.obs
        self._action[:] = self._actions.decode(buffers.action)
        self._env.step(self._action)
        self._convert()
        ended = buffers.terminated | buffers.truncated
        if ended.any():
            buffers.final[ended] = self._before[ended]

    def close(self) -> None:
        self._env.close()

    def _convert(self) -> None:
        if self._written is not self._shown:
            self._shown[...] = self._written
