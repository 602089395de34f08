"""The precision of float32 matrix products; part of a study's definition, since it affects results.

Weights, Adam and everything between the products are float32 in any case.
"""

from __future__ import annotations

from typing import Any

import torch

from sweepd.agents.networks.products import BF16, has_bf16
from sweepd.envs.support.errors import InputError

# Names of `torch.set_float32_matmul_precision`.
PRECISIONS = {"fp32": "highest", "tf32": "high", "bf16": BF16}


def set_precision(name: str, device: torch.device) -> None:
    """Set the precision of this process's float32 products.

    "fp32" computes them in full; "tf32" rounds factors to 10 bits of mantissa (NVIDIA cards since
    2020); "bf16" to 7 bits (cards, and processors with AMX). Sums are float32 in all of them. The
    setting covers matrix products and cuDNN's convolutions and recurrent layers, which torch
    computes in TF32 by default. oneDNN's stay in float32. cuDNN uses deterministic algorithms,
    chosen without timing them.

    On cards, "bf16" rounds the factors of networks in `sweepd.agents.networks.products`; torch takes
    TF32 for the few other products.

    Raises:
        InputError: the name is not known, or the device does not support it. (There is no fallback:
            another precision gives other results.)
    """
    if name not in PRECISIONS:
        raise InputError(
            f"--precision {name!r} is not known; choose one of {', '.join(PRECISIONS)}"
        )
    if why := why_not(name, device):
        raise InputError(f"--precision {name}: {device} {why}; use fp32")
    # Process-wide: torch has no setting per operation or tensor.
    torch.set_float32_matmul_precision(PRECISIONS[name])
    cudnn: Any = torch.backends.cudnn
    onednn: Any = torch.backends.mkldnn
    own = "tf32" if name == "tf32" else "ieee"
    # The older flag must agree with the newer settings, or torch refuses to read it.
    cudnn.allow_tf32 = own == "tf32"
    for part, precision in (
        (cudnn.conv, own),
        (cudnn.rnn, own),
        (onednn.conv, "ieee"),
        (onednn.rnn, "ieee"),
    ):
        part.fp32_precision = precision
    # Timing could choose another algorithm, and so other bits, in every run.
    cudnn.deterministic, cudnn.benchmark = True, False


def why_not(name: str, device: torch.device) -> str:
    """Return why a device cannot compute in a precision, as the end of a sentence; "" if it can."""
    if name == "fp32":
        return ""
    if name == "tf32":
        known = "it is in NVIDIA cards since 2020"
        return "" if _since_2020(device) else f"has no TF32 ({known})"
    if device.type == "cpu":
        # Without AMX, torch would convert every factor, and still multiply in float32.
        amx = torch.cpu.get_capabilities().get("amx_bf16", False)
        return "" if amx else "has no bfloat16 products (they are in processors with AMX)"
    if torch.version.hip is None and not _since_2020(device):
        return "has no bfloat16 products (they are in NVIDIA cards since 2020)"
    if not has_bf16(device):
        return f"does not sum bfloat16 products in float32 with torch {torch.__version__}"
    return ""


def _since_2020(device: torch.device) -> bool:
    """Return whether a device is an NVIDIA card of the Ampere generation, or a later one."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device)[0] >= 8
