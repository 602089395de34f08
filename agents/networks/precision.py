"""How exactly single-precision products are computed: a choice of the study, since its numbers follow from it.

Weights, Adam and everything between the products stay in float32 whatever the choice.
"""

from __future__ import annotations

from typing import Any

import torch

from envs.support.errors import InputError

# By torch's own name for it (`torch.set_float32_matmul_precision`).
PRECISIONS = {"fp32": "highest", "tf32": "high", "bf16": "medium"}


def set_precision(name: str, device: torch.device) -> None:
    """Have this process's float32 products computed in full (fp32), with factors rounded to 10 bits of mantissa (tf32,
    on graphics cards that have it), or to 7 (bf16, on processors with AMX).

    The choice holds for matrix products and for cuDNN's convolutions and recurrent layers, which torch computes in TF32
    by default; oneDNN's on the processor stay in float32. cuDNN is kept to deterministic algorithms, chosen without
    timing them.

    Raises InputError where the device can't: another precision in its place would be another study's numbers.
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
            f"--precision bf16: {device} is not a processor with AMX; use fp32, or tf32 on an NVIDIA card"
        )
    torch.set_float32_matmul_precision(PRECISIONS[name])
    cudnn: Any = torch.backends.cudnn
    onednn: Any = torch.backends.mkldnn
    own = "tf32" if name == "tf32" else "ieee"
    # The older flag says the same as the newer settings: torch refuses to read it where they disagree.
    cudnn.allow_tf32 = own == "tf32"
    for part, precision in (
        (cudnn.conv, own),
        (cudnn.rnn, own),
        (onednn.conv, "ieee"),
        (onednn.rnn, "ieee"),
    ):
        part.fp32_precision = precision
    cudnn.deterministic, cudnn.benchmark = True, False


def _has_tf32(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device)[0] >= 8
