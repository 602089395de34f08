"""Copies from the host to a device that do not wait for the device."""

from __future__ import annotations

import torch
from torch import Tensor


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on a device; without a copy if it is there already.

    The copy takes its place among the device's operations, and the host goes on. From pageable
    memory, as in `tensor.to(device)`, the host would wait until all operations before it are done.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
