"""Actors of several members that act together with fixed weights."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sweepd.agents.native.choice import evaluate, policy_kernel
from sweepd.agents.networks.convolution import pixels
from sweepd.agents.networks.distributions import distribution_of
from sweepd.agents.networks.mlp import Activations
from sweepd.agents.networks.normaliser import CLIP
from sweepd.agents.networks.shape import Shape
from sweepd.agents.networks.weights import leaf_views
from sweepd.envs.core.vec_env import Legal


class _Buffers(threading.local):
    """What a thread's calls compute, by the number of rows per member."""

    def __init__(self) -> None:
        self.of: dict[int, Activations] = {}


class Actors:
    """A function from (G * k, obs_dim or state_dim) observations to actions, for any k.

    Rows are grouped by member. Actions have the environment's form: (G * k, action_dim), or int64
    where they are discrete: (G * k,), or (G * k, choices). They are deterministic, or drawn with
    given random numbers. Recurrent actors take each call as the rows' next step. Several threads may
    call the same actors: each has its own buffers, and its own recurrent states.

    Args:
        shape: its `slots` is the number of members.
        flat: (2, G, …) weights as `sweepd.agents.networks.weights.leaf_views` reads them.
        state_avg: (G, 1, state_dim or obs_dim).
        state_std: likewise. Nothing is copied, so these tensors must not change later.

    Attributes:
        uniforms: uniform random numbers per row of actions that are drawn.
    """

    def __init__(self, shape: Shape, flat: Tensor, state_avg: Tensor, state_std: Tensor) -> None:
        self.shape, self.flat = shape, flat
        self.state_avg, self.state_std = (
            part[..., : shape.state_dim] for part in (state_avg, state_std)
        )
        self._weights = leaf_views(flat, shape)
        self._distribution = distribution_of(shape)
        self.uniforms = self._distribution.columns(shape)
        self._kernel = policy_kernel(shape, self._weights)
        self._buffers = _Buffers()

    @staticmethod
    def together(parts: Sequence[Actors]) -> Actors:
        """Join the members of several programs of one shape, in order."""
        shape = replace(parts[0].shape, slots=sum(part.shape.slots for part in parts))
        return Actors(
            shape,
            torch.cat([part.flat for part in parts], 1),
            torch.cat([part.state_avg for part in parts]),
            torch.cat([part.state_std for part in parts]),
        )

    def done(self, ended: Tensor) -> None:
        """Start an episode in some rows. Call it after every step; no effect on other networks.

        Args:
            ended: (G * k,) bool, rows whose next observation is the first of an episode.
        """
        slots = self.shape.slots
        into = self._buffers.of.get(ended.shape[0] // slots)
        if into is not None and into.cells is not None:
            into.cells.state[:slots].masked_fill_(ended.view(slots, -1, 1), 0.0)

    def __call__(
        self, obs: Tensor, legal: Legal | None = None, uniforms: Tensor | None = None
    ) -> Tensor:
        """Return the actions.

        Args:
            obs: see above.
            legal: the `action_mask` of an environment with `masked`.
            uniforms: (G * k, `uniforms`) float64 in [0, 1), with which actions are drawn; None:
                they are deterministic.
        """
        shape = self.shape
        rows = obs.shape[0] // shape.slots
        buffers = self._buffers.of
        if rows not in buffers:
            # Acting needs no critic, so privileged columns are dropped from the shape.
            buffers[rows] = Activations(replace(shape, privileged_dim=0), rows, obs.device)
        into = buffers[rows]
        state = obs.view(shape.slots, rows, -1)[..., : shape.state_dim]
        if shape.image_shape is None:
            normalised = (state - self.state_avg).div_(self.state_std)
            if shape.running_scale:
                normalised.clamp_(-CLIP, CLIP)
        else:
            normalised = pixels(state, self.state_avg, self.state_std)
        evaluate(self._kernel, self._weights, normalised, into, critic=False)
        distribution = self._distribution(shape, into.output, self._weights)
        if uniforms is None:
            return distribution.mode(legal)
        noise = distribution.noise_of(uniforms).view(shape.slots, rows, -1)
        stored = torch.empty_like(noise)
        distribution.sample(noise, stored, legal)
        return distribution.to_env(shape, stored)
