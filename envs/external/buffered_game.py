"""A PufferLib-style environment: it writes observations, rewards and ends into arrays that it is given when it is
made, and begins new episodes by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from envs.external.actions import ActionLayout
from envs.external.buffers import Buffers
from envs.external.observations import ObservationLayout
from envs.external.sources import Source
from envs.support.errors import InputError


class BufferedGame:
    """See `Game`. Where an episode ended, the environment shows the next one's beginning only: so the last
    observation of a truncated one is taken to be the one before it, the last that was ever seen.
    """

    def __init__(
        self,
        source: Source,
        own: Mapping[str, Any],
        buffers: Buffers,
        observations: ObservationLayout,
        actions: ActionLayout,
    ) -> None:
        self._buffers, self._actions = buffers, actions
        (field,) = observations.fields(buffers.obs)
        kind, action_space = observations.space.dtype, actions.space
        # In place where its numbers are kept as they are; otherwise (float64, …) they are converted.
        self._seen = field
        self._written = field if field.dtype == kind else np.zeros(field.shape, kind)
        shape = (len(field),) if actions.single else (len(field), *(action_space.shape or ()))
        self._acted = np.zeros(shape, np.int32 if actions.discrete else action_space.dtype)
        given = {
            "observations": self._written,
            "rewards": buffers.reward,
            "terminals": buffers.terminated,
            "truncations": buffers.truncated,
            "masks": buffers.present,
            "actions": self._acted,
        }
        buffers.present[:] = True
        self._env = source.make({**own, "buf": given}).env
        if self._env.observations is not self._written:
            raise InputError(f"{source.name} doesn't use the arrays it is given as buf")
        self._before = buffers.obs.copy()

    def reset(self, seed: int) -> None:
        self._env.reset(seed=seed)
        self._take()

    def step(self) -> None:
        buffers = self._buffers
        self._before[:] = buffers.obs
        self._acted[:] = self._actions.decode(buffers.action)
        self._env.step(self._acted)
        self._take()
        ended = buffers.terminated | buffers.truncated
        if ended.any():
            buffers.final[ended] = self._before[ended]

    def close(self) -> None:
        self._env.close()

    def _take(self) -> None:
        if self._written is not self._seen:
            self._seen[...] = self._written
