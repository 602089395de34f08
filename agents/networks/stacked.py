"""G copies of one of ElegantRL's networks, run as batched matrix products under autograd.

Used by SAC and D3QN, whose native kernels read and write `Stack.flat`. (PPO's networks are in
`sweepd.agents.networks.mlp`, with a backward pass by hand.) No operation mixes slots, and no tensor
shape depends on how many of them are occupied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sweepd.agents.networks.activation import RELU, activated
from sweepd.agents.networks.optimizer import FlatAdam
from sweepd.agents.networks.weights import StateDict, aligned
from sweepd.envs.support.errors import InputError

_ONES = ("state_std", "value_std")  # the normalisers that scale; the others shift


class Stack:
    """G networks with the linear layers of an ElegantRL module; empty slots hold zeros.

    Attributes:
        flat: (1, G, P).
        layers: (G, in, out) weight and (G, 1, out) bias by the module's names, views of `flat` that
            are leaves of autograd.
        normalisers: (G, 1, k) by name: `state_avg` and `state_std`, and `value_avg` and
            `value_std` where the module has them.
        clip: bound of the normalised observations; infinite without one.
        activation: between layers (`sweepd.agents.networks.activation`).
        optimizer: of a network that learns.
    """

    def __init__(
        self,
        module: nn.Module,
        slots: int,
        device: torch.device,
        *,
        learns: bool = True,
        clip: float = math.inf,
        activation: str = RELU,
    ) -> None:
        sizes = [
            (name, part.weight.mT.shape)
            for name, part in module.named_modules()
            if isinstance(part, nn.Linear)
        ]
        total = sum(aligned(size.numel()) + aligned(size[1]) for _, size in sizes)
        self.flat = torch.zeros(1, slots, total, device=device)
        self._sizes, self.clip, self.activation = sizes, clip, activation
        self.layers = _cut(self.flat, sizes)
        self.normalisers = {
            name: torch.full((slots, 1, part.numel()), float(name in _ONES), device=device)
            for name, part in module.named_parameters()
            if not part.requires_grad
        }
        if learns:
            self.optimizer = FlatAdam(self.flat)
            self._leaves = [leaf.requires_grad_() for pair in self.layers.values() for leaf in pair]
            self._grads = [
                leaf for pair in _cut(self.optimizer.grad, sizes).values() for leaf in pair
            ]

    def copy(self) -> Stack:
        """Copy the networks as they are now; the copies do not learn."""
        other = Stack.__new__(Stack)  # without an optimizer and its moments
        other.flat, other.clip, other.activation = self.flat.clone(), self.clip, self.activation
        other.layers = _cut(other.flat, self._sizes)
        other.normalisers = {name: part.clone() for name, part in self.normalisers.items()}
        return other

    def linear(self, name: str, x: Tensor) -> Tensor:
        """Apply one layer: (G, rows, in) to (G, rows, out)."""
        result: Tensor = _Affine.apply(x, *self.layers[name])  # type: ignore[no-untyped-call]
        return result

    def chain_names(self, prefix: str) -> list[str]:
        """Return the names of a `Sequential`'s layers, in order."""
        return [name for name in self.layers if name.startswith(f"{prefix}.")]

    def chain(self, prefix: str, x: Tensor, *, raw: bool = True) -> Tensor:
        """Apply a `Sequential`'s layers, with activations between them and, unless `raw`, last."""
        names = self.chain_names(prefix)
        for name in names[:-1]:
            x = activated(self.activation, self.linear(name, x))
        x = self.linear(names[-1], x)
        return x if raw else activated(self.activation, x)

    def state(self, obs: Tensor) -> Tensor:
        """Normalise observations (G, rows, k), dropping columns that the network does not read."""
        avg, std = self.normalisers["state_avg"], self.normalisers["state_std"]
        normalised = (obs[..., : avg.shape[-1]] - avg) / std
        return normalised.clamp_(-self.clip, self.clip) if self.clip < math.inf else normalised

    def value(self, output: Tensor) -> Tensor:
        """Convert outputs to units of returns."""
        return output * self.normalisers["value_std"] + self.normalisers["value_avg"]

    def gradients(self, losses: Tensor) -> Tensor:
        """Compute the gradients of losses (G,) for `optimizer.apply`; return their norms (G,)."""
        with torch.enable_grad():
            # Each member's loss depends on its own weights only, so the gradient of the sum holds
            # every member's own gradient.
            total = losses.sum()
        torch._foreach_copy_(self._grads, torch.autograd.grad(total, self._leaves))
        norms: Tensor = torch.linalg.vector_norm(self.optimizer.grad[0], dim=1)
        return norms

    @torch.no_grad()
    def follow(self, other: Stack, tau: Tensor, active: Tensor) -> None:
        """Update a target network: θ ← τ θ_other + (1 - τ) θ.

        Args:
            other: the trained network.
            tau: (G, 1), τ.
            active: (G,) bool, members to update.
        """
        moved = other.flat[0] * tau + self.flat[0] * (1.0 - tau)
        self.flat[0].copy_(torch.where(active.unsqueeze(-1), moved, self.flat[0]))

    def clear(self, slot: int) -> None:
        """Reset a slot and its optimizer."""
        self.flat[:, slot] = 0
        for name, part in self.normalisers.items():
            part[slot] = float(name in _ONES)
        if hasattr(self, "optimizer"):
            self.optimizer.reset(slot)

    @torch.no_grad()
    def import_member(self, slot: int, given: Mapping[str, Tensor]) -> None:
        """Load a module's `state_dict` into a slot.

        Raises:
            InputError: names or sizes do not fit.
        """
        parts = self._named(slot)
        if set(given) != set(parts):
            raise InputError(
                f"The network's tensors should be {sorted(parts)}, and are {sorted(given)}."
            )
        for name, part in parts.items():
            if given[name].shape != part.shape:
                raise InputError(
                    f"The network's {name} is {tuple(given[name].shape)}, not {tuple(part.shape)}."
                )
        self.clear(slot)
        for name, part in parts.items():
            part.copy_(given[name])

    def export_member(self, slot: int) -> StateDict:
        """Return CPU copies as the module's `state_dict`."""
        return {
            name: part.to("cpu", copy=True).contiguous() for name, part in self._named(slot).items()
        }

    def tensors(self, slot: int) -> StateDict:
        """Return views of a member's weights, normalisers, and optimizer state if it learns."""
        own = {"weights": self.flat[0, slot]} | {
            name: part[slot] for name, part in self.normalisers.items()
        }
        if hasattr(self, "optimizer"):
            adam = self.optimizer
            own |= {
                "adam_m": adam.m[0, slot],
                "adam_v": adam.v[0, slot],
                "adam_step": adam.step[slot],
            }
        return own

    def named(self) -> StateDict:
        """Return views of all slots, (G, …) by the names of the module's `state_dict`."""
        named = {name: part[:, 0] for name, part in self.normalisers.items()}
        for name, (weight, bias) in self.layers.items():
            named[f"{name}.weight"], named[f"{name}.bias"] = (
                weight.detach().mT,
                bias.detach()[:, 0],
            )
        return named

    def _named(self, slot: int) -> StateDict:
        return {name: part[slot] for name, part in self.named().items()}


class _Affine(torch.autograd.Function):
    """x @ weight + bias for every member.

    The bias gradient is a product with ones: faster than a reduction, and the same bits in every
    slot.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.baddbmm(bias, x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (x, weight) = grads, ctx.saved_tensors
        d_x = torch.bmm(grad, weight.mT) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return d_x, None, None
        ones = grad.new_ones(grad.shape[0], 1, grad.shape[1])
        return d_x, torch.bmm(x.mT, grad), torch.bmm(ones, grad)


def _cut(flat: Tensor, sizes: Sequence[tuple[str, torch.Size]]) -> dict[str, tuple[Tensor, Tensor]]:
    """Return weights (G, in, out) and biases (G, 1, out) as views of a flat (1, G, P) tensor."""
    rows, start, found = flat[0], 0, {}
    for name, (before, after) in sizes:
        weight = rows[:, start : start + before * after].view(-1, before, after).detach()
        start += aligned(before * after)
        found[name] = weight, rows[:, start : start + after].view(-1, 1, after).detach()
        start += aligned(after)
    return found
