"""A single game of Bucket Brigade with PettingZoo's parallel API, and one seat with Gymnasium's."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, MultiDiscrete, Space
from numpy.typing import NDArray
from torch import Tensor

from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.core.vec_env import Step
from sweepd.envs.games.bucket_brigade.game import BucketBrigade
from sweepd.envs.games.bucket_brigade.players import ScriptedPolicy
from sweepd.envs.games.bucket_brigade.render import Scene, as_frame, as_text, scene
from sweepd.envs.games.bucket_brigade.scenarios import BucketParams
from sweepd.envs.support.errors import InputError

_RENDER_MODES = ("ansi", "rgb_array")


class SingleGame:
    """One game without autoreset: it stays at its end until it is reset."""

    def __init__(self, params: BucketParams, *, scaled: bool, render_mode: str | None) -> None:
        """Raises InputError for an unknown render mode."""
        if render_mode not in (None, *_RENDER_MODES):
            raise InputError(
                f"the render mode is {render_mode!r}; it must be one of {', '.join(_RENDER_MODES)}"
            )
        self.env = BucketBrigade(params, params.num_agents, scaled=scaled)
        self._render_mode = render_mode
        self._scene: Scene | None = None
        self.over = True

    def spaces(self) -> tuple[Space[Any], Space[Any]]:
        """Return one agent's observation space and action space."""
        box = Box(-np.inf, np.inf, (self.env.state_dim,), np.float32)
        return box, MultiDiscrete(np.array(self.env.action_dims))

    def reset(self, seed: int | None) -> Tensor:
        """Begin a game; return the agents' observations (N, state_dim)."""
        obs, self.over = self.env.reset(seed), False
        self._scene = scene(self.env) if self._render_mode else None
        return obs

    def step(self, action: Tensor) -> tuple[Tensor, Step]:
        """Play one night with (N, 3) actions.

        Returns:
            The agents' observations after it, and the step.

        Raises:
            RunError: An action is illegal.
        """
        before = self.env.age.clone()
        made = self.env.step(action)
        self.env.check()
        self.over = bool(made.terminated[0] | made.truncated[0])
        if self._render_mode:
            rewards = (made.reward * self.env.reward_unit).tolist()
            # The environment has already begun the next game in place of one that ended.
            ended_night = int(before) + 1 if self.over else None
            self._scene = scene(self.env, rewards=rewards, ended_night=ended_night)
        return (self.env.final_obs() if self.over else made.obs), made

    def render(self) -> str | NDArray[np.uint8] | None:
        """Draw the last night as the render mode says."""
        if self._scene is None:
            return None
        return as_text(self._scene) if self._render_mode == "ansi" else as_frame(self._scene)


class ParallelView:
    """A game with the API of `pettingzoo.ParallelEnv`, without depending on PettingZoo.

    Its agents `agent_0`, `agent_1`, … all leave when the game ends.
    """

    def __init__(
        self,
        params: BucketParams | None = None,
        *,
        scaled: bool = True,
        render_mode: str | None = None,
    ) -> None:
        """Raises InputError for an unknown render mode ("ansi" and "rgb_array" are known)."""
        self.game = SingleGame(params or BucketParams(), scaled=scaled, render_mode=render_mode)
        self.metadata = {
            "name": "bucket_brigade_v0",
            "render_modes": list(_RENDER_MODES),
            "is_parallelizable": True,
        }
        self.render_mode = render_mode
        self.possible_agents = [f"agent_{agent}" for agent in range(self.game.env.num_agents)]
        self.agents: list[str] = []
        spaces = {agent: self.game.spaces() for agent in self.possible_agents}
        self.observation_spaces = {agent: both[0] for agent, both in spaces.items()}
        self.action_spaces = {agent: both[1] for agent, both in spaces.items()}

    @property
    def unwrapped(self) -> ParallelView:
        """The environment itself, since it is not a wrapper."""
        return self

    @property
    def num_agents(self) -> int:
        """Agents in the present game."""
        return len(self.agents)

    @property
    def max_num_agents(self) -> int:
        """Agents in any game."""
        return len(self.possible_agents)

    def observation_space(self, agent: str) -> Space[Any]:
        """Return the agent's observation space."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space[Any]:
        """Return the agent's action space: a house, REST 0 or WORK 1, a signal."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[np.float32]], dict[str, dict[str, Any]]]:
        """Begin a game. options: ignored."""
        del options
        self.agents = list(self.possible_agents)
        return self._named(self.game.reset(seed).numpy()), {agent: {} for agent in self.agents}

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[
        dict[str, Any],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """Play one night. Does nothing once the game is over.

        Raises:
            RunError: An action is illegal.
        """
        if not self.agents:
            return {}, {}, {}, {}, {}
        action = np.stack([np.asarray(actions[agent], dtype=np.int64) for agent in self.agents])
        obs, made = self.game.step(torch.from_numpy(action))
        results = (
            self._named(obs.numpy()),
            self._named(made.reward.tolist()),
            self._named(made.terminated.tolist()),
            self._named(made.truncated.tolist()),
            {agent: dict[str, Any]() for agent in self.agents},
        )
        if self.game.over:
            self.agents = []
        return results

    def state(self) -> NDArray[np.float32]:
        """Return what all agents observe in common."""
        env = self.game.env
        return env.observe()[0, : env.encoder.shared].numpy()

    def render(self) -> str | NDArray[np.uint8] | None:
        """Draw the last night as `render_mode` says."""
        return self.game.render()

    def close(self) -> None:
        """Do nothing."""

    def _named(self, values: Any) -> dict[str, Any]:
        return dict(zip(self.agents, values, strict=True))


class SeatView(gymnasium.Env[Any, Any]):
    """One seat of a game as a single-agent environment; a baseline player plays the other seats."""

    def __init__(
        self,
        params: BucketParams | None = None,
        *,
        seat: int = 0,
        company: str = "specialist",
        scaled: bool = True,
        render_mode: str | None = None,
    ) -> None:
        """Make a game.

        Args:
            params: Its parameters.
            seat: The agent to play, from 0.
            company: The baseline player at the other seats, a name in `players.PLAYERS`.
            scaled: See `BucketBrigade`.
            render_mode: None, "ansi" or "rgb_array".

        Raises:
            InputError: The seat, name or render mode does not exist.
        """
        self.game = SingleGame(params or BucketParams(), scaled=scaled, render_mode=render_mode)
        agents = self.game.env.num_agents
        if not 0 <= seat < agents:
            raise InputError(
                f"the seat is {seat!r}; it must be a whole number from 0 to {agents - 1}"
            )
        self._seat, self._company = seat, company
        self._players = ScriptedPolicy(company, self.game.env.encoder, derive_seed("company", seat))
        self._obs = torch.zeros(agents, self.game.env.state_dim)
        self.metadata = {"render_modes": list(_RENDER_MODES), "render_fps": 2}
        self.render_mode = render_mode
        self.observation_space, self.action_space = self.game.spaces()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin a game. options: ignored."""
        super().reset(seed=seed, options=options)
        if seed is not None:
            self._players = ScriptedPolicy(
                self._company, self.game.env.encoder, derive_seed("company", seed)
            )
        self._obs = self.game.reset(seed)
        return self._own(), {}

    def step(
        self, action: Any
    ) -> tuple[NDArray[np.float32], SupportsFloat, bool, bool, dict[str, Any]]:
        """Play one night; the reward is the seat's own. Raises RunError for an illegal action."""
        # The baseline player acts at every seat; its action at this one is replaced.
        taken = self._players(self._obs)
        taken[self._seat] = torch.as_tensor(np.asarray(action))
        self._obs, made = self.game.step(taken)
        seat = self._seat
        return (
            self._own(),
            float(made.reward[seat]),
            bool(made.terminated[seat]),
            bool(made.truncated[seat]),
            {},
        )

    def render(self) -> Any:
        """Draw the last night as `render_mode` says."""
        return self.game.render()

    def _own(self) -> NDArray[np.float32]:
        return np.array(self._obs[self._seat].numpy())
