"""Layers with a backward pass of their own: finite differences, torch's functions, and bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from sweepd.agents.networks import portable
from sweepd.agents.networks.activation import ACTIVATIONS, activated
from sweepd.agents.networks.convolution import Filters, convolved
from sweepd.agents.networks.items import look_up
from sweepd.agents.networks.layers import affine
from sweepd.agents.networks.recurrence import sigmoid
from tests.agents.networks.plain import ACTIVATED

IMAGE, FILTERS = (2, 8, 7), (Filters(3, 3, 2), Filters(4, 2, 1))


def numbers(*size: int) -> Tensor:
    return torch.randn(size, dtype=torch.float64, requires_grad=True)


def convolution(x: Tensor, *weights: Tensor) -> Tensor:
    names = [f"conv.{index}.{part}" for index in range(2) for part in ("weight", "bias")]
    return convolved(dict(zip(names, weights, strict=True)), IMAGE, FILTERS, x)


def test_gradients_equal_finite_differences() -> None:
    torch.manual_seed(0)
    at = torch.tensor([0, 3, 3, 1, 3])
    filters = [numbers(2, 3, 18), numbers(2, 1, 3), numbers(2, 4, 12), numbers(2, 1, 4)]
    cases: list[tuple[Callable[..., Any], list[Tensor]]] = [
        (affine, [numbers(2, 5, 3), numbers(2, 3, 4), numbers(2, 1, 4)]),
        (sigmoid, [numbers(11)]),
        (portable.exp, [numbers(11)]),
        (lambda table: look_up(table, at), [numbers(4, 3)]),
        (convolution, [numbers(2, 3, 112), *filters]),
    ]
    for function, inputs in cases:
        assert gradcheck(function, inputs)


def test_functions_and_derivatives_are_torchs() -> None:
    """At 0, too, where autograd would find 0 as the derivative of |x|."""
    x = torch.cat((torch.linspace(-30, 30, 1001), torch.zeros(1))).double().requires_grad_()
    for own, theirs in ((portable.exp, torch.exp), (sigmoid, torch.sigmoid)):
        torch.testing.assert_close(own(x), theirs(x))
        slopes = [torch.autograd.grad(function(x).sum(), x)[0] for function in (own, theirs)]
        torch.testing.assert_close(*slopes)
    assert torch.autograd.grad(portable.exp(x).sum(), x)[0][-1] == 1.0


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations_are_torchs_modules(kind: str) -> None:
    z = torch.linspace(-6, 6, 101, dtype=torch.float64)
    assert torch.equal(activated(kind, z.clone(), {}, "net.0"), ACTIVATED[kind]()(z))


def test_sigmoids_have_the_same_bits_everywhere_in_a_tensor() -> None:
    x = torch.randn(3)
    wanted = sigmoid(x)
    for size in range(3, 40):
        for start in range(size - 2):
            whole = torch.randn(size)
            whole[start : start + 3] = x
            assert torch.equal(sigmoid(whole)[start : start + 3], wanted)


def test_rows_of_a_table_are_added_in_order_at_any_number_of_threads() -> None:
    """In float32, where every other order would give other bits."""
    generator = torch.Generator().manual_seed(1)
    for count in (7, 60_000):
        at = torch.randint(0, 20, (count,), generator=generator)
        rows = torch.randn(count, 16, generator=generator)
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            table = torch.zeros(20, 16, requires_grad=True)
            found += torch.autograd.grad(look_up(table, at), table, rows)
            # The same rows among those of another member.
            both = torch.zeros(40, 16, requires_grad=True)
            indices, every = torch.cat((at[:999], at + 20)), torch.cat((rows[:999], rows))
            found.append(torch.autograd.grad(look_up(both, indices), both, every)[0][20:])
        for other in found[1:]:
            assert torch.equal(found[0], other)
    torch.set_num_threads(1)


def test_patches_extracted_in_parts_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    filters = [numbers(2, 3, 18), numbers(2, 1, 3), numbers(2, 4, 12), numbers(2, 1, 4)]
    inputs = [numbers(2, 7, 112), *filters]
    found = []
    for patches in (2**19, 400):  # all rows at once, and one or two
        monkeypatch.setattr("sweepd.agents.networks.convolution._PATCHES", patches)
        output = convolution(*inputs)
        found.append([output, *torch.autograd.grad(output.square().sum(), inputs)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
