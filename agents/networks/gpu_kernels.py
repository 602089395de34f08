"""Fused kernels for GPUs: Adam, PPO's loss and parts of a rollout's step (`gpu_kernels.cu`).

`sweepd.envs.native.gpu` compiles them. They are tested on the card against known numbers.
"""

from __future__ import annotations

from pathlib import Path

import torch

from sweepd.agents.networks.activation import ACTIVATIONS, NATIVE
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


def hidden_agrees(kernels: GpuKernels, device: torch.device) -> bool:
    """Test hidden layers with known numbers: two slots with two rows, and a bias that is added."""
    products = torch.linspace(-3.0, 3.0, 12, device=device).view(2, 2, 3)
    bias = torch.tensor([[[0.5, 0.0, -1.0]], [[0.0, 2.0, 0.25]]], device=device)
    for place, name in enumerate(NATIVE):
        x = products.clone()
        kernels.run("hidden_layer", 6, x, bias, 3, 2, 3, place, rows=2)
        if not torch.allclose(x, ACTIVATIONS[name].function(products + bias), rtol=1e-5, atol=1e-6):
            return False
    return True


def samples_agree(kernels: GpuKernels, device: torch.device) -> bool:
    """Test sampling with known numbers, those of the second of two steps."""
    step = torch.ones(1, dtype=torch.int64, device=device)
    noises = torch.tensor([[0.9, 0.9, 0.9, 0.9], [0.1, 0.3, 0.6, 0.9]], device=device)
    # Two slots with two rows of four equally likely options.
    products = torch.tensor([[[1.0, 2.0, 3.0, 4.0]], [[0.0] * 4]], device=device).repeat(1, 2, 1)
    bias = 4.0 - products[:, :1]
    outputs, side = (torch.zeros(2, steps, 2, 4, device=device) for steps in (2, 3))
    chosen, made = step.repeat(4), (noises, step, outputs, side)
    kernels.run("categorical_sample", 4, products, bias, *made, chosen, 4, 2, 2, 4, 2)
    wanted, options = torch.zeros_like(side), torch.arange(4, device=device)
    wanted[:, 1, :, 0] = options.view(2, 2)
    logits = torch.zeros_like(outputs)
    logits[:, 1] = 4.0
    pairs = (chosen, options), (side, wanted), (outputs, logits)
    if not all(torch.equal(*pair) for pair in pairs):
        return False
    products = torch.tensor([[[1.0], [2.0]], [[2.0], [torch.nan]]], device=device)
    bias, log_std = torch.tensor([[0.0, 1.0], [0.0, 2.0]], device=device)
    log_std = log_std.log()  # σ of 0 and 2
    means, actions = torch.zeros(2, 2, 2, 1, device=device), torch.zeros(4, 1, device=device)
    made = (noises, step, means, side)
    kernels.run("gaussian_sample", 4, products, bias, log_std, *made, actions, 1, 2, 2, 1, 2)
    numbers = torch.tensor([1.0, 2.0, 4.2, torch.nan], device=device)
    wanted[:, 1, :, 0] = numbers.view(2, 2)
    own = torch.zeros_like(means)
    own[:, 1] = products + bias.view(2, 1, 1)
    return (
        torch.allclose(means, own, equal_nan=True)
        and torch.allclose(side, wanted, equal_nan=True)
        and torch.allclose(actions.flatten(), numbers.tanh().nan_to_num(), atol=1e-6)
    )


def stores_agree(kernels: GpuKernels, device: torch.device) -> bool:
    """Test storing a step, the second of two: two slots with two rows of three columns."""
    step = torch.ones(1, dtype=torch.int64, device=device)
    obs = torch.linspace(-5.0, 6.0, 12, device=device).view(2, 2, 3)
    avg, std = torch.linspace(-1.0, 2.0, 12, device=device).view(2, 2, 1, 3)
    std, clip = std.abs() + 0.3, torch.full((1,), 4.0, device=device)
    reward, end = obs[..., 0].contiguous(), torch.tensor([True, False, True, True], device=device)
    read, rewards = torch.zeros_like(obs), torch.zeros(2, 2, 2, device=device)
    normalised, raw = torch.zeros(2, 2, 3, 2, 3, device=device)
    ends = torch.zeros(2, 2, 2, 2, dtype=torch.bool, device=device)
    given, kept = (obs, reward, end, ~end, avg, std, clip, step), (normalised, raw, rewards, *ends)
    kernels.run("store_step", 6, *given, read, *kept, 2, 3, 2, rows=2)
    pairs = (
        (normalised[:, 2], read),
        (raw[:, 2], obs),
        (rewards[:, 1], reward),
        (ends[0, :, 1].flatten(), end),
        (ends[1, :, 1].flatten(), ~end),
    )
    elsewhere = (normalised[:, :2], raw[:, :2], rewards[:, 0], ends[:, :, 0])
    return (
        torch.allclose(read, ((obs - avg) / std).clamp(-4.0, 4.0), rtol=1e-6)
        and all(torch.equal(*pair) for pair in pairs)
        and not any(part.any() for part in elsewhere)
    )


_TESTS = (adam_agrees, hidden_agrees, samples_agree, stores_agree)
KERNELS = KernelSource(
    of="networks",
    file=Path(__file__).with_name("gpu_kernels.cu"),
    names=(
        "adam",
        "gaussian_loss",
        "categorical_loss",
        "hidden_layer",
        "gaussian_sample",
        "categorical_sample",
        "store_step",
    ),
    agrees=lambda found, device: all(agrees(found, device) for agrees in _TESTS),
)
