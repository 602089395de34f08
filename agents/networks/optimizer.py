"""Adam for all members: gradient clipping per network; step, rate, epsilon and decay per member.

With policies per seat, both actors of a member count as one network here, and both critics: they
minimise one loss, and a common factor keeps the direction of its gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agents.networks.shape import Shape
from agents.networks.weights import Leaves, leaf_views

BETA1, BETA2 = 0.9, 0.999


class FlatAdam:
    """AdamW (Loshchilov & Hutter, 2019) on the flat weights of K networks of G members.

    With gradient g after clipping, step count t, rate η, decay w, β1 = 0.9, β2 = 0.999:

        θ ← θ - η w θ
        m ← β1 m + (1 - β1) g,    v ← β2 v + (1 - β2) g²
        θ ← θ - η (m / (1 - β1^t)) / (√(v / (1 - β2^t)) + eps)

    (Adam, Kingma & Ba, 2015, where w = 0.) It calls torch's fused kernel once per network, which
    then is still in the cache: less than half the time of the same operations over all networks at
    once. A call is one launch, and nothing is read back from the device.

    Attributes:
        m: (K, G, P), first moments.
        v: (K, G, P), second moments.
        grad: (K, G, P), to be filled before `apply`.
        step: (G,), updates that each member has made.
        lr: learning rate per slot.
        eps: epsilon per slot.
        weight_decay: per slot.
    """

    def __init__(self, flat: Tensor) -> None:
        kinds, slots, _ = flat.shape
        self.m, self.v, self.grad = (torch.zeros_like(flat) for _ in range(3))
        self.step = torch.zeros(slots, device=flat.device)
        self.lr, self.eps, self.weight_decay = [0.0] * slots, [1e-8] * slots, [0.0] * slots
        self._skip = torch.ones(slots, dtype=torch.float32, device=flat.device)
        # Arguments of the kernel for each network: lists of weights, gradients, moments and steps,
        # and the flag that skips it.
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
        """Update the active members with the gradients in `grad`, clipped to `max_norm`.

        Clipping scales a network's gradient by min(1, max_norm / (norm + 1e-6)), as
        `torch.nn.utils.clip_grad_norm_` does. The other members keep every bit of their weights,
        moments and step, whatever their gradients.

        Args:
            norms: (K, G), gradient norms.
            max_norm: (G,), the largest norms allowed.
            active: (G,) bool, members to update.
        """
        clip = (max_norm / (norms + 1e-6)).clamp_(max=1.0)
        # 0 for inactive members: a NaN would stay in the padding.
        self.grad.mul_(torch.where(active, clip, 0.0).unsqueeze(-1))
        # The kernel takes the step count as given; its own skip flag (meant for mixed precision)
        # leaves weights and moments alone where it is 1.
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
        """Zero a slot's moments and step."""
        self.m[:, slot], self.v[:, slot], self.step[slot] = 0, 0, 0


class Adam(FlatAdam):
    """The optimizer of a program's actors and critics, whose flat weights are (2, G, …)."""

    def __init__(self, flat: Tensor, shape: Shape) -> None:
        super().__init__(flat)
        self._grad_leaves = [leaf for leaf in leaf_views(self.grad, shape).every() if leaf.numel()]

    def norms(self, grads: Leaves) -> Tensor:
        """Copy the gradients into `grad` and return their norms, (2, G): actors, then critics."""
        # Gradients are computed in contiguous tensors, and clipped and applied in the flat layout.
        # Its padding stays 0, so norms are those of the leaves.
        torch._foreach_copy_(self._grad_leaves, [leaf for leaf in grads.every() if leaf.numel()])
        norms: Tensor = torch.linalg.vector_norm(self.grad, dim=2)
        return norms
