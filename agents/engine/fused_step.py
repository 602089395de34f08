"""Recorded steps of a rollout on GPUs: what is not a product of matrices is done by few kernels."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sweepd.agents.engine.population import Population
from sweepd.agents.networks.activation import NATIVE
from sweepd.agents.networks.distributions import Categorical, Gaussian, distribution_of
from sweepd.agents.networks.gpu_kernels import kernels_for
from sweepd.agents.networks.products import product
from sweepd.agents.networks.shape import SHARED, Shape
from sweepd.envs.core.vec_env import Step
from sweepd.envs.native.gpu import GpuKernels


class Stored(NamedTuple):
    """The tensors of a rollout in which its steps are stored.

    Attributes:
        outputs: (G, horizon, num_envs, action_dim), of the actors.
        side: (G, horizon + 1, num_envs, columns + 3), whose first columns are the actions.
        obs: (G, horizon + 1, num_envs, obs_dim), normalised.
        raw: likewise, as the environment gave them; without elements where their scale is fixed.
        rewards: (G, horizon, num_envs).
        terminated: likewise, bool.
        truncated: likewise.
    """

    outputs: Tensor
    side: Tensor
    obs: Tensor
    raw: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor


class FusedStep:
    """Acts in a step, and stores it. Actions are overwritten by the next call."""

    def __init__(
        self, kernels: GpuKernels, shape: Shape, population: Population, stored: Stored
    ) -> None:
        self._kernels, self._shape, self._stored = kernels, shape, stored
        self._actor, self._normalisers = population.actor, population.critic.normalisers
        device, clip = population.device, population.critic.spec.clip
        self._clip = torch.full((1,), math.inf if clip is None else clip, device=device)
        every = shape.slots * shape.num_envs
        if shape.if_discrete:
            self._actions = torch.zeros(every, dtype=torch.int64, device=device)
        else:
            self._actions = torch.zeros(every, shape.action_dim, device=device)

    def act(self, obs: Tensor, noises: Tensor, step: Tensor) -> Tensor:
        """Sample actions, as `Distribution.sample` and `Distribution.to_env` do.

        The actors' outputs and the actions are stored.

        Args:
            obs: (G, num_envs, obs_dim), normalised.
            noises: (horizon, G, num_envs, k), random numbers of all steps.
            step: (1,) int64, the number of this one.

        Returns:
            The actions in the environment's form.
        """
        shape, weights, stored = self._shape, self._actor.weights, self._stored
        [head] = self._actor.spec.heads
        products = product(self._hidden(obs), weights[f"{head}.weight"])
        bias = weights[f"{head}.bias"]
        made = (noises, step, stored.outputs, stored.side, self._actions)
        # Views of one flat tensor, so log_std has the stride of the bias.
        sizes = (bias.stride(0), shape.slots, shape.num_envs, shape.action_dim, shape.horizon)
        rows = shape.slots * shape.num_envs
        if shape.if_discrete:
            self._kernels.run("categorical_sample", rows, products, bias, *made, *sizes)
        else:
            log_std = weights["action_std_log"]
            self._kernels.run("gaussian_sample", rows, products, bias, log_std, *made, *sizes)
        return self._actions

    def _hidden(self, obs: Tensor) -> Tensor:
        """Return the last hidden layer of the actors, as `Net.hidden` does."""
        actor = self._actor
        if actor.spec.items is not None or actor.spec.activation not in NATIVE:
            return actor.hidden(obs)
        x, activation = actor.encoded(obs), NATIVE.index(actor.spec.activation)
        for name in actor.spec.trunk:
            x = product(x, actor.weights[f"{name}.weight"])
            bias, (slots, rows, width) = actor.weights[f"{name}.bias"], x.shape
            sizes = (bias.stride(0), rows, width, activation)
            self._kernels.run("hidden_layer", rows * width, x, bias, *sizes, rows=slots)
        return x

    def store(self, step: Tensor, result: Step, obs: Tensor) -> None:
        """Store a step's rewards and ends, and the observations after it, raw and normalised.

        Args:
            step: (1,) int64, its number.
            result: of the environment.
            obs: (G, num_envs, obs_dim), written: the normalised observations.
        """
        shape, stored = self._shape, self._stored
        avg, std = self._normalisers["state_avg"], self._normalisers["state_std"]
        self._kernels.run(
            "store_step",
            shape.num_envs * shape.obs_dim,
            *(part.contiguous() for part in result),
            *(avg, std, self._clip, step, obs, stored.obs, stored.raw),
            *(stored.rewards, stored.terminated, stored.truncated),
            *(shape.num_envs, shape.obs_dim, shape.horizon),
            rows=shape.slots,
        )


def fused_step(shape: Shape, population: Population, stored: Stored) -> FusedStep | None:
    """Return the steps of programs of this shape; None where torch's operations are used."""
    kernels = kernels_for(population.device)
    kinds, numbers = (Gaussian, Categorical), shape.torch_dtype == torch.float32
    fits = shape.policies == SHARED and distribution_of(shape) in kinds and numbers
    return FusedStep(kernels, shape, population, stored) if kernels is not None and fits else None
