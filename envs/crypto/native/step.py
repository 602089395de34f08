"""The native step: compiled for the CPU, or as kernels of a GPU from the same text."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_int64, c_void_p
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sweepd.envs.core.streams import NextNumbers
from sweepd.envs.native import threads
from sweepd.envs.native.gpu import GpuKernels, struct_on
from sweepd.envs.native.memory import stride_of
from sweepd.envs.native.structs import CStruct, c_constant, c_struct

SOURCE = Path(__file__).with_name("src") / "crypto.cpp"
MOST_ASSETS = c_constant(SOURCE, "MOST_ASSETS")
# Tensors that are contiguous; the others are as `sweepd.envs.native.memory` makes them.
WHOLE = ("prices_by_bar", "next_open", "next_fill", "feature_table", "increment", "final_obs")
_State = c_struct(SOURCE, "State")
# The functions of torch's vector library, by kind of processor.
_LOG1P = {"AVX512": "Sleef_log1pd8_u10avx512f", "AVX2": "Sleef_log1pd4_u10avx2"}


class Library:
    """The functions of the compiled library."""

    device = torch.device("cpu")

    def __init__(self, path: Path) -> None:
        lib = ctypes.CDLL(str(path))
        state = POINTER(_State)
        self._trade, self._reward = lib.sweepd_crypto_trade, lib.sweepd_crypto_reward
        self._restart = lib.sweepd_crypto_restart
        self._trade.argtypes = [state, c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_int64]
        self._reward.argtypes = [state, c_void_p]
        self._restart.argtypes = [state, c_void_p, c_void_p, c_void_p, c_int64]
        for function in (self._trade, self._reward, self._restart):
            function.restype = None
        self.log1p = _torch_log1p()

    def placed(self, state: CStruct) -> CStruct:
        """Return a state as the functions take it."""
        return state.but(log1p=self.log1p)

    @property
    def leaves_logarithm(self) -> bool:
        """Whether `trade` leaves the logarithm of `growth`, and what follows from it, to others."""
        return self.log1p is None

    def trade(self, state: CStruct, action: Tensor, obs: Tensor, reward: Tensor) -> None:
        """Trade one bar in every row.

        Args:
            state: what `placed` returned.
            action: (R, N), float32 or float64, contiguous.
            obs: as of `NativeStep.trade`.
            reward: (R,) float32, written.
        """
        self._trade(
            state,
            action.data_ptr(),
            action.dtype == torch.float64,
            obs.data_ptr(),
            obs.stride(0),
            reward.data_ptr(),
            threads.count(),
        )

    def reward(self, state: CStruct, reward: Tensor) -> None:
        """Compute the rewards (R,) from the logarithm of `growth`."""
        self._reward(state, reward.data_ptr())

    def restart(
        self, state: CStruct, ended: Tensor, starts: NextNumbers, obs: Tensor, truncated: Tensor
    ) -> None:
        """See `NativeStep.restart`. Copies `ended` to `truncated`."""
        bars = starts.next()
        starts.turn += ended
        truncated.copy_(ended)
        self._restart(state, ended.data_ptr(), bars.data_ptr(), obs.data_ptr(), obs.stride(0))


class Kernels:
    """The same functions on a GPU. Their states are tensors."""

    leaves_logarithm = False

    def __init__(self, kernels: GpuKernels, device: torch.device) -> None:
        self._kernels, self.device = kernels, device

    def placed(self, state: CStruct) -> Tensor:
        """See `Library.placed`."""
        return struct_on(state, self.device)

    def trade(self, state: Tensor, action: Tensor, obs: Tensor, reward: Tensor) -> None:
        """See `Library.trade`."""
        run, rows, stride = self._kernels.run, len(obs), obs.stride(0)
        run("crypto_trade", rows, state, action, obs, reward, stride, action.dtype == torch.float64)
        run("crypto_market", rows * self._kernels.threads, state, obs, stride)  # a block per row

    def restart(
        self, state: Tensor, ended: Tensor, starts: NextNumbers, obs: Tensor, truncated: Tensor
    ) -> None:
        """See `Library.restart`."""
        pool, turn = starts.pool, starts.turn
        written = (turn, truncated, obs, len(pool), obs.stride(0))
        self._kernels.run("crypto_restart", len(obs), state, ended, pool, *written)


class NativeStep:
    """The step of one environment. The tensors are changed in place.

    Args:
        code: the compiled functions.
        sizes: those of `State` in state.h; flags are 0 or 1.
        tensors: those of `State`: the `WHOLE`, contiguous, and the others as
            `sweepd.envs.native.memory` makes them. What the environment has not may be None.
    """

    def __init__(
        self,
        code: Library | Kernels,
        sizes: Mapping[str, int],
        tensors: Mapping[str, Tensor | None],
    ) -> None:
        self._code: Any = code
        for name, tensor in tensors.items():
            _check(name, tensor)
        self._struct = _State(**sizes, **tensors)  # keeps the tensors
        self._state, self._growth = self._code.placed(self._struct), tensors["growth"]

    def trade(self, action: Tensor, obs: Tensor) -> Tensor:
        """Trade one bar in every row.

        Args:
            action: (R, N).
            obs: (R, columns) float32, whose rows are contiguous; written.

        Returns:
            (R,) float32, the reward.
        """
        if action.dtype not in (torch.float32, torch.float64) or action.device != obs.device:
            action = action.to(obs.device, torch.float64)
        reward = torch.empty(len(obs), device=obs.device)
        self._code.trade(self._state, action.contiguous(), obs, reward)
        if self._code.leaves_logarithm:
            assert self._growth is not None
            self._growth.log1p_()
            self._code.reward(self._state, reward)
        return reward

    def restart(self, ended: Tensor, starts: NextNumbers, obs: Tensor) -> Tensor:
        """Start new episodes, and keep the last observations of the old ones.

        Args:
            ended: (R,) bool, rows whose episode ended.
            starts: int64, the first bars of the next episodes; moves on in these rows.
            obs: as in `trade`. Rows whose episode ended get their first observation.

        Returns:
            A copy of `ended`.
        """
        truncated = torch.empty_like(ended)
        self._code.restart(self._state, ended, starts, obs, truncated)
        return truncated


def _check(name: str, tensor: Tensor | None) -> None:
    """Raise ValueError unless a tensor lies in memory as the step expects it."""
    if tensor is None:
        return
    *shape, rows = tensor.shape
    whole = name in WHOLE or not shape
    stride = rows if whole else stride_of(rows, tensor.device)
    right = torch.empty(*shape, stride, device="meta")[..., :rows]
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
