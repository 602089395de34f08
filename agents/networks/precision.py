"""The precision of float32 matrix products; part of a study's definition, since it affects results.

Weights, Adam and everything between the products are float32 in any case.
"""

from __future__ import annotations

from typing import Any

import torch

from sweepd.envs.support.errors import InputError

# Names of `torch.set_float32_matmul_precision`.
PRECISIONS = {"fp32": "highest", "tf32": "high", "bf16": "medium"}


def set_precision(name: str, device: torch.device) -> None:
    """Set the precision of this process's float32 products.

    "fp32" computes them in full; "tf32" rounds factors to 10 bits of mantissa (NVIDIA cards since
    2020); "bf16" to 7 bits (processors with AMX). The setting covers matrix products and cuDNN's
    convolutions and recurrent layers, which torch computes in TF32 by default. oneDNN's stay in
    float32. cuDNN uses deterministic algorithms, chosen without timing them.

    Raises:
        InputError: the name is not known, or the device does not support it. (There is no fallback:
            another precision gives other results.)
    """
    if name not in PRECISIONS:
        raise InputError(
            f"--precision {name!r} is not known; choose one of {', '.join(PRECISIONS)}"
        )
    if name == "tf32" and not _has_tf32(device):
        raise InputError(
            f"--precision tf32: {device} has no TF32 (it is in NVIDIA cards since 2020); use fp32"
        )
    if name == "bf16" and not (
        device.type == "cpu" and torch.cpu.get_capabilities().get("amx_bf16", False)
    ):
        raise InputError(
            f"--precision bf16: {device} is not a processor with AMX; use fp32, or tf32 on an "
            "NVIDIA card"
        )
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


def _has_tf32(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device)[0] >= 8
