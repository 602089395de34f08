"""The engine's operations give the same bits in every slot.

The place of a number in a tensor may decide by which instructions torch computes it: its sigmoid,
power and sums over the first dimension are such.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from sweepd.agents.networks.distributions import distribution_of, log_softmax
from sweepd.agents.networks.recurrence import sigmoid
from sweepd.agents.networks.shape import Shape

OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "exp": lambda x, _: x.exp(),
    "log": lambda x, _: (1.000001 - x.tanh().square()).log(),
    "tanh": lambda x, _: x.tanh(),
    "erf": lambda x, _: x.erf(),
    "a gate": lambda x, _: sigmoid(x),
    "lerp": lambda x, y: torch.lerp(x, y, sigmoid(x + y)),
    "addcmul": lambda x, y: torch.addcmul(x, y, x),
    "division": lambda x, y: x / y,
    "log_softmax": lambda x, _: log_softmax(x),
    "cumsum": lambda x, _: x.exp().cumsum(-1),
    "smooth_l1_loss": lambda x, y: smooth_l1_loss(x, y, reduction="none"),
    "sum of columns": lambda x, _: x.sum(-1),
    "mean of rows": lambda x, _: x.mean(1),
    "mean of all": lambda x, _: x.mean((1, 2)),
    "deviation": lambda x, _: x.flatten(1).std(1),
    "norm": lambda x, _: torch.linalg.vector_norm(x.flatten(1), dim=1),
    "products": lambda x, y: torch.bmm(x.mT, y),
    "transposed products": lambda x, y: torch.bmm(x, y.mT),
    "ones": lambda x, _: torch.bmm(x.new_ones(len(x), 1, x.shape[1]), x),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_gives_the_same_bits_in_every_slot(name: str) -> None:
    generator, operation = torch.Generator().manual_seed(0), OPERATIONS[name]
    for rows, columns in ((1, 3), (5, 7), (2, 7), (17, 33), (64, 5), (64, 7), (128, 10), (64, 16)):
        for _ in range(5):
            x, y = torch.randn(2, 5, rows, columns, generator=generator)
            moved = torch.randperm(5, generator=generator)
            assert torch.equal(operation(x, y)[moved], operation(x[moved], y[moved]))


SEVEN = Shape(state_dim=1, action_dim=21, if_discrete=True, action_dims=(3,) * 7)
SHAPES = [
    *(Shape(state_dim=1, action_dim=size) for size in (5, 7, 10, 17)),
    *(Shape(state_dim=1, action_dim=size, if_discrete=True) for size in (5, 7, 10)),
    SEVEN,
    replace(SEVEN, autoregressive=True),
]


def found(shape: Shape, outputs: Tensor, noise: Tensor, weights: dict[str, Tensor]) -> list[Tensor]:
    """All results of a distribution: samples, log-probabilities, entropies and gradients."""
    ours, kept = distribution_of(shape)(shape, outputs, weights), torch.empty(noise.shape)
    ours.sample(noise, kept)
    leaves = [part.requires_grad_() for part in (outputs, *weights.values())]
    numbers = [ours.log_prob(kept), ours.entropy()]
    return [kept, *numbers, *torch.autograd.grad(sum(one.sum() for one in numbers), leaves)]


@pytest.mark.parametrize("shape", SHAPES)
def test_distribution_gives_the_same_bits_in_every_slot(shape: Shape) -> None:
    """Seven choices: torch adds five and more in an order that depends on the place."""
    generator = torch.Generator().manual_seed(0)
    sizes = {} if shape.if_discrete else {"action_std_log": (1, shape.action_dim)}
    for index, size in enumerate(shape.choices):
        if shape.autoregressive and index:
            sizes[f"chain.{index}.weight"] = (sum(shape.choices[:index]), size)
    for rows in (1, 3, 13, 50):
        outputs = torch.randn(5, rows, shape.action_dim, generator=generator)
        noise = torch.rand(5, rows, distribution_of(shape).columns(shape), generator=generator)
        weights = {name: torch.randn(5, *size, generator=generator) for name, size in sizes.items()}
        moved = torch.randperm(5, generator=generator)
        elsewhere = {name: part[moved] for name, part in weights.items()}
        there = found(shape, outputs[moved], noise[moved], elsewhere)
        for one, other in zip(found(shape, outputs, noise, weights), there, strict=True):
            assert torch.equal(one[moved], other)
