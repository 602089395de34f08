"""Gradients and Adam for all members: clipping per network; step, rate, epsilon, decay per member.

With policies per seat, both actors of a member count as one network here, and both critics: they
minimise one loss, and a common factor keeps the direction of its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sweepd.agents.networks.gpu_kernels import kernels_for
from sweepd.envs.native.gpu import GpuKernels
from sweepd.envs.support.upload import upload

BETA1, BETA2 = 0.9, 0.999


class Adam:
    """AdamW (Loshchilov & Hutter, 2019) on the flat weights of K networks of G members.

    With gradient g after clipping, step count t, rate η, decay w, β1 = 0.9, β2 = 0.999:

        θ ← θ - η w θ
        m ← β1 m + (1 - β1) g,    v ← β2 v + (1 - β2) g²
        θ ← θ - η (m / (1 - β1^t)) / (√(v / (1 - β2^t)) + eps)

    (Adam, Kingma & Ba, 2015, where w = 0.) Nothing is read back from the device. There are three
    paths with the same formula and different rounding:

    - on CPUs, torch's fused kernel, once per network, which then is still in the cache: less than
      half the time of the same operations over all networks at once;
    - on GPUs, a launch costs more than the arithmetic, and torch's fused kernel has one rate,
      epsilon and decay for all its tensors. There, sweepd's own kernel for all networks at once
      (`sweepd.agents.networks.gpu_kernels`), with rates that are tensors, so that a CUDA graph can
      replay it;
    - where that one is missing, torch's operations on all networks at once, as many for any G.

    Attributes:
        m: (K, G, P), first moments.
        v: (K, G, P), second moments.
        grad: (K, G, P), to be filled before `apply`.
        step: (G,), updates that each member has made.
        lr: learning rate per slot. After a change of these three, call `prepare`.
        eps: epsilon per slot.
        weight_decay: per slot.

    Args:
        flat: (K, G, P), the weights.
        leaves: views of them, of which `gradients` computes the gradients: leaves of autograd from
            now on.
        fused: whether to call torch's fused kernel per network; None: on CPUs.
    """

    def __init__(
        self, flat: Tensor, leaves: Sequence[Tensor] = (), *, fused: bool | None = None
    ) -> None:
        kinds, slots, _ = flat.shape
        self._fused = flat.device.type == "cpu" if fused is None else fused
        self._flat = flat
        self.m, self.v, self.grad = (torch.zeros_like(flat) for _ in range(3))
        # The gradient of a leaf has the same place in `grad` as the leaf in the weights.
        self._leaves = [leaf.requires_grad_() for leaf in leaves]
        begin = flat.storage_offset()
        self._grads = [
            self.grad.as_strided(leaf.shape, leaf.stride(), leaf.storage_offset() - begin)
            for leaf in leaves
        ]
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
        self._kernels = None if self._fused else kernels_for(flat.device)
        if not self._fused:
            self._scratch = torch.zeros_like(flat)
            self._log_betas = torch.tensor([[math.log(BETA1)], [math.log(BETA2)]]).to(flat)
            # 1 - β1, β2, 1 - η w, η and eps of active members, and what leaves the others alone.
            self._rates = torch.zeros(5, slots).to(flat)
            self._idle_rates = torch.tensor([[0.0], [1.0], [1.0], [0.0], [1.0]]).to(flat)
            self.prepare()

    def prepare(self) -> None:
        """Copy learning rates, epsilons and decays to the device, once per rollout."""
        if self._fused:
            return  # the kernel takes them from the host
        pairs = list(zip(self.lr, self.weight_decay, strict=True))
        rows = [
            [1.0 - BETA1] * len(pairs),
            [BETA2] * len(pairs),
            [1.0 - lr * decay for lr, decay in pairs],
            self.lr,
            self.eps,
        ]
        # Into the same memory, which a CUDA graph keeps reading.
        rates = torch.tensor(rows, dtype=self._rates.dtype)
        self._rates.copy_(upload(rates, self._rates.device))

    def gradients(
        self, outputs: Sequence[Tensor], grad_outputs: Sequence[Tensor] | None = None
    ) -> Tensor:
        """Compute the gradients of all networks' weights into `grad`; return their norms, (K, G).

        Args:
            outputs: losses (G,), each of which depends on its own member's weights only: so the
                gradient of their sum holds every member's own gradient.
            grad_outputs: if `outputs` are other tensors, the loss's derivatives by them.
        """
        found = torch.autograd.grad(
            outputs,
            self._leaves,
            grad_outputs or [torch.ones_like(output) for output in outputs],
            allow_unused=True,
        )
        pairs = zip(self._grads, found, strict=True)
        used = [(into, grad) for into, grad in pairs if grad is not None]
        torch._foreach_copy_([into for into, _ in used], [grad for _, grad in used])
        norms: Tensor = torch.linalg.vector_norm(self.grad, dim=2)
        return norms

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
        if self._kernels is not None:
            self.step += active
            self._run_kernel(self._kernels, norms, max_norm, active)
            return
        clip = (max_norm / (norms + 1e-6)).clamp_(max=1.0)
        if not self._fused:
            self._apply_to_all(clip.unsqueeze(-1), active)
            return
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

    def _run_kernel(
        self, kernels: GpuKernels, norms: Tensor, max_norm: Tensor, active: Tensor
    ) -> None:
        kinds, slots, size = self._flat.shape
        tensors = (self._flat, self.m, self.v, self.grad, norms, max_norm, active)
        own = (self.step, self._rates, slots, size)
        kernels.run("adam", size, *tensors, *own, rows=kinds * slots)

    def _apply_to_all(self, clip: Tensor, active: Tensor) -> None:
        """Update all networks at once, for any number of members by as many launches.

        Args:
            clip: (K, G, 1), factors on the gradients.
            active: (G,) bool.
        """
        rates = torch.where(active, self._rates, self._idle_rates).unsqueeze(-1)
        one_minus_beta1, beta2, decay, lr, eps = rates.unbind(0)
        # Filled instead of multiplied by 0: an inactive member's gradient may be NaN.
        self.grad.mul_(clip).masked_fill_(~active.unsqueeze(-1), 0.0)
        self.m.lerp_(self.grad, one_minus_beta1)
        self.v.mul_(beta2).addcmul_(self.grad, self.grad, value=1.0 - BETA2)
        # 1 - β^t = -expm1(t log β), which keeps its digits in float32 where β^t is close to 1. At
        # least one step, since 0 / 0 in an empty slot would be NaN.
        self.step += active
        corrections = torch.expm1(self._log_betas * self.step.clamp_min(1.0)).neg_().unsqueeze(-1)
        denominator = torch.div(self.v, corrections[1], out=self._scratch).sqrt_().add_(eps)
        direction = torch.div(self.m, denominator, out=denominator)
        self._flat.mul_(decay).addcmul_(direction, lr / corrections[0], value=-1.0)

    def moves(self, active: Tensor) -> bool:
        """Return whether the next step should move a weight. Waits for the device.

        No step does while gradients are 0, as those of the latest step show.

        Args:
            active: (G,) bool, the members that it will update.
        """
        rates = torch.tensor(self.lr, device=active.device)
        return bool((active & (rates > 0) & (self.grad != 0).any(-1).any(0)).any())

    def tensors(self, slot: int) -> dict[str, Tensor]:
        """Return views of a slot's moments and step, of a single network."""
        return {"adam_m": self.m[0, slot], "adam_v": self.v[0, slot], "adam_step": self.step[slot]}

    def reset(self, slot: int) -> None:
        """Zero a slot's moments and step."""
        self.m[:, slot], self.v[:, slot], self.step[slot] = 0, 0, 0
