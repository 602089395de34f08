"""A frozen policy in an environment outside a study, by the environment's own spaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sweepd.agents.algorithms.table import get_algorithm
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.envs.external.codec import SpaceCodec
from sweepd.envs.support.errors import InputError


class SpacePolicy:
    """A policy that reads observations of a space and gives actions of a space."""

    def __init__(self, policy: FrozenPolicy, codec: SpaceCodec, algorithm: str) -> None:
        """Set up the policy.

        Args:
            policy: the policy.
            codec: of the environment's spaces.
            algorithm: that trained the policy; without support for masks, it ignored those in
                `info`.

        Raises:
            InputError: the policy was trained on other spaces.
        """
        layout, actions = codec.observations, codec.actions
        width = sum(actions.choices) if actions.discrete else actions.width
        if (policy.state_dim, policy.action_dim, policy.sizes) != (
            layout.size,
            width,
            actions.choices,
        ):
            raise InputError(
                f"the policy maps {policy.state_dim} numbers to {policy.action_dim} actions in "
                f"choices of {list(policy.sizes)}, and the spaces have {layout.size} and {width} "
                f"in choices of {list(actions.choices)}: the environment has changed since"
            )
        self._policy, self._codec = policy, codec
        self._uses_info = codec.masks_in_info and get_algorithm(algorithm).supports.masks

    def reset(self) -> None:
        """Begin an episode: clear the state of a recurrent policy; no effect on others."""
        self._policy.reset()

    def action(self, observation: Any, info: Mapping[str, Any] | None = None) -> Any:
        """Return the deterministic action for an observation of the space, or for a batch of them.

        Args:
            observation: as the environment returns it, or a batch as Gymnasium's vector
                environments return it.
            info: what came with the observation; needed only where it has the action mask.

        Returns:
            An action for `env.step`: scaled to the bounds of a Box, a whole number for Discrete, a
            dict for Dict, …; of a batch what the vector environment's `step` takes.

        Raises:
            RunError: the observation or the info is not of the environment's spaces.
        """
        size = self._codec.batch_size(observation)
        inputs, flags = self._codec.read(observation)
        if self._uses_info:
            flags = self._codec.legal(info, size)
        legal = None if flags is None else _Flags(flags, self._codec.actions.choices)
        # As the study played it: in float64, and float32 actions in the environment.
        actions = self._policy.act_batch(inputs, legal)
        return self._codec.write(np.asarray(actions), batch=size is not None)


class _Flags:
    """Which options are legal: of every choice, whatever the earlier ones are."""

    def __init__(self, flags: NDArray[np.bool_], choices: tuple[int, ...]) -> None:
        self._parts = torch.split(torch.from_numpy(flags), list(choices), 1)

    def __call__(self, chosen: Tensor) -> Tensor:
        return self._parts[chosen.shape[1]]
