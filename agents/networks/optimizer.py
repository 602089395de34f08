"""Adam for all members: each network has its own clip, each member its step count, learning rate, epsilon and decay."""

from __future__ import annotations

import torch
from torch import Tensor

from agents.networks.shape import Shape
from agents.networks.weights import Leaves, leaf_views

BETA1, BETA2 = 0.9, 0.999


class FlatAdam:
    """AdamW (Loshchilov & Hutter, 2019; Adam where weight_decay is 0) on the flat weights of K G networks, K kinds of G
    members: torch's fused kernel, once per network.

    One pass of that kernel over a network that then still lies in the cache takes less than half the time of the same
    arithmetic over all networks at once, one operation after the other. A call is one launch, and reads nothing back.

    m, v: (K, G, P) moments; grad: likewise, to be filled before `apply`; step: (G,) updates that a member has made; lr,
    eps, weight_decay: one number per slot.
    """

    def __init__(self, flat: Tensor) -> None:
        kinds, slots, _ = flat.shape
        self.m, self.v, self.grad = (torch.zeros_like(flat) for _ in range(3))
        self.step = torch.zeros(slots, device=flat.device)
        self.lr, self.eps, self.weight_decay = [0.0] * slots, [1e-8] * slots, [0.0] * slots
        self._skip = torch.ones(slots, dtype=torch.float32, device=flat.device)
        # What the kernel takes of every network, as lists: weights, gradient, moments, step; and whether to skip it.
        self._networks = [
            (
                slot,
                [flat[kind, slot]],
                [self.grad[kind, slot]],
                [self.m[kind, slot]],
                [self.v[kind, slot]],
                [self.step[slot]],
                self._skip[slot],
            )
            for kind in range(kinds)
            for slot in range(slots)
        ]

    def apply(self, norms: Tensor, max_norm: Tensor, active: Tensor) -> None:
        """One update of the members in `active` (G,) bool with the gradients in `grad`, scaled so that no network's
        norm, `norms` (K, G), exceeds `max_norm` (G,). Others keep every bit of their weights, moments and step,
        whatever their gradients.
        """
        clip = (max_norm / (norms + 1e-6)).clamp_(max=1.0)
        self.grad.mul_(
            torch.where(active, clip, 0.0).unsqueeze(-1)
        )  # not NaN, which would stay in the padding
        self.step += active
        self._skip.copy_(~active)
        for slot, weights, grad, m, v, step, skip in self._networks:
            torch._fused_adamw_(
                weights,
                grad,
                m,
                v,
                [],
                step,
                lr=self.lr[slot],
                beta1=BETA1,
                beta2=BETA2,
                eps=self.eps[slot],
                weight_decay=self.weight_decay[slot],
                amsgrad=False,
                maximize=False,
                found_inf=skip,
            )

    def reset(self, slot: int) -> None:
        """Forget a slot's moments and step."""
        self.m[:, slot], self.v[:, slot], self.step[slot] = 0, 0, 0


class Adam(FlatAdam):
    """That of a program's actors and critics, (2, G, P)."""

    def __init__(self, flat: Tensor, shape: Shape) -> None:
        super().__init__(flat)
        self._grad_leaves = [leaf for leaf in leaf_views(self.grad, shape).every() if leaf.numel()]

    def norms(self, grads: Leaves) -> Tensor:
        """Take the gradients over for `apply`. Returns (2, G): the norm of every actor's (row 0) and critic's (row
        1).
        """
        torch._foreach_copy_(self._grad_leaves, [leaf for leaf in grads.every() if leaf.numel()])
        norms: Tensor = torch.linalg.vector_norm(self.grad, dim=2)
        return norms
