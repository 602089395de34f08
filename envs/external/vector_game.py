"""A `gymnasium.vector.VectorEnv` of its own making: its sub-environments are the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from envs.external.actions import ActionLayout
from envs.external.buffers import Buffers
from envs.external.observations import ObservationLayout
from envs.external.sources import autoreset_mode
from envs.support.errors import InputError


class VectorGame:
    """See `Game`. Of the modes of autoreset, one begins the next episode only in the next step: there the row shows
    its last observation, and is absent, for one step, in which its action is ignored.
    """

    def __init__(
        self, env: Any, buffers: Buffers, observations: ObservationLayout, actions: ActionLayout
    ) -> None:
        self._env, self._buffers, self._actions = env, buffers, actions
        self._observations = observations
        self._seen, self._last = (
            observations.writer(buffers.obs),
            observations.writer(buffers.final),
        )
        self._mode = autoreset_mode(env)
        if self._mode is AutoresetMode.DISABLED:
            raise InputError(
                f"{env} resets nothing by itself; make it with an autoreset_mode of SAME_STEP or NEXT_STEP"
            )

    def reset(self, seed: int) -> None:
        observations, _ = self._env.reset(seed=seed)
        self._show(observations)
        self._buffers.present[:] = True

    def step(self) -> None:
        buffers = self._buffers
        action = _batched(self._env.single_action_space, self._actions.decode(buffers.action))
        observations, buffers.reward[:], buffers.terminated[:], buffers.truncated[:], infos = (
            self._env.step(action)
        )
        self._show(observations)
        ended = buffers.terminated | buffers.truncated
        if self._mode is AutoresetMode.SAME_STEP:
            for row in np.flatnonzero(ended).tolist():
                self._last.one(row, infos["final_obs"][row])
        else:
            buffers.final[ended] = buffers.obs[ended]
            np.logical_not(ended, out=buffers.present)

    def close(self) -> None:
        self._env.close()

    def _show(self, observations: Any) -> None:
        for leaf, field in zip(
            self._observations.leaves, self._observations.fields(self._buffers.obs), strict=True
        ):
            values = observations
            for key in leaf.path:
                values = values[key]
            field[...] = values


def _batched(space: spaces.Space[Any], actions: list[Any]) -> Any:
    """A vector environment's action: Dict and Tuple of arrays rather than a list of them."""
    if isinstance(space, spaces.Dict):
        return {
            name: _batched(part, [action[name] for action in actions])
            for name, part in space.items()
        }
    if isinstance(space, spaces.Tuple):
        return tuple(
            _batched(part, [action[at] for action in actions]) for at, part in enumerate(space)
        )
    return np.array(actions, dtype=space.dtype)
