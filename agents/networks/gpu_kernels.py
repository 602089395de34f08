"""Fused kernels for GPUs: Adam, PPO's loss and sampling as one launch each (`gpu_kernels.cu`).

NVRTC (on AMD cards hiprtc), which comes with torch, compiles them at their first use in a process.
They are tested there against torch's operations. Where that fails, torch's operations are used; a
warning says so once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("gpu_kernels.cu")
NAMES = ("adam", "gaussian_loss", "categorical_loss", "gaussian_sample", "categorical_sample")
THREADS = 128  # per block
# Runs a kernel on (blocks, rows of blocks) of `THREADS` threads, with tensors and numbers.
Launch = Callable[[tuple[int, int], Sequence[Tensor | int]], None]


class GpuKernels:
    """The kernels by name. Their arguments are those of the functions in `gpu_kernels.cu`."""

    def __init__(self, launches: Mapping[str, Launch]) -> None:
        self._launches = launches

    def run(self, name: str, threads: int, *arguments: Tensor | int, rows: int = 1) -> None:
        """Run a kernel.

        Args:
            name: its name.
            threads: number of threads, at least.
            arguments: contiguous tensors, or views whose strides the kernel is told, and numbers.
            rows: number of rows of threads.
        """
        self._launches[name]((-(-threads // THREADS), rows), arguments)


def kernels_for(device: torch.device) -> GpuKernels | None:
    """Return the kernels of a device; None where torch's operations are used."""
    return _compiled(device) if device.type == "cuda" else None


@cache
def _compiled(device: torch.device) -> GpuKernels | None:
    source = SOURCE.read_text(encoding="utf-8")

    def launch_of(name: str) -> Launch:
        kernel = torch.cuda._compile_kernel(source, name)

        def launch(blocks: tuple[int, int], arguments: Sequence[Tensor | int]) -> None:
            with torch.cuda.device(device):  # torch launches on the current one
                kernel(grid=(*blocks, 1), block=(THREADS, 1, 1), args=[*arguments])

        return launch

    # Anything may be missing: the compiler's library, torch's private function, the driver.
    try:
        with torch.cuda.device(device), _no_toolkit_needed():
            found = GpuKernels({name: launch_of(name) for name in NAMES})
            agrees = adam_agrees(found, device) and samples_agree(found, device)
    except Exception as error:
        _warn(f"{type(error).__name__}: {error}")
        return None
    if not agrees:
        _warn("they fail their test against torch's operations")
        return None
    return found


@contextmanager
def _no_toolkit_needed() -> Iterator[None]:
    """Let torch compile where the CUDA or ROCm toolkit, whose headers it offers, is missing."""
    from torch.utils import cpp_extension  # slow to import, and only needed on GPUs

    homes = {name: getattr(cpp_extension, name) for name in ("CUDA_HOME", "ROCM_HOME")}
    try:
        for name, home in homes.items():
            setattr(cpp_extension, name, home or "/usr")
        yield
    finally:
        for name, home in homes.items():
            setattr(cpp_extension, name, home)


def _warn(why: str) -> None:
    logging.getLogger("sweepd").warning(
        "no fused kernels on the GPU, torch's operations instead (more launches): %s", why
    )


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
