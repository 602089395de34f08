"""PPO's loss on GPUs: its derivatives by the networks' outputs, by one kernel and one product.

`sweepd.agents.algorithms.ppo.PPO._loss` computes the same with torch's operations, about forty
launches, and their backward pass.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sweepd.agents.engine.population import Population
from sweepd.agents.networks.distributions import Categorical, Gaussian, distribution_of
from sweepd.agents.networks.gpu_kernels import kernels_for
from sweepd.agents.networks.shape import SHARED, Shape
from sweepd.envs.native.gpu import GpuKernels


class Loss(NamedTuple):
    """What the gradients and the statistics need of a minibatch's loss.

    Attributes:
        of: what is differentiated by the weights: the loss (G,), or the networks' outputs.
        derivatives: the loss's, by `of`; None: 1.
        log_ratio: (G, minibatch), log of the probability ratios.
        error: (G, minibatch), value errors in their unit.
    """

    of: Sequence[Tensor]
    derivatives: Sequence[Tensor] | None
    log_ratio: Tensor
    error: Tensor


class FusedLoss:
    """The loss of one program's minibatches; results are overwritten by the next one.

    Attributes:
        terms: (G, 1) each, what `prepare` computes.
    """

    def __init__(self, kernels: GpuKernels, shape: Shape, device: torch.device) -> None:
        self._kernels, self.shape = kernels, shape
        size = shape.slots, shape.minibatch
        # Of log σ's gradient: the terms of each row that depend on its action, then d(loss)/d(log p).
        self._terms = torch.zeros(*size, shape.action_dim + 1, device=device)
        self._ones = torch.ones(shape.slots, 1, shape.minibatch, device=device)
        self._d_output = torch.zeros(*size, shape.action_dim, device=device)
        self._d_value = torch.zeros(*size, 1, device=device)
        self._rows = torch.zeros(2, *size, device=device).unbind(0)
        names = ("low", "high", "d_entropy", "unit", "d_value", "value_avg", "value_std")
        self.terms = {name: torch.zeros(shape.slots, 1, device=device) for name in names}

    def prepare(self, numbers: Mapping[str, Tensor], population: Population) -> None:
        """Take the hyperparameters (G, 1) and value normalisers of a rollout.

        Into the same memory, which recorded gradient steps keep reading.
        """
        minibatch, unit = self.shape.minibatch, population.value_unit()[..., 0]
        avg, std = population.value_avg[..., 0], population.value_std[..., 0]
        found = {
            "low": 1.0 - numbers["clip"],
            "high": 1.0 + numbers["clip"],
            "d_entropy": numbers["entropy_coef"] / -minibatch,
            "unit": unit,
            "d_value": numbers["value_coef"] * (std / unit) / minibatch,
            "value_avg": avg,
            "value_std": std,
        }
        for name, term in self.terms.items():
            term.copy_(found[name])

    def __call__(
        self, output: Tensor, value: Tensor, side: Tensor, log_std: Tensor | None = None
    ) -> Loss:
        """Compute a minibatch's loss.

        Args:
            output: (G, minibatch, action_dim), of the actors.
            value: (G, minibatch, 1), of the critics.
            side: (G, minibatch, columns + 3), of its transitions.
            log_std: (G, 1, action_dim), of the Gaussian; None where actions are discrete.
        """
        shape, terms = self.shape, self.terms
        log_ratio, error = self._rows
        sizes = shape.slots, shape.minibatch, shape.action_dim
        self._kernels.run(
            "categorical_loss" if log_std is None else "gaussian_loss",
            shape.slots * shape.minibatch,
            *(output.detach(), side, value.detach()),
            terms["d_entropy"] if log_std is None else log_std.detach(),
            *(terms[name] for name in ("low", "high", "unit", "d_value", "value_avg", "value_std")),
            *(self._d_output, self._d_value, log_ratio, error),
            *(sizes if log_std is None else (self._terms, log_std.stride(0), *sizes)),
        )
        if log_std is None:
            return Loss([output, value], [self._d_output, self._d_value], log_ratio, error)
        # Sums over rows are products with ones, as in `sweepd.agents.networks.layers`.
        sums = torch.bmm(self._ones, self._terms)
        # d(log p)/d(log σ) = u² - 1, and dH/d(log σ) = 1 in every row.
        entropies = (terms["d_entropy"] * shape.minibatch).unsqueeze(-1)
        d_log_std = sums[..., :-1] - sums[..., -1:] + entropies
        derivatives = [self._d_output, self._d_value, d_log_std]
        return Loss([output, value, log_std], derivatives, log_ratio, error)


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
    shape = Shape(
        state_dim=1, action_dim=columns, if_discrete=discrete, slots=slots, minibatch=rows
    )
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(device)

    output, value = normal(slots, rows, columns), normal(slots, rows, 1)
    log_std = -normal(slots, 1, columns).abs()
    leaves = [tensor.requires_grad_() for tensor in (output, value, log_std)]
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
    fused = FusedLoss(kernels, shape, device)
    numbers = {"low": 0.4, "high": 0.6, "d_entropy": -1e-4, "unit": 1.5, "d_value": 2e-2}
    numbers |= {"value_avg": 0.3, "value_std": 2.0}
    for name, term in fused.terms.items():
        term.copy_(torch.tensor([[numbers[name]], [2.0 * numbers[name]]]))
    terms = fused.terms
    ratio, advantage = (log_prob - other[..., 0]).exp(), other[..., 1]
    values = terms["value_avg"] + value[..., 0] * terms["value_std"]
    error = (values - other[..., 2]) / terms["unit"]
    clipped = torch.clamp(ratio, terms["low"], terms["high"]) * advantage
    surrogate = torch.minimum(ratio * advantage, clipped)
    # smooth_l1, whose derivative by a critic's output is d_value times the clipped error.
    size = error.abs()
    of_error = torch.where(size < 1.0, 0.5 * size * size, size - 0.5)
    of_value = terms["d_value"] * terms["unit"] / terms["value_std"] * of_error
    loss = -surrogate.sum() / rows + of_value.sum() + (terms["d_entropy"] * entropy).sum()
    wanted = torch.autograd.grad(loss, leaves, allow_unused=True)
    with torch.no_grad():
        side = torch.cat((actions, other), -1)
        found = fused(output, value, side, None if discrete else log_std)
    assert found.derivatives is not None
    pairs = [
        *zip(found.derivatives, wanted, strict=False),
        (found.log_ratio, log_prob - other[..., 0]),
    ]
    return all(torch.allclose(one, other, rtol=1e-3, atol=1e-5) for one, other in pairs)
