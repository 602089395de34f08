"""PPO's loss on GPUs: its gradient for the networks' outputs, by one kernel and one product.

`sweepd.agents.algorithms.ppo.PPO._loss` computes the same with torch's operations, about forty
launches.
"""

from __future__ import annotations

import logging
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from sweepd.agents.engine.population import Population
from sweepd.agents.networks.distributions import Categorical, Gaussian, distribution_of
from sweepd.agents.networks.gpu_kernels import GpuKernels, kernels_for
from sweepd.agents.networks.mlp import Activations
from sweepd.agents.networks.shape import SHARED, Shape
from sweepd.agents.networks.weights import Leaves


class LossGradients(NamedTuple):
    """What the backward pass and the statistics need of a minibatch's loss.

    Attributes:
        d_output: (G, minibatch, action_dim), dL/d(actor output).
        d_critic: (G, minibatch), dL/d(critic output).
        log_ratio: (G, minibatch), log of the probability ratios.
        error: (G, minibatch), value errors in their unit.
        divergence: (G,), mean(r - 1 - log r); None if it was not asked for.
    """

    d_output: Tensor
    d_critic: Tensor
    log_ratio: Tensor
    error: Tensor
    divergence: Tensor | None


class Terms(Protocol):
    """See `sweepd.agents.algorithms.ppo.LossTerms`; (G, 1) each."""

    @property
    def low(self) -> Tensor: ...
    @property
    def high(self) -> Tensor: ...
    @property
    def d_entropy(self) -> Tensor: ...
    @property
    def unit(self) -> Tensor: ...
    @property
    def d_value(self) -> Tensor: ...


class FusedLoss:
    """The loss of one program's minibatches; results are overwritten by the next one."""

    def __init__(self, kernels: GpuKernels, shape: Shape, device: torch.device) -> None:
        self._kernels, self.shape = kernels, shape
        size = shape.slots, shape.minibatch
        columns = 1 if shape.discrete else shape.action_dim + 2
        self._sums = torch.zeros(*size, columns, device=device)
        self._ones = torch.ones(shape.slots, 1, shape.minibatch, device=device)
        self._d_output = torch.zeros(*size, shape.action_dim, device=device)
        self._rows = torch.zeros(3, *size, device=device).unbind(0)

    def __call__(
        self, acts: Activations, side: Tensor, weights: Leaves, terms: Terms, of: Population
    ) -> tuple[LossGradients, Tensor]:
        """Compute a minibatch's gradients.

        Args:
            acts: the forward pass of the minibatch.
            side: (G, minibatch, columns + 3), of its transitions.
            weights: of the actors.
            terms: of the loss.
            of: the value normalisers.

        Returns:
            The gradients, and (G, 1, action_dim), that of log_std without the entropy's part; no
            columns where actions are discrete.
        """
        shape, log_std = self.shape, weights.log_std
        d_critic, log_ratio, error = self._rows
        sizes = shape.slots, shape.minibatch, shape.action_dim
        name = "categorical_loss" if shape.discrete else "gaussian_loss"
        self._kernels.run(
            name,
            shape.slots * shape.minibatch,
            acts.output,
            side,
            acts.value,
            terms.d_entropy if shape.discrete else log_std,
            *(terms.low, terms.high, terms.unit, terms.d_value),
            *(of.value_avg, of.value_std),
            *(self._d_output, d_critic, log_ratio, error, self._sums),
            *(sizes if shape.discrete else (log_std.stride(0), *sizes)),
        )
        # Sums over rows are products with ones, as in `sweepd.agents.networks.mlp.Backward`.
        sums = torch.bmm(self._ones, self._sums)
        found = LossGradients(self._d_output, d_critic, log_ratio, error, sums[:, 0, -1])
        # d(log p)/d(log σ) = u² - 1
        return found, sums[..., :-2] - sums[..., -2:-1] if not shape.discrete else sums[..., :0]


def fused_loss(shape: Shape, device: torch.device) -> FusedLoss | None:
    """Return the loss for programs of this shape; None where torch's operations are used."""
    kernels = kernels_for(device)
    kinds = (Gaussian, Categorical)
    fits = shape.policies == SHARED and not shape.loses_transitions
    if kernels is None or not fits or distribution_of(shape) not in kinds:
        return None
    return FusedLoss(kernels, shape, device) if agrees(kernels, device) else None


@cache
def agrees(kernels: GpuKernels, device: torch.device) -> bool:
    """Whether the kernels give autograd's gradients on a device; a warning says if not."""
    found = all(_agrees(kernels, device, discrete=discrete) for discrete in (False, True))
    if not found:
        logging.getLogger("sweepd").warning(
            "the fused loss fails its test on %s; torch's operations instead", device
        )
    return found


@torch.enable_grad()
def _agrees(kernels: GpuKernels, device: torch.device, *, discrete: bool) -> bool:
    slots, rows, columns = 2, 64, 3
    shape = Shape(state_dim=1, action_dim=columns, slots=slots, minibatch=rows, discrete=discrete)
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(device)

    output, value = normal(slots, rows, columns), normal(slots, rows, 1)
    log_std = -normal(slots, 1, columns).abs()
    leaves = [tensor.requires_grad_() for tensor in (output, value, log_std)]
    weights: Any = SimpleNamespace(log_std=log_std[..., : 0 if discrete else columns])
    chosen = torch.arange(rows, device=device).remainder(columns).expand(slots, -1)
    if discrete:
        options: Any = torch.distributions.Categorical(logits=output)
        actions = chosen.unsqueeze(-1).to(output)
        log_prob, entropy = options.log_prob(chosen), options.entropy().sum(1, keepdim=True)
    else:
        normals: Any = torch.distributions.Normal(output, log_std.exp())
        actions = output.detach() + normal(slots, rows, columns)
        log_prob = normals.log_prob(actions).sum(-1)
        entropy = normals.entropy().sum(-1).sum(1, keepdim=True)
    other = torch.stack(
        (log_prob.detach() + 0.3 * normal(slots, rows), normal(slots, rows), normal(slots, rows)),
        -1,
    )
    low, high, d_entropy, unit, d_value, avg, std = (
        torch.tensor([[one], [2.0 * one]], device=device)
        for one in (0.4, 0.6, -1e-4, 1.5, 2e-2, 0.3, 2.0)
    )
    ratio, advantage = (log_prob - other[..., 0]).exp(), other[..., 1]
    error = (avg + value[..., 0] * std - other[..., 2]) / unit
    surrogate = torch.minimum(ratio * advantage, torch.clamp(ratio, low, high) * advantage)
    # smooth_l1, whose derivative by a critic's output is d_value times the clipped error.
    size = error.abs()
    of_value = d_value * unit / std * torch.where(size < 1.0, 0.5 * size * size, size - 0.5)
    loss = -surrogate.sum() / rows + of_value.sum() + (d_entropy * entropy).sum()
    wanted = torch.autograd.grad(loss, leaves, allow_unused=True)
    with torch.no_grad():
        acts: Any = SimpleNamespace(output=output, value=value)
        terms: Any = SimpleNamespace(
            low=low, high=high, d_entropy=d_entropy, unit=unit, d_value=d_value
        )
        of: Any = SimpleNamespace(value_avg=avg.unsqueeze(-1), value_std=std.unsqueeze(-1))
        side = torch.cat((actions, other), -1)
        found, d_log_std = FusedLoss(kernels, shape, device)(acts, side, weights, terms, of)
    assert found.divergence is not None
    pairs = [
        (found.d_output, wanted[0]),
        (found.d_critic, wanted[1][..., 0]),
        (found.divergence, (ratio - 1.0 - ratio.log()).mean(1)),
    ]
    if not discrete:
        pairs.append((d_log_std + rows * d_entropy.unsqueeze(-1), wanted[2]))
    return all(torch.allclose(one, other, rtol=1e-3, atol=1e-5) for one, other in pairs)
