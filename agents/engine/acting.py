"""Actors of several members that act together with fixed weights."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sweepd.agents.native.choice import Evaluator
from sweepd.agents.networks.distributions import distribution_of
from sweepd.agents.networks.net import Net
from sweepd.agents.networks.recurrence import Memory
from sweepd.agents.networks.shape import Shape
from sweepd.envs.core.vec_env import Legal


class _States(threading.local):
    """A thread's recurrent states (G, rows, size), by the number of rows per member."""

    def __init__(self) -> None:
        self.of: dict[int, Tensor] = {}


class Actors:
    """A function from (G * k, obs_dim or state_dim) observations to actions, for any k.

    Rows are grouped by member. Actions have the environment's form: (G * k, action_dim), or int64
    where they are discrete: (G * k,), or (G * k, choices). They are deterministic, or drawn with
    given random numbers. Recurrent actors take each call as the rows' next step. Several threads may
    call the same actors: each has its own recurrent states.

    Args:
        shape: its `slots` is the number of members.
        net: the actors. Nothing is copied, so they must not change later.

    Attributes:
        uniforms: uniform random numbers per row of actions that are drawn.
    """

    def __init__(self, shape: Shape, net: Net) -> None:
        self.shape, self.net = shape, net
        self._distribution = distribution_of(shape)
        self.uniforms = self._distribution.columns(shape)
        self._run = Evaluator(shape, net)
        self._states = _States()

    @staticmethod
    def together(parts: Sequence[Actors]) -> Actors:
        """Join the members of several programs of one shape, in order."""
        nets = [part.net for part in parts]
        normalisers = {
            name: torch.cat([net.normalisers[name] for net in nets]) for name in nets[0].normalisers
        }
        joined = Net(nets[0].spec, torch.cat([net.flat for net in nets]), normalisers)
        return Actors(replace(parts[0].shape, slots=len(joined.flat)), joined)

    def done(self, ended: Tensor) -> None:
        """Start an episode in some rows. Call it after every step; no effect on other networks.

        Args:
            ended: (G * k,) bool, rows whose next observation is the first of an episode.
        """
        slots = self.shape.slots
        state = self._states.of.get(ended.shape[0] // slots)
        if state is not None:
            state.masked_fill_(ended.view(slots, -1, 1), 0.0)

    def __call__(
        self,
        obs: Tensor,
        legal: Legal | None = None,
        uniforms: Tensor | None = None,
        live: Tensor | None = None,
    ) -> Tensor:
        """Return the actions.

        Args:
            obs: see above.
            legal: the `action_mask` of an environment with `masked`.
            uniforms: (G * k, `uniforms`) float64 in [0, 1), with which actions are drawn; None:
                they are deterministic.
            live: (G * k,) bool, rows whose action counts: in others, recurrent states stay as they
                are; None: all.
        """
        shape, states = self.shape, self._states.of
        rows = obs.shape[0] // shape.slots
        memory = None
        if shape.recurrent:
            empty = self.net.flat.new_zeros(shape.slots, rows, self.net.spec.memory)
            steps = None if live is None else live.view(shape.slots, 1, rows)
            memory = Memory(states.get(rows, empty), live=steps)
        x = obs.view(shape.slots, rows, -1)
        if x.dtype != torch.uint8:
            x = self.net.normalised(x)
        output, after = self._run(x, memory)
        if after is not None:
            states[rows] = after
        distribution = self._distribution(shape, output, self.net.weights)
        if uniforms is None:
            return distribution.mode(legal)
        noise = distribution.noise_of(uniforms).view(shape.slots, rows, -1)
        stored = torch.empty_like(noise)
        distribution.sample(noise, stored, legal)
        return distribution.to_env(shape, stored)
