"""A guard that makes host synchronisation an error."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class HostSync(AssertionError):
    """An operation made the host wait for the device."""


class NoHostSync(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises `HostSync` on operations that make the host wait, or a shape depend on values."""

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
            raise HostSync(f"{name} asks the device for a value")
        if name.startswith(("index.", "index_put")):
            for index in args[1]:
                if index is not None and index.dtype in (torch.bool, torch.uint8):
                    raise HostSync(f"{name} with a mask has a shape that depends on values")
        return func(*args, **(kwargs or {}))


class OneHotUnchecked(TorchFunctionMode):
    """Replaces `one_hot`, which reads its argument on CPUs to check it, though not on GPUs."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func is not torch.nn.functional.one_hot:
            return func(*args, **(kwargs or {}))
        index, *rest = args
        (number,) = rest or (kwargs or {}).values()
        return index.new_zeros(*index.shape, number).scatter_(-1, index.unsqueeze(-1), 1)
