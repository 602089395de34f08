"""The native step of CartPole, called through ctypes."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping
from ctypes import POINTER, c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from sweepd.envs.games.batched_rules import BatchedRules
from sweepd.envs.native import threads
from sweepd.envs.native.memory import per_row, stride_of
from sweepd.envs.native.structs import c_struct
from sweepd.envs.native.use import NativeLibrary, scattered

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


class CartPoleStep:
    """The step of one environment, a `NativeStep` (`sweepd.envs.games.batched_rules`).

    Attributes:
        memory: The `TENSORS`, as many runs of rows each.
    """

    @classmethod
    def of(cls, library: Library, game: BatchedRules) -> CartPoleStep:
        """Return the step of a game."""
        return cls(library, game.num_games, game.numbers)

    def __init__(self, library: Library, rows: int, numbers: Mapping[str, Tensor]) -> None:
        """Make the memory.

        Args:
            library: The compiled functions.
            rows: Number of rows.
            numbers: The parameters, `CartPole.numbers`.
        """
        self._library, self._rows, self._numbers = library, rows, numbers
        self.memory = memory = {n: per_row(runs, rows=rows) for n, runs in TENSORS.items()}
        memory["state"][5] = memory["start"][5] = 1.0
        self.state, self.begun, self.final = (
            dict(zip(("x", "speed", "angle", "turning"), memory[name], strict=False))
            for name in ("state", "start", "final_state")
        )
        self.age = memory["state"][4]
        self._sine, self._cosine = memory["trigonometry"]
        self._reward = torch.ones(rows)
        self.record = torch.zeros(rows, dtype=torch.float64)
        self._state = _State(rows=rows, stride=stride_of(rows), **memory)

    def configure(self) -> None:
        """See `NativeStep.configure`."""
        numbers, memory = self._numbers, self.memory
        for name in ("left", "from_left_to_right", "coupling", "gravity", "inertia"):
            memory[name].copy_(numbers[name])
        memory["time"][:2], memory["time"][2] = numbers["tau"], 1.0
        memory["limits"][0], memory["limits"][1] = (
            numbers["x_threshold"],
            numbers["theta_threshold"],
        )
        # Ages are whole numbers, so `age > max_steps - 0.5` is exact for `age >= max_steps`.
        memory["limits"][2] = numbers["max_steps"] - 0.5

    def step(self, action: Tensor, obs: Tensor) -> tuple[Tensor, Tensor, Tensor, bool]:
        """See `NativeStep.step`. Do not write to the rewards: every step returns the same."""
        torch.sin(self.state["angle"], out=self._sine)
        torch.cos(self.state["angle"], out=self._cosine)
        terminated, truncated, illegal = self.move(action, obs)
        return self._reward, terminated, truncated, not illegal

    def move(self, action: Tensor, obs: Tensor) -> tuple[Tensor, Tensor, bool]:
        """Step every row, with sines and cosines in memory; actions are written to `record`."""
        ends = torch.empty(2, self._rows, dtype=torch.bool)
        illegal = self._library.step(
            self._state,
            action.data_ptr(),
            self.record.data_ptr(),
            obs.data_ptr(),
            obs.stride(0),
            ends.data_ptr(),
            threads.count(),
        )
        terminated, truncated = ends.unbind()
        return terminated, truncated, bool(illegal)

    def refill(self, pool: Tensor, turn: Tensor, since: int) -> None:
        """See `NativeStep.refill`."""
        self._library.refill(self._state, pool.data_ptr(), len(pool), turn.data_ptr(), since)


def digest(found: Library) -> str:
    """Return 16 hexadecimal digits of a hash of what the step computes, for its self-test."""
    rows = 67
    step = CartPoleStep(found, rows, {})
    for place, tensor in enumerate(step.memory.values()):
        tensor.copy_(scattered(*tensor.shape, below=2053, first=1000 * place) / 2048)
    obs = torch.zeros(rows, 4)
    pool, turn = torch.arange(8.0 * rows).double().view(2, 4, rows), torch.arange(rows) % 3
    hashed = hashlib.sha256()
    for at in range(4):
        *ends, illegal = step.move(torch.arange(rows) // (1 + at) % (2 + at % 2), obs)
        step.refill(pool, turn, at)
        for tensor in (*step.memory.values(), step.record, obs, *ends, turn, torch.tensor(illegal)):
            hashed.update(tensor.contiguous().numpy().tobytes())
    return hashed.hexdigest()[:16]


STEP = NativeLibrary("the cartpole step", SOURCE, Library, digest, DIGEST)

if __name__ == "__main__":
    STEP.print_digest()
