"""The rules of laser hockey in C++ for CPUs, called through ctypes: to the bit what torch computes."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping
from ctypes import POINTER, c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from sweepd.envs.games.batched_rules import BatchedRules, State
from sweepd.envs.games.hockey import physics
from sweepd.envs.native import threads
from sweepd.envs.native.memory import per_row, stride_of
from sweepd.envs.native.structs import c_constant, c_struct
from sweepd.envs.native.use import NativeLibrary, scattered

SOURCE = Path(__file__).with_name("src") / "hockey.cpp"
# After an intended change of the numerics: python -m sweepd.envs.games.hockey.native
DIGEST = "e33ed1ae18513d0b"
COORDINATES, NOTES = (c_constant(SOURCE, name) for name in ("COORDINATES", "NOTES"))
_ANGLES = slice(4, 6)  # of both players among the coordinates
_Match, _Games = c_struct(SOURCE, "Match"), c_struct(SOURCE, "Games")
_Tables = c_struct(SOURCE, "Tables")


class Library:
    """The functions of the compiled library."""

    def __init__(self, path: Path) -> None:
        lib = ctypes.CDLL(str(path))
        match, games, at, number = POINTER(_Match), POINTER(_Games), c_void_p, c_int64
        self.play, self.separate = lib.sweepd_hockey_play, lib.sweepd_hockey_separate
        self.finish, self.restart = lib.sweepd_hockey_finish, lib.sweepd_hockey_restart
        self.see, self.in_range = lib.sweepd_hockey_see, lib.sweepd_hockey_in_range
        self.play.argtypes = [match, games, games, at, number, at, number]
        self.separate.argtypes = [match, games, number]
        self.finish.argtypes = [match, games, at, number]
        self.restart.argtypes = [match, games, games, at, at, number, number]
        self.see.argtypes = [match, games, at, number]
        for function in (self.play, self.separate, self.finish, self.restart, self.see):
            function.restype = None
        self.in_range.argtypes, self.in_range.restype = [at, number, number, number], number


class NativeHockey:
    """The rules of one environment's games: `Rules` (`sweepd.envs.games.batched_rules`).

    Attributes:
        final: The last states of the latest episodes.
    """

    @classmethod
    def of(cls, library: Library, game: BatchedRules) -> NativeHockey:
        """Return the rules of a game, which from then on has its `final` in their memory."""
        rules = cls(library, game.num_games, game.numbers)
        for name, own in game.final.items():
            rules.final[name].copy_(own)
        game.final = rules.final
        return rules

    def __init__(self, library: Library, games: int, numbers: Mapping[str, Tensor]) -> None:
        """Take the parameters.

        Args:
            library: The compiled functions.
            games: Number of games.
            numbers: The parameters, `Hockey.numbers`, which are read in every step.
        """
        self._library, self._games = library, games
        self._keep_mode = bool(numbers["keep_mode"][0])
        # The latest state that was made here, with its addresses.
        self._made: tuple[State, ctypes.Structure] | None = None
        self.final = self._state()
        self._final = _addresses(self.final)
        turns = per_row(3, 2, 2, rows=games, dtype=torch.float32)
        self._turns = [(cosine, sine) for cosine, sine in turns]
        self._match = _Match(
            games=games,
            stride=stride_of(games),
            keep_mode=self._keep_mode,
            tables=tables(),
            turns=turns,
            notes=per_row(NOTES, rows=games, dtype=torch.float32),
            **{
                name: numbers[name] for name in _Match.kinds.keys() & numbers.keys() - {"keep_mode"}
            },
        )

    def move(self, state: State, action: Tensor, uniforms: Tensor) -> tuple[State, Tensor, Tensor]:
        """See `GameRules.move`."""
        del uniforms
        before, moved = self._addresses(state), self._state()
        after, count = self._addresses(moved), threads.count()
        wide = action.dtype == torch.float64
        action = action.contiguous() if wide else action.float().contiguous()
        reward, over = torch.empty(self._games, 2), torch.empty(self._games, dtype=torch.bool)
        self._turn(0, state)
        self._library.play(
            self._match, before, after, action.data_ptr(), wide, over.data_ptr(), count
        )
        self._turn(1, moved)
        self._library.separate(self._match, after, count)
        self._turn(2, moved)
        self._library.finish(self._match, after, reward.data_ptr(), count)
        return moved, reward, over

    def _turn(self, index: int, state: State) -> None:
        """Have torch compute the cosines and sines of the players' present angles."""
        angles, (cosine, sine) = state["bodies"].t()[_ANGLES], self._turns[index]
        torch.cos(angles, out=cosine)
        torch.sin(angles, out=sine)

    def restart(self, state: State, ended: Tensor, uniforms: Tensor) -> State:
        """See `BatchedRules.restart`. In place: nobody needs the state that `move` made any more."""
        uniforms = uniforms if uniforms.stride(1) == 1 else uniforms.contiguous()
        self._library.restart(
            self._match,
            self._addresses(state),
            self._final,
            ended.data_ptr(),
            uniforms.data_ptr(),
            uniforms.stride(0),
            threads.count(),
        )
        return state

    def in_range(self, action: Tensor) -> bool:
        """See `BatchedRules.in_range`."""
        if action.dtype not in (torch.float32, torch.float64) or not action.is_cpu:
            return False
        action = action.contiguous()
        wide = action.dtype == torch.float64
        address, numbers = action.data_ptr(), action.numel()
        return bool(self._library.in_range(address, wide, numbers, threads.count()))

    def see(self, state: State) -> Tensor:
        """See `GameRules.see`."""
        obs = torch.empty(self._games, 2, 18 if self._keep_mode else 16)
        self._library.see(self._match, self._addresses(state), obs.data_ptr(), threads.count())
        return obs

    def _state(self) -> State:
        """Return memory of a state."""
        games = self._games
        state = {
            "bodies": torch.empty_strided((games, COORDINATES), (1, stride_of(games))),
            "counters": torch.empty(2, games, dtype=torch.int64).t(),
            "touching": torch.empty(2, games, dtype=torch.bool).t(),
            "scored": torch.empty(games),
        }
        self._made = state, _addresses(state)
        return state

    def _addresses(self, state: State) -> ctypes.Structure:
        """Return a state's addresses."""
        if self._made is not None and self._made[0] is state:
            return self._made[1]
        return _addresses(state)


def _addresses(state: State) -> ctypes.Structure:
    """Return a state's addresses, or those of copies where parts lie games first."""
    bodies = state["bodies"]
    if bodies.stride(0) != 1:
        bodies = bodies.t().contiguous().t()
    return _Games(
        stride=bodies.stride(1),
        bodies=bodies,
        counters=state["counters"].t().contiguous(),
        touching=state["touching"].t().contiguous(),
        scored=state["scored"],
    )


def tables() -> ctypes.Structure:
    """Return what `physics` computes once."""
    limits, left = physics.corrections(torch.float32, torch.device("cpu"))
    parts = {
        "faces": [number for face in physics.FACE_TABLE for number in face],
        "corners": [corner[axis] for axis in (0, 1) for corner in physics.OUTLINE],
        "limits": limits.tolist(),
        "left": left.tolist(),
    }
    return _Tables(
        racket_friction=physics.RACKET_FRICTION,
        slope=physics.SLOPE,
        slope_x=physics.SLOPE_X,
        slope_y=physics.SLOPE_Y,
        **{name: tuple(numbers) for name, numbers in parts.items()},
    )


def digest(found: Library) -> str:
    """Return 16 hexadecimal digits of a hash of what the rules compute, for their self-test.

    Cosines and sines are not torch's, whose last bits depend on the processor.
    """
    games, steps, hashed = 67, 40, hashlib.sha256()
    drawn = scattered(games, 10, below=1000003) / 1000003
    names = ("time_limit", "closeness", "touch", "direction")
    numbers = dict(zip(names, (10.0 * drawn).unbind(1), strict=False))
    numbers["mode"] = torch.arange(games).double() % 3
    every = torch.ones(games, dtype=torch.bool)
    for keep_mode in (True, False):
        hockey = _WithoutTorch(found, games, numbers | {"keep_mode": every.double() * keep_mode})
        state = hockey.restart(hockey._state(), every, drawn[:, 4:])
        for step in range(steps):
            action = 2.0 * drawn.roll(step // 8, 0)[:, : 8 if keep_mode else 6] - 1.0
            state, *rest = hockey.move(state, action.view(games, 2, -1), drawn)
            for tensor in (*state.values(), *rest, hockey.see(state)):
                hashed.update(tensor.contiguous().numpy().tobytes())
            state = hockey.restart(state, rest[1], drawn[:, 4:])
    return hashed.hexdigest()[:16]


class _WithoutTorch(NativeHockey):
    """With other functions in place of torch's cosines and sines."""

    def _turn(self, index: int, state: State) -> None:
        half = 0.5 * state["bodies"].t()[_ANGLES]
        square = half * half
        cosine, sine = self._turns[index]
        cosine.copy_((1.0 - square) / (1.0 + square))
        sine.copy_((half + half) / (1.0 + square))


STEP = NativeLibrary("the hockey step", SOURCE, Library, digest, DIGEST)

if __name__ == "__main__":
    STEP.print_digest()
