"""Adam for all members at once: each network has its own clip, step count, learning rate, epsilon and weight decay."""

from __future__ import annotations

import torch
from torch import Tensor

from agents.networks import Leaves, Shape, leaf_views

BETA1, BETA2 = 0.9, 0.999


class Adam:
    """AdamW (Loshchilov & Hutter, 2019; Adam where weight_decay is 0) on the flat weights of 2 G networks, as torch's
    does it.

    m, v: (2, G, P) moments; step: (G,) float64, updates that a member has made; lr, eps, weight_decay: (G,) float64.
    """

    def __init__(self, flat: Tensor, shape: Shape) -> None:
        slots, device = shape.slots, flat.device
        self._flat = flat
        self._slots = slots
        self.m, self.v, self._grad, self._work = (torch.zeros_like(flat) for _ in range(4))
        self._grad_leaves = leaf_views(self._grad, shape)
        self.step, self.lr, self.weight_decay = (
            torch.zeros(slots, dtype=torch.float64, device=device) for _ in range(3)
        )
        self.eps = torch.full((slots,), 1e-8, dtype=torch.float64, device=device)

    def norms(self, grads: Leaves) -> Tensor:
        """(2, G) float32: the gradient norm of every actor (row 0) and critic (row 1)."""
        slots = self._slots
        shared = torch.stack([_norm(leaf) for leaf in grads.shared()])
        actor = torch.stack([_norm(leaf) for leaf in grads.actor()])
        critic = torch.stack([_norm(leaf) for leaf in grads.critic()])
        return torch.stack(
            (
                torch.linalg.vector_norm(torch.cat((shared[:, :slots], actor)), dim=0),
                torch.linalg.vector_norm(torch.cat((shared[:, slots:], critic)), dim=0),
            )
        )

    def apply(self, grads: Leaves, norms: Tensor, max_norm: Tensor, active: Tensor, *, decay: bool) -> None:
        """One update of the members in `active` (G,) bool, gradients scaled so that no network's norm exceeds
        `max_norm` (G,).

        decay: whether any member has a weight decay; leaving it out where none has changes no bit. A member that is
        not active keeps its weights, moments and step, if its gradients are finite.
        """
        slots = self._slots
        clip = (max_norm / (norms + 1e-6)).clamp_(max=1.0).view(2 * slots, 1, 1)
        into = self._grad_leaves
        for source, target in zip(grads.shared(), into.shared(), strict=True):
            torch.mul(source, clip, out=target)
        for source, target in zip(grads.actor(), into.actor(), strict=True):
            torch.mul(source, clip[:slots], out=target)
        for source, target in zip(grads.critic(), into.critic(), strict=True):
            torch.mul(source, clip[slots:], out=target)

        self.step += active
        # weights -= rate / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps), with the rate moved into the
        # denominator, where one number per member suffices. An infinite denominator leaves the weights as they are.
        rate = self.lr / (1.0 - BETA1**self.step)
        moving = active & (rate > 0)
        scale = torch.where(moving, 1.0 / (rate * torch.sqrt(1.0 - BETA2**self.step)), 1.0)
        offset = torch.where(moving, self.eps / rate, torch.inf)
        first = torch.where(active, 1.0 - BETA1, 0.0)
        second = torch.where(active, BETA2, 1.0)
        keep = torch.where(active, 1.0 - self.lr * self.weight_decay, 1.0)
        table = torch.stack((scale, offset, first, second, keep)).to(self._flat.dtype)
        scale, offset, first, second, keep = table.unsqueeze(-1)  # each (G, 1), the same for both networks of a member

        if decay:
            self._flat.mul_(keep)
        self.m.lerp_(self._grad, first)
        self.v.mul_(second).addcmul_(self._grad, self._grad, value=1.0 - BETA2)
        torch.sqrt(self.v, out=self._work)
        torch.addcmul(offset, self._work, scale, out=self._work)
        self._flat.addcdiv_(self.m, self._work, value=-1.0)

    def reset(self, slot: int) -> None:
        """Forget a slot's moments and step."""
        self.m[:, slot], self.v[:, slot], self.step[slot] = 0, 0, 0


def _norm(leaf: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(leaf.flatten(1), dim=1)
    return norm
