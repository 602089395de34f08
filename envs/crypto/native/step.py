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

SOURCE = Path(__file__).with_name("src") / "crypto.cpp"
MOST_ASSETS = 128  # as in state.h
# The fields of `State` in state.h, in the same order.
SIZES = (
    *("rows", "stride", "assets", "bars", "features", "max_lookback", "columns", "minimums"),
    *("holes", "stops", "holding_rule", "decays", "penalises_drawdown", "penalises_state"),
    *("privileged", "shorts", "terminates"),
)
WHOLE = ("prices_by_bar", "next_open", "next_fill", "feature_table", "increment", "final_obs")
PER_ROW = (
    *("sizing", "minimum", "buy_rate", "sell_rate", "stop_level"),
    *("max_holding_bars", "max_holding_fraction"),
    *("initial_cash", "inverse_held_scale", "age_scale"),
    *("short_allowed", "cover_level", "leverage", "maintenance", "borrow_rate", "bankrupt_value"),
    *("growth_weights", "floor", "inverse_length", "drawdown_penalty", "volatility_penalty"),
    *("concentration_penalty", "concentration_limit", "cash_penalty", "cash_reserve"),
    *("waiting", "lookback", "cash"),
    *("equal_units", "units", "paid", "held", "high", "equal_worth", "worth"),
    *("buys_at", "total", "place", "start", "peak", "drawdown", "legal_steps", "largest"),
    *("growth", "record", "bankrupt"),
)


# The functions of torch's vector library, by kind of processor.
_LOG1P = {"AVX512": "Sleef_log1pd8_u10avx512f", "AVX2": "Sleef_log1pd4_u10avx2"}


class _State(ctypes.Structure):
    """`State` of state.h."""

    _fields_ = (
        *((name, c_int64) for name in SIZES),
        ("log1p", c_void_p),
        *((name, c_void_p) for name in (*WHOLE, *PER_ROW)),
    )


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
        sizes: the `SIZES`; flags are 0 or 1.
        tensors: the `WHOLE`, contiguous, and the `PER_ROW`, as `sweepd.envs.native.memory` makes
            them. What the environment has not may be None.
    """

    def __init__(
        self, library: Library, sizes: Mapping[str, int], tensors: Mapping[str, Tensor | None]
    ) -> None:
        self._library, self._rows = library, sizes["rows"]
        addresses = {name: _address(name, tensor) for name, tensor in tensors.items()}
        self._log1p_inside = library.log1p is not None
        self._state = ctypes.byref(_State(**sizes, log1p=library.log1p, **addresses))
        self._growth = tensors["growth"]
        self._kept = tensors  # addresses do not keep tensors alive

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


def _address(name: str, tensor: Tensor | None) -> int | None:
    if tensor is None:
        return None
    *shape, rows = tensor.shape
    expected = tensor
    if name in PER_ROW and shape:
        expected = torch.empty(*shape, stride_of(rows), device="meta")[..., :rows]
    elif name not in (*WHOLE, *PER_ROW) or not tensor.is_contiguous():
        raise ValueError(f"{name}, of shape {tuple(tensor.shape)}, is unknown or not contiguous")
    if tensor.stride() != expected.stride():
        raise ValueError(f"{name} has the strides {tensor.stride()}, not {expected.stride()}")
    return tensor.data_ptr()


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
