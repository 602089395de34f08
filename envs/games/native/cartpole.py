"""The native step of CartPole, called through ctypes."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping
from ctypes import POINTER, c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from sweepd.envs.native import threads
from sweepd.envs.native.build import library
from sweepd.envs.native.memory import per_row, stride_of
from sweepd.envs.native.structs import c_struct
from sweepd.envs.native.use import NativeLibrary

SOURCE = Path(__file__).with_name("src") / "cartpole.cpp"
# After an intended change of the numerics: python -m sweepd.envs.games.native.cartpole
DIGEST = "22fa89cb14f691c7"
# The tensors of `State` in cartpole.cpp, with their runs of rows.
TENSORS = {
    "state": 6,
    "start": 6,
    "final_state": 4,
    "trigonometry": 2,
    "left": 1,
    "from_left_to_right": 1,
    "coupling": 1,
    "gravity": 1,
    "inertia": 1,
    "time": 3,
    "limits": 3,
}
_State = c_struct(SOURCE, "State")


class Library:
    """The functions of the compiled library."""

    def __init__(self, path: Path) -> None:
        lib, state = ctypes.CDLL(str(path)), POINTER(_State)
        self.step, self.refill = lib.sweepd_cartpole_step, lib.sweepd_cartpole_refill
        self.step.argtypes = [state, *[c_void_p] * 3, c_int64, c_void_p, c_int64]
        self.step.restype = c_int64
        self.refill.argtypes = [state, c_void_p, c_int64, c_void_p, c_int64]
        self.refill.restype = None


class NativeStep:
    """The step of one environment. The tensors are changed in place.

    Args:
        library: the compiled functions.
        tensors: the `TENSORS`, with as many runs of rows, as `sweepd.envs.native.memory` makes
            them.
    """

    def __init__(self, library: Library, tensors: Mapping[str, Tensor]) -> None:
        self._library = library
        self._rows = rows = tensors["state"].shape[1]
        for name, runs in TENSORS.items():
            tensor = tensors[name]
            if tensor.numel() != runs * rows or (runs > 1 and tensor.stride(0) != stride_of(rows)):
                raise ValueError(f"{name} has the shape {tuple(tensor.shape)}")
        self._state = _State(rows=rows, stride=stride_of(rows), **tensors)

    def __call__(self, action: Tensor, record: Tensor, obs: Tensor) -> tuple[Tensor, Tensor, bool]:
        """Step every row. `trigonometry` must be up to date.

        Args:
            action: (R,) int64, contiguous.
            record: (R,) float64, contiguous; the actions are written to it.
            obs: (R, 4) float32, whose rows are contiguous; written.

        Returns:
            Which rows terminated, and which were truncated, (R,) bool each; and whether an action
            is illegal.
        """
        ends = torch.empty(2, self._rows, dtype=torch.bool)
        illegal = self._library.step(
            self._state,
            action.data_ptr(),
            record.data_ptr(),
            obs.data_ptr(),
            obs.stride(0),
            ends.data_ptr(),
            threads.count(),
        )
        terminated, truncated = ends.unbind()
        return terminated, truncated, bool(illegal)

    def refill(self, pool: Tensor, turn: Tensor, since: int) -> None:
        """Replace the starts that were used, as `CartPole._refill` describes.

        Args:
            pool: (rounds, 4, R) float64, contiguous.
            turn: (R,) int64, contiguous; changed.
            since: steps since the last refill.
        """
        self._library.refill(self._state, pool.data_ptr(), len(pool), turn.data_ptr(), since)


def digest(found: Library) -> str:
    """Return 16 hexadecimal digits of a hash of what the step computes, for its self-test."""
    rows = 67
    tensors = {name: per_row(runs, rows=rows) for name, runs in TENSORS.items()}
    for place, tensor in enumerate(tensors.values()):
        index = torch.arange(tensor.numel(), dtype=torch.float64) + 1000 * place
        tensor.copy_((((index * index * 7919 + index * 104729) % 2053) / 2048).view_as(tensor))
    record, obs = torch.zeros(rows, dtype=torch.float64), torch.zeros(rows, 4)
    pool, turn = torch.arange(8.0 * rows).double().view(2, 4, rows), torch.arange(rows) % 3
    step = NativeStep(found, tensors)
    hashed = hashlib.sha256()
    for at in range(4):
        *ends, illegal = step(torch.arange(rows) // (1 + at) % (2 + at % 2), record, obs)
        step.refill(pool, turn, at)
        for tensor in (*tensors.values(), record, obs, *ends, turn, torch.tensor(illegal)):
            hashed.update(tensor.contiguous().numpy().tobytes())
    return hashed.hexdigest()[:16]


STEP = NativeLibrary("the cartpole step", SOURCE, Library, digest, DIGEST)


def main() -> None:
    """Print the digest of this machine's step."""
    print(digest(Library(library(SOURCE))))


if __name__ == "__main__":
    main()
