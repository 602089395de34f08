"""Fused kernels for GPUs: Adam, PPO's loss and sampling as one launch each (`gpu_kernels.cu`).

`sweepd.envs.native.gpu` compiles them. They are tested on the card against known numbers.
"""

from __future__ import annotations

from pathlib import Path

import torch

from sweepd.envs.native.gpu import GpuKernels, KernelSource


def kernels_for(device: torch.device) -> GpuKernels | None:
    """Return the kernels of a device; None where torch's operations are used."""
    return KERNELS.on(device)


def adam_agrees(kernels: GpuKernels, device: torch.device) -> bool:
    """Test Adam with known numbers: the first step moves each weight by η against its gradient."""
    flat, m, v = torch.ones(3, 2, 2, 300, device=device).unbind(0)
    m.zero_()
    v.zero_()
    grad = torch.linspace(-1.0, 1.0, 1200, device=device).view(2, 2, 300)
    norms, largest = torch.ones(2, 2, device=device), torch.full((2,), 2.0, device=device)
    active = torch.tensor([True, False], device=device)
    step = torch.ones(2, device=device)
    rates = torch.tensor([[0.1], [0.999], [1.0], [0.25], [0.0]], device=device).repeat(1, 2)
    kernels.run("adam", 300, flat, m, v, grad, norms, largest, active, step, rates, 2, 300, rows=4)
    wanted = torch.ones_like(flat)
    wanted[:, 0] -= 0.25 * grad[:, 0].sign()
    return torch.allclose(flat, wanted, atol=1e-4)


def samples_agree(kernels: GpuKernels, device: torch.device) -> bool:
    """Test sampling with known numbers, those of the second of two steps."""
    step = torch.ones(1, dtype=torch.int64, device=device)
    noises = torch.tensor([[0.9, 0.9, 0.9, 0.9], [0.1, 0.3, 0.6, 0.9]], device=device)
    stored, chosen = torch.zeros(2, 2, device=device), step.repeat(4)
    # Two slots with two rows of four equally likely options.
    outputs = torch.zeros(2, 2, 4, device=device)
    kernels.run("categorical_sample", 4, outputs, noises, step, stored, chosen, 2, 2, 4)
    wanted = torch.arange(4, device=device)
    if not (torch.equal(chosen, wanted) and torch.equal(stored.flatten(), wanted.float())):
        return False
    means = torch.tensor([[[1.0], [2.0]], [[3.0], [torch.nan]]], device=device)
    log_std = torch.tensor([0.0, 2.0], device=device).log()  # σ of 0 and 2
    drawn, actions = torch.zeros(2, 2, 1, device=device), torch.zeros(4, 1, device=device)
    kernels.run("gaussian_sample", 4, means, log_std, noises, step, drawn, actions, 1, 2, 2, 1)
    numbers = torch.tensor([1.0, 2.0, 4.2, torch.nan], device=device)
    return torch.allclose(drawn.flatten(), numbers, equal_nan=True) and torch.allclose(
        actions.flatten(), numbers.tanh().nan_to_num(), atol=1e-6
    )


KERNELS = KernelSource(
    of="networks",
    file=Path(__file__).with_name("gpu_kernels.cu"),
    names=("adam", "gaussian_loss", "categorical_loss", "gaussian_sample", "categorical_sample"),
    agrees=lambda found, device: adam_agrees(found, device) and samples_agree(found, device),
)
