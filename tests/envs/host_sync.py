"""A guard that makes host synchronisation an error."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class NoHostSync(TorchDispatchMode):
    """Raises on operations that make the host wait or make a shape depend on values."""

    FORBIDDEN = (
        "_local_scalar_dense",
        "item",
        "is_nonzero",
        "equal",
        "nonzero",
        "nonzero_numpy",
        "argwhere",
        "masked_select",
        "unique_consecutive",
        "unique_dim",
        "_unique2",
        "bincount",
        "repeat_interleave.Tensor",
    )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.")
        if name.split(".")[0] in self.FORBIDDEN or name in self.FORBIDDEN:
            raise AssertionError(f"{name} asks the device for a value")
        if name.startswith(("index.", "index_put")):
            for index in args[1]:
                if index is not None and index.dtype in (torch.bool, torch.uint8):
                    raise AssertionError(f"{name} with a mask has a shape that depends on values")
        return func(*args, **(kwargs or {}))
