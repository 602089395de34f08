"""The native step of CartPole: compiled for the CPU, or as kernels of a GPU from the same text."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping
from ctypes import POINTER, c_int64, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sweepd.envs.core.faults import FaultLatch
from sweepd.envs.games.batched_rules import BatchedRules
from sweepd.envs.native import threads
from sweepd.envs.native.build import SHARED
from sweepd.envs.native.gpu import GpuKernels, KernelSource, struct_on
from sweepd.envs.native.memory import per_row, stride_of
from sweepd.envs.native.structs import CStruct, c_struct
from sweepd.envs.native.use import NativeLibrary, scattered, turned_off

SOURCE = Path(__file__).with_name("src") / "cartpole.cpp"
# After an intended change of the numerics: python -m sweepd.envs.games.native.cartpole
DIGEST = "a1acb350ed69ea28"
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


class Move(NamedTuple):
    """The arguments of one step.

    Attributes:
        action: (R,) int64, contiguous.
        obs: (R, 4) float32, whose rows are contiguous; written.
        ends: (2, R) bool, written: terminated and truncated.
        faults: records the actions.
    """

    action: Tensor
    obs: Tensor
    ends: Tensor
    faults: FaultLatch


class Library:
    """The functions of the compiled library."""

    device = torch.device("cpu")

    def __init__(self, path: Path) -> None:
        lib, state = ctypes.CDLL(str(path)), POINTER(_State)
        self._step, self._refill = lib.sweepd_cartpole_step, lib.sweepd_cartpole_refill
        self._step.argtypes = [state, *[c_void_p] * 2, c_int64, c_void_p, c_int64]
        self._step.restype = c_int64
        self._refill.argtypes = [state, c_void_p, c_int64, c_void_p, c_int64]
        self._refill.restype = None

    def placed(self, state: CStruct) -> CStruct:
        """Return a state as the functions take it."""
        return state

    def step(self, state: CStruct, move: Move, angle: Tensor, trigonometry: Tensor) -> None:
        """Write sines and cosines (2, R) of the angles (R,), which are in the state, and `move`."""
        torch.sin(angle, out=trigonometry[0])
        torch.cos(angle, out=trigonometry[1])
        self.move(state, move)

    def move(self, state: CStruct, move: Move) -> None:
        """Step every row with the sines and cosines in memory."""
        action, obs, ends, faults = move
        illegal = self._step(
            state,
            action.data_ptr(),
            obs.data_ptr(),
            obs.stride(0),
            ends.data_ptr(),
            threads.count(),
        )
        if illegal:
            faults.record(action == action.clamp(0, 1), action.unsqueeze(0))
        else:
            faults.all_legal()

    def refill(self, state: CStruct, pool: Tensor, turn: Tensor, since: int) -> None:
        """See `NativeStep.refill`."""
        self._refill(state, pool.data_ptr(), len(pool), turn.data_ptr(), since)


class Kernels:
    """The same functions on a GPU, each one launch. Their states are tensors."""

    def __init__(self, kernels: GpuKernels, device: torch.device) -> None:
        self._run, self.device = kernels.run, device

    def placed(self, state: CStruct) -> Tensor:
        """See `Library.placed`."""
        return struct_on(state, self.device)

    def step(self, state: Tensor, move: Move, angle: Tensor, trigonometry: Tensor) -> None:  # noqa: ARG002
        """See `Library.step`. The sines and cosines are CUDA's, as torch's on GPUs."""
        self._launch("cartpole_step", state, move)

    def move(self, state: Tensor, move: Move) -> None:
        """See `Library.move`."""
        self._launch("cartpole_move", state, move)

    def refill(self, state: Tensor, pool: Tensor, turn: Tensor, since: int) -> None:
        """See `NativeStep.refill`."""
        self._run("cartpole_refill", len(turn), state, pool, turn, len(pool), since)

    def _launch(self, name: str, state: Tensor, move: Move) -> None:
        action, obs, ends, faults = move
        latch = (faults.legal_steps, faults.values, faults.going())
        self._run(name, len(obs), state, action, obs, ends, *latch, obs.stride(0))


class CartPoleStep:
    """The step of one environment, a `NativeStep` (`sweepd.envs.games.batched_rules`).

    Attributes:
        memory: The `TENSORS`, as many runs of rows each.
    """

    @classmethod
    def of(cls, code: Library | Kernels, game: BatchedRules) -> CartPoleStep:
        """Return the step of a game."""
        return cls(code, game.num_games, game.numbers)

    def __init__(self, code: Library | Kernels, rows: int, numbers: Mapping[str, Tensor]) -> None:
        """Make the memory.

        Args:
            code: The compiled functions.
            rows: Number of rows.
            numbers: The parameters, `CartPole.numbers`.
        """
        self._code: Any = code
        self._rows, self._numbers, device = rows, numbers, code.device
        self.memory = memory = {
            name: per_row(runs, rows=rows, device=device) for name, runs in TENSORS.items()
        }
        memory["state"][5] = memory["start"][5] = 1.0
        self.state, self.begun, self.final = (
            dict(zip(("x", "speed", "angle", "turning"), memory[name], strict=False))
            for name in ("state", "start", "final_state")
        )
        self.age = memory["state"][4]
        self._reward = torch.ones(rows, device=device)
        self._state = self._code.placed(_State(rows=rows, stride=stride_of(rows, device), **memory))

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

    def step(
        self, action: Tensor, obs: Tensor, faults: FaultLatch
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `NativeStep.step`. Do not write to the rewards: every step returns the same."""
        move, memory = self._move(action, obs, faults), self.memory
        self._code.step(self._state, move, self.state["angle"], memory["trigonometry"])
        return self._reward, move.ends[0], move.ends[1]

    def move(self, action: Tensor, obs: Tensor, faults: FaultLatch) -> Tensor:
        """Step every row, with sines and cosines in memory. Returns the ends, (2, R) bool."""
        move = self._move(action, obs, faults)
        self._code.move(self._state, move)
        return move.ends

    def _move(self, action: Tensor, obs: Tensor, faults: FaultLatch) -> Move:
        ends = torch.empty(2, self._rows, dtype=torch.bool, device=obs.device)
        return Move(action, obs, ends, faults)

    def refill(self, pool: Tensor, turn: Tensor, since: int) -> None:
        """See `NativeStep.refill`."""
        self._code.refill(self._state, pool, turn, since)


def digest(code: Library | Kernels) -> str:
    """Return 16 hexadecimal digits of a hash of what the step computes, for its self-test."""
    rows, device = 67, code.device
    step = CartPoleStep(code, rows, {})
    for place, tensor in enumerate(step.memory.values()):
        tensor.copy_(scattered(*tensor.shape, below=2053, first=1000 * place) / 2048)
    obs, faults = torch.zeros(rows, 4, device=device), FaultLatch(rows, 1, str, device, torch.int64)
    every = torch.arange(rows, device=device)
    pool, turn = torch.arange(8.0 * rows, device=device).double().view(2, 4, rows), every % 3
    hashed = hashlib.sha256()
    for at in range(4):
        faults.count()
        ends = step.move(every // (1 + at) % (2 + at % 2), obs, faults)
        step.refill(pool, turn, at)
        latched = (faults.latched(), faults.legal_steps, faults.values * faults.latched())
        for tensor in (*step.memory.values(), obs, *ends, turn, *latched):
            hashed.update(tensor.cpu().contiguous().numpy().tobytes())
    return hashed.hexdigest()[:16]


def kernels_agree(kernels: GpuKernels, device: torch.device) -> bool:
    """Whether kernels give the step's bits, and sines and cosines that are torch's to rounding."""
    code = Kernels(kernels, device)
    if digest(code) != DIGEST:
        return False
    step, obs = CartPoleStep(code, 5, {}), torch.zeros(5, 4, device=device)
    angle = torch.linspace(-0.4, 3.0, 5, dtype=torch.float64, device=device)
    step.state["angle"].copy_(angle)
    faults = FaultLatch(5, 1, str, device, torch.int64)
    step.step(torch.zeros(5, dtype=torch.int64, device=device), obs, faults)
    wanted = torch.stack((angle.sin(), angle.cos()))
    return torch.allclose(step.memory["trigonometry"], wanted, rtol=1e-14, atol=0.0)


KERNELS = KernelSource(
    of="the cartpole step",
    file=SOURCE.with_suffix(".cu"),
    names=("cartpole_step", "cartpole_move", "cartpole_refill"),
    agrees=kernels_agree,
    threads=32,
    folders=(SOURCE.parent, SHARED),
    exact=True,
)
STEP = NativeLibrary("the cartpole step", SOURCE, Library, digest, DIGEST)


def code_for(device: torch.device) -> Library | Kernels | None:
    """Return the compiled step for a device; None where torch makes the steps."""
    if device.type == "cpu":
        return STEP.library(device)
    kernels = None if turned_off() else KERNELS.on(device)
    return None if kernels is None else Kernels(kernels, device)


if __name__ == "__main__":
    STEP.print_digest()
