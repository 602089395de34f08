"""Small environments of every kind for the tests, some of which fail on request."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv


class Counter(gymnasium.Env[Any, Any]):
    """Counts its steps; it observes the count, a random number of the episode, and the last action.

    Args:
        length: Steps of an episode.
        trouble: How it fails: "raise", "hang", "hang in C", "die", "crash" or "slow".
        at: Step of an episode in which it fails.
        flag: If given, a file that is removed by the failure: without it, there is no failure.
    """

    def __init__(self, length: int = 5, trouble: str = "", at: int = 3, flag: str = "") -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(4)
        self._length, self._trouble, self._at, self._flag = length, trouble, at, flag

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._count, self._number = 0, float(self.np_random.random())
        return self._observe(0), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._count += 1
        if self._trouble and self._count == self._at and self._due():
            misbehave(self._trouble)
        return self._observe(action), float(self._count), self._count >= self._length, False, {}

    def _due(self) -> bool:
        if not self._flag:
            return True
        try:
            os.unlink(self._flag)
        except FileNotFoundError:
            return False
        return True

    def _observe(self, action: int) -> np.ndarray:
        return np.array([self._count, self._number, action], dtype=np.float32)


class Drawn(Counter):
    """`Counter` that renders its number of steps as a shade of grey."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - Gymnasium's own way

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(length=9)
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.full((20, 30, 3), 50 * self._count, np.uint8)


class Spoilt(Counter):
    """`Counter` whose observations contain NaN."""

    def _observe(self, action: int) -> np.ndarray:
        return np.array([0.0, np.nan, action], dtype=np.float32)


class Blank(Drawn):
    """`Counter` whose `render` raises."""

    def render(self) -> Any:
        raise ValueError("nothing to draw with")


def counters(mode: AutoresetMode = AutoresetMode.SAME_STEP) -> SyncVectorEnv:
    """Make a vector environment of three counters with episodes of 2, 3 and 4 steps."""
    return SyncVectorEnv(
        [lambda length=length: Counter(length) for length in (2, 3, 4)], autoreset_mode=mode
    )


def misbehave(how: str) -> None:
    """Fail in the given way."""
    if how == "raise":
        raise ValueError("the cart has left the rails")
    if how == "hang":
        while True:
            time.sleep(0.01)
    if how == "hang in C":
        ctypes.PyDLL(None).sleep(60)  # without letting go of the interpreter
    if how == "die":
        os._exit(3)
    if how == "crash":
        ctypes.string_at(0)
    if how == "slow":
        time.sleep(0.05)


def only_in(pid: int) -> Counter:
    """Make a `Counter`, but only in the process with that id."""
    if os.getpid() != pid:
        raise OSError("cannot be made here")
    return Counter()


class Everything(gymnasium.Env[Any, Any]):
    """Nested observation and action spaces; the reward encodes the action that arrived."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            place=spaces.Box(-1.0, 1.0, (3,), np.float64),
            kind=spaces.Tuple((spaces.Discrete(4, start=2), spaces.MultiBinary(3))),
            board=spaces.Box(0, 255, (2, 2), np.uint8),
            cards=spaces.MultiDiscrete([2, 3]),
        )
        self.action_space = spaces.Dict(
            gear=spaces.Discrete(3, start=-1),
            lamps=spaces.MultiBinary(2),
            way=spaces.Tuple((spaces.MultiDiscrete([4, 5]),)),
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        reward = 1000 * action["gear"] + 100 * action["lamps"].sum() + action["way"][0] @ [10, 1]
        return self.observation_space.sample(), float(reward), False, False, {}


class Tag:
    """A PettingZoo parallel environment of up to three agents.

    Agent i leaves after `2 + i` steps, the last one by truncation.
    """

    possible_agents = ("ann", "bob", "cid")

    def observation_space(self, agent: str) -> spaces.Space[Any]:  # noqa: ARG002
        return spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:  # noqa: ARG002
        return spaces.Box(-2.0, 2.0, (1,), np.float32)

    def reset(
        self,
        seed: int | None = None,
        options: Any = None,  # noqa: ARG002
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._count, self._number, self.agents = (
            0,
            float(self._rng.random()),
            list(self.possible_agents),
        )
        return self._observe(), {}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        assert list(actions) == self.agents
        self._count += 1
        seen = self._observe()
        rewards = {agent: float(actions[agent][0]) for agent in self.agents}
        over = {
            agent: self._count >= 2 + self.possible_agents.index(agent) for agent in self.agents
        }
        terminated = {agent: over[agent] and agent != "cid" for agent in self.agents}
        truncated = {agent: over[agent] and agent == "cid" for agent in self.agents}
        self.agents = [agent for agent in self.agents if not over[agent]]
        return seen, rewards, terminated, truncated, {}

    def close(self) -> None:
        pass

    def _observe(self) -> dict[str, np.ndarray]:
        return {agent: np.array([self._count, self._number], np.float32) for agent in self.agents}


class Buffered:
    """A PufferLib-style environment of two agents; writes into given arrays and resets itself."""

    single_observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    single_action_space = spaces.Discrete(3)
    num_agents = 2

    def __init__(self, buf: dict[str, np.ndarray] | None = None, length: int = 4) -> None:
        self._length = length
        if buf is None:
            buf = {"observations": np.zeros((2, 2), np.float32)}
        self.observations = buf["observations"]
        self.rewards, self.terminals, self.truncations = (
            buf.get(name) for name in ("rewards", "terminals", "truncations")
        )

    def reset(self, seed: int | None = None) -> None:
        self._rng = np.random.default_rng(seed)
        self._begin()

    def step(self, actions: np.ndarray) -> None:
        assert actions.dtype == np.int32
        self._count += 1
        self.rewards[:] = actions
        self.terminals[:], self.truncations[:] = False, self._count >= self._length
        self.observations[:, 0] = self._count
        if self._count >= self._length:
            self._begin()

    def close(self) -> None:
        pass

    def _begin(self) -> None:
        self._count = 0
        self.observations[:, 0], self.observations[:, 1] = 0.0, self._rng.random(2)


class Pixels(gymnasium.Env[Any, Any]):
    """Image observations: the red channel changes with the number of steps."""

    observation_space = spaces.Box(0, 255, (40, 48, 3), np.uint8)
    action_space = spaces.Box(np.array([-1.0, 0.0]), np.array([3.0, 10.0]), dtype=np.float64)

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._picture = np.zeros((40, 48, 3), np.uint8)
        self._picture[..., 2] = np.arange(48)
        return self._picture, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._picture[..., 0] += 1
        return self._picture, float(action[0] + 100.0 * action[1]), False, False, {}


class Masked(gymnasium.Env[Any, Any]):
    """Draws its legal options at every step; the last legal one has the reward 1.

    Args:
        several: Whether an action is two choices instead of one.
        told: Whether the mask is in the observation; else it is in `info`.
        length: Steps of an episode.
        empty: Step of an episode in which nothing is legal.
        strict: Whether an illegal action raises.
    """

    def __init__(
        self,
        several: bool = False,
        told: bool = True,
        length: int = 6,
        empty: int = -1,
        strict: bool = True,
    ) -> None:
        sizes = (3, 2) if several else (4,)
        self.action_space = spaces.MultiDiscrete(sizes) if several else spaces.Discrete(4, start=-1)
        seen = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        flags = spaces.Box(0, 1, (sum(sizes),), np.int8)
        self.observation_space = spaces.Dict(observation=seen, action_mask=flags) if told else seen
        self._sizes, self._told, self._length, self._empty, self._strict = (
            sizes,
            told,
            length,
            empty,
            strict,
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._count = 0
        return self._observe()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        chosen = action if len(self._sizes) > 1 else [action + 1]
        for option, legal in zip(chosen, np.split(self._mask, self._sizes[:1]), strict=False):
            assert legal[option] or not self._strict, f"{option} is illegal: {legal}"
        reward = float(chosen[0] == np.flatnonzero(self._mask[: self._sizes[0]])[-1])
        self._count += 1
        seen, info = self._observe()
        return seen, reward, self._count >= self._length, False, info

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        parts = [self.np_random.integers(0, 2, size, np.int8) for size in self._sizes]
        for part in parts:
            part[self.np_random.integers(len(part))] = self._count != self._empty
            part *= self._count != self._empty
        self._mask = np.concatenate(parts)
        seen = np.array([self._count, self.np_random.random()], np.float32)
        if self._told:
            return {"observation": seen, "action_mask": self._mask.copy()}, {}
        return seen, {"action_mask": self._mask.copy()}


def masked_ones(mode: AutoresetMode) -> SyncVectorEnv:
    """Make a vector environment of two `Masked`."""
    return SyncVectorEnv([Masked] * 2, autoreset_mode=mode)


class Table(Tag):
    """`Tag` with masks: agent i must not choose i, nor the number of steps modulo 4."""

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        seen, flags = super().observation_space(agent), spaces.MultiBinary(4)
        return spaces.Dict(observation=seen, action_mask=flags)

    def action_space(self, agent: str) -> spaces.Space[Any]:  # noqa: ARG002
        return spaces.Discrete(4)

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        for agent, action in actions.items():
            assert self._mask(agent)[action], (agent, action)
        return super().step({agent: [action] for agent, action in actions.items()})

    def _mask(self, agent: str) -> np.ndarray:
        own = np.ones(4, np.int8)
        own[[self.possible_agents.index(agent), self._count % 4]] = 0
        return own

    def _observe(self) -> dict[str, Any]:
        seen = super()._observe()
        return {
            agent: {"observation": own, "action_mask": self._mask(agent)}
            for agent, own in seen.items()
        }


def sized_counters(num_envs: int) -> SyncVectorEnv:
    """Make as many copies as the argument says."""
    return SyncVectorEnv([Counter] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


class TurnTag:
    """`Tag` with PettingZoo's AEC API: agents act in turn, and a step follows the last of them."""

    metadata = {"is_parallelizable": True}  # noqa: RUF012 - PettingZoo's own way

    def __init__(self, parallelizable: bool = True) -> None:
        self._game, self.possible_agents = Tag(), list(Tag.possible_agents)
        self.observation_space, self.action_space = (
            self._game.observation_space,
            self._game.action_space,
        )
        self.metadata = {"is_parallelizable": parallelizable}

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self._seen, _ = self._game.reset(seed, options)
        self.agents, self._chosen = list(self.possible_agents), dict[str, Any]()
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = (
            dict.fromkeys(self.agents, False),
            dict.fromkeys(self.agents, False),
        )
        self.agent_selection = self.agents[0]

    def observe(self, agent: str) -> np.ndarray:
        return self._seen[agent]

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            assert action is None
            self.agents.remove(agent)
        else:
            self._chosen[agent] = action
            self.rewards = dict.fromkeys(self.agents, 0.0)
            if len(self._chosen) == len(self.agents):
                self._seen, self.rewards, terminated, truncated, _ = self._game.step(self._chosen)
                self.terminations, self.truncations, self._chosen = terminated, truncated, {}
        dead = [one for one in self.agents if self.terminations[one] or self.truncations[one]]
        waiting = [one for one in self.agents if one not in self._chosen]
        self.agent_selection = next(iter([*dead, *waiting]), "")

    def last(self) -> tuple[Any, ...]:
        agent = self.agent_selection
        return (
            self._seen[agent],
            self.rewards[agent],
            self.terminations[agent],
            self.truncations[agent],
            {},
        )

    def agent_iter(self) -> Any:
        while self.agents:
            yield self.agent_selection

    def close(self) -> None:
        pass


class OldStep(Counter):
    """Its `step` returns what Gym's did before 0.26."""

    def step(self, action: int) -> Any:
        return (*super().step(action)[:3], {})


class OldReset(Counter):
    """Its `reset` returns what Gym's did before 0.26."""

    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0]


class Gym21:
    """An environment of the old package gym."""

    action_space, observation_space = spaces.Discrete(2), spaces.Discrete(2)

    def reset(self) -> int:
        return 0

    def step(self, action: int) -> tuple[int, float, bool, dict[str, Any]]:
        return action, 0.0, True, {}


class Pool(gymnasium.Env[Any, Any]):
    """The methods of an EnvPool."""

    action_space, observation_space = spaces.Discrete(2), spaces.Box(-1.0, 1.0, (2,))

    def recv(self) -> Any: ...
    def send(self, action: Any, env_id: Any = None) -> None: ...
    def async_reset(self) -> None: ...


class Forking(Counter):
    """Starts processes that it does not end, and appends their ids to a file.

    A fork of its own process, a program, and a program in a session of its own.
    """

    def __init__(self, pids: str) -> None:
        super().__init__()
        copy = os.fork()
        if not copy:
            time.sleep(600.0)
            os._exit(0)
        program = subprocess.Popen(["sleep", "600"])
        other = subprocess.Popen(["sleep", "600"], start_new_session=True)
        with open(pids, "a") as file:
            file.write(f"{copy}\n{program.pid}\n{other.pid}\n")
