"""The native step, called through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from sweepd.envs.native import threads
from sweepd.envs.native.memory import stride_of
from sweepd.envs.native.structs import c_constant, c_struct

SOURCE = Path(__file__).with_name("src") / "crypto.cpp"
MOST_ASSETS = c_constant(SOURCE, "MOST_ASSETS")
# Tensors that are contiguous; the others are as `sweepd.envs.native.memory` makes them.
WHOLE = ("prices_by_bar", "next_open", "next_fill", "feature_table", "increment", "final_obs")
_State = c_struct(SOURCE, "State")
# The functions of torch's vector library, by kind of processor.
_LOG1P = {"AVX512": "Sleef_log1pd8_u10avx512f", "AVX2": "Sleef_log1pd4_u10avx2"}


class Library:
    """The functions of the compiled library."""

    def __init__(self, path: Path) -> None:
        lib = ctypes.CDLL(str(path))
        state = POINTER(_State)
        self.trade, self.reward = lib.sweepd_crypto_trade, lib.sweepd_crypto_reward
        self.restart = lib.sweepd_crypto_restart
        self.trade.argtypes = [state, c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_int64]
        self.reward.argtypes = [state, c_void_p]
        self.restart.argtypes = [state, c_void_p, c_void_p, c_void_p, c_int64]
        for function in (self.trade, self.reward, self.restart):
            function.restype = None
        self.log1p = _torch_log1p()


class NativeStep:
    """The step of one environment. The tensors are changed in place.

    Args:
        library: the compiled functions.
        sizes: those of `State` in state.h; flags are 0 or 1.
        tensors: those of `State`: the `WHOLE`, contiguous, and the others as
            `sweepd.envs.native.memory` makes them. What the environment has not may be None.
    """

    def __init__(
        self, library: Library, sizes: Mapping[str, int], tensors: Mapping[str, Tensor | None]
    ) -> None:
        self._library, self._rows = library, sizes["rows"]
        for name, tensor in tensors.items():
            _check(name, tensor)
        self._log1p_inside = library.log1p is not None
        self._state = _State(**sizes, log1p=library.log1p, **tensors)
        self._growth = tensors["growth"]

    def trade(self, action: Tensor, obs: Tensor) -> Tensor:
        """Trade one bar in every row.

        Args:
            action: (R, N).
            obs: (R, columns) float32, whose rows are contiguous; written.

        Returns:
            (R,) float32, the reward.
        """
        if action.dtype not in (torch.float32, torch.float64) or not action.is_cpu:
            action = action.to("cpu", torch.float64)
        action = action.contiguous()
        reward = torch.empty(self._rows)
        self._library.trade(
            self._state,
            action.data_ptr(),
            action.dtype == torch.float64,
            obs.data_ptr(),
            obs.stride(0),
            reward.data_ptr(),
            threads.count(),
        )
        if not self._log1p_inside:
            assert self._growth is not None
            self._growth.log1p_()
            self._library.reward(self._state, reward.data_ptr())
        return reward

    def restart(self, ended: Tensor, bars: Tensor, obs: Tensor) -> None:
        """Start new episodes, and keep the last observations of the old ones.

        Args:
            ended: (R,) bool, rows whose episode ended.
            bars: (R,) int64, the first bars of the next episodes.
            obs: as in `trade`. Rows whose episode ended get their first observation.
        """
        self._library.restart(
            self._state, ended.data_ptr(), bars.data_ptr(), obs.data_ptr(), obs.stride(0)
        )


def _check(name: str, tensor: Tensor | None) -> None:
    """Raise ValueError unless a tensor lies in memory as the step expects it."""
    if tensor is None:
        return
    *shape, rows = tensor.shape
    whole = name in WHOLE or not shape
    right = torch.empty(*shape, rows if whole else stride_of(rows), device="meta")[..., :rows]
    if tensor.stride() != right.stride() and not (whole and tensor.is_contiguous()):
        raise ValueError(f"{name} has the strides {tensor.stride()}, not {right.stride()}")


def _torch_log1p() -> int | None:
    """Return the address of torch's own function for vectors, or None if there is none to call."""
    name = _LOG1P.get(torch.backends.cpu.get_cpu_capability())
    if name is None:
        return None
    try:
        found = getattr(ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libtorch_cpu.so")), name)
    except (OSError, AttributeError):
        return None
    return ctypes.cast(found, c_void_p).value
