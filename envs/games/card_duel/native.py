"""The compiled rules of the duel, called through ctypes.

`src` has a C++ header for each module beside this one that computes with positions.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping
from ctypes import POINTER, c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from sweepd.envs.games.batched_rules import BatchedRules, State
from sweepd.envs.games.card_duel.cards import PRESETS, RANDOM_DECKS
from sweepd.envs.games.card_duel.constants import CHOICES, TYPES
from sweepd.envs.games.card_duel.layout import ROWS
from sweepd.envs.games.card_duel.masks import PACKED
from sweepd.envs.games.card_duel.observation import SIZE
from sweepd.envs.games.card_duel.tables import decks, facts
from sweepd.envs.games.card_duel.turns import MOVE_UNIFORMS, START_UNIFORMS
from sweepd.envs.native import threads
from sweepd.envs.native.structs import c_struct
from sweepd.envs.native.use import NativeLibrary, scattered

SOURCE = Path(__file__).with_name("src") / "card_duel.cpp"
# After an intended change of the rules: python -m sweepd.envs.games.card_duel.native
DIGEST = "83ee1f42d3ef6aec"
_Facts, _Duels = c_struct(SOURCE, "Facts"), c_struct(SOURCE, "Duels")


class Library:
    """The functions of the compiled library."""

    def __init__(self, path: Path) -> None:
        lib = ctypes.CDLL(str(path))
        duels, at, number = POINTER(_Duels), c_void_p, c_int64
        state = [at] * 3
        self.move, self.restart = lib.sweepd_card_duel_move, lib.sweepd_card_duel_restart
        self.see, self.legal = lib.sweepd_card_duel_see, lib.sweepd_card_duel_legal
        self.mask, self.all_legal = lib.sweepd_card_duel_mask, lib.sweepd_card_duel_all_legal
        self.move.argtypes = [duels, *state, at, at, number, *state, at, at, number]
        self.restart.argtypes = [duels, *state, at, at, number, *state, number]
        self.see.argtypes = [duels, at, at, at, at, number]
        self.legal.argtypes = [duels, at, at, number]
        self.mask.argtypes = [duels, at, at, number, at, number]
        self.all_legal.argtypes = [duels, at, at, at]
        for function in (self.move, self.restart, self.see, self.legal, self.mask):
            function.restype = None
        self.all_legal.restype = c_int64


class NativeDuel:
    """The rules of one environment's games: `StrictRules` (`sweepd.envs.games.rules`)."""

    @classmethod
    def of(cls, library: Library, game: BatchedRules) -> NativeDuel:
        """Return the rules of a game."""
        return cls(library, game.num_games, game.numbers)

    def __init__(self, library: Library, games: int, numbers: Mapping[str, Tensor]) -> None:
        """Take the parameters.

        Args:
            library: The compiled functions.
            games: Number of games.
            numbers: The parameters, `CardDuel.numbers`, which are read in every step.
        """
        self._library, self._games, cpu = library, games, torch.device("cpu")
        self._duels = _Duels(
            games=games,
            columns=SIZE,
            facts=_Facts(**facts(cpu)._asdict()),
            decks=decks(cpu),
            preset_decks=len(PRESETS),
            random_decks=RANDOM_DECKS,
            **numbers,
        )
        # The masks of the latest state, with its cells and their version.
        self._kept: tuple[Tensor, int, Tensor] | None = None

    def move(self, state: State, action: Tensor, uniforms: Tensor) -> tuple[State, Tensor, Tensor]:
        """See `GameRules.move`."""
        before, moved = _contiguous(state), self._state()
        action, uniforms = action.long().contiguous(), _with_whole_rows(uniforms)
        reward, over = torch.empty(self._games, 2), torch.empty(self._games, dtype=torch.bool)
        self._library.move(
            self._duels,
            *_addresses(before),
            action.data_ptr(),
            uniforms.data_ptr(),
            uniforms.stride(0),
            *_addresses(moved),
            reward.data_ptr(),
            over.data_ptr(),
            threads.count(),
        )
        return moved, reward, over

    def restart(self, state: State, ended: Tensor, uniforms: Tensor) -> State:
        """See `BatchedGame.restart`."""
        before, begun, uniforms = _contiguous(state), self._state(), _with_whole_rows(uniforms)
        self._library.restart(
            self._duels,
            *_addresses(before),
            ended.data_ptr(),
            uniforms.data_ptr(),
            uniforms.stride(0),
            *_addresses(begun),
            threads.count(),
        )
        return begun

    def see(self, state: State, seat: Tensor) -> Tensor:
        """See `GameRules.see`."""
        own, obs = _contiguous(state), torch.empty(self._games, SIZE, dtype=torch.uint8)
        seat = seat.contiguous()
        cells, decisions, _ = _addresses(own)
        self._library.see(
            self._duels, cells, decisions, seat.data_ptr(), obs.data_ptr(), threads.count()
        )
        return obs

    def mask(self, state: State, chosen: Tensor) -> Tensor:
        """See `GameRules.mask`."""
        if len(chosen) != self._games:
            raise ValueError(f"the choices are of {len(chosen)} games, not of {self._games}")
        legal, chosen, count = self.legal(state), chosen.long().contiguous(), chosen.shape[1]
        mask = torch.empty(self._games, CHOICES if count else TYPES, dtype=torch.bool)
        self._library.mask(
            self._duels,
            legal.data_ptr(),
            chosen.data_ptr(),
            count,
            mask.data_ptr(),
            threads.count(),
        )
        return mask

    def all_legal(self, state: State, action: Tensor, going: Tensor) -> bool:
        """See `GameRules.all_legal`."""
        if action.dtype != torch.int64:
            return False
        legal, action = self.legal(state), action.contiguous()
        addresses = (tensor.data_ptr() for tensor in (legal, action, going))
        return bool(self._library.all_legal(self._duels, *addresses))

    def legal(self, state: State) -> Tensor:
        """Return all masks of a state, packed: (games, PACKED) uint8, `masks.pack`."""
        cells = state["cells"]
        if self._kept and self._kept[0] is cells and self._kept[1] == cells._version:
            return self._kept[2]
        legal = torch.empty(self._games, PACKED, dtype=torch.uint8)
        whole = cells.contiguous()
        self._library.legal(self._duels, whole.data_ptr(), legal.data_ptr(), threads.count())
        self._kept = cells, cells._version, legal
        return legal

    def _state(self) -> State:
        """Return memory of a state."""
        return {
            "cells": torch.empty(self._games, ROWS, dtype=torch.int8),
            "decisions": torch.empty(self._games, dtype=torch.int16),
            "turns": torch.empty(self._games, dtype=torch.int16),
        }


def _contiguous(state: State) -> State:
    """Return a state as it is, except that positions of torch's may lie games last."""
    return {name: tensor.contiguous() for name, tensor in state.items()}


def _addresses(state: State) -> list[int]:
    return [tensor.data_ptr() for tensor in state.values()]


def _with_whole_rows(uniforms: Tensor) -> Tensor:
    """Return numbers whose rows are contiguous."""
    return uniforms if uniforms.stride(1) == 1 else uniforms.contiguous()


def digest(found: Library) -> str:
    """Return 16 hexadecimal digits of a hash of what the rules compute, for their self-test."""
    games, steps = 61, 120
    shape = steps + 1, games, 2 + START_UNIFORMS + MOVE_UNIFORMS + 3
    drawn = scattered(*shape, below=1000003) / 1000003
    numbers = {"preset": 0.5, "first_preset": 0.0, "presets": 3.0, "mirrored": 0.0}
    duel = NativeDuel(
        found, games, {n: torch.full((games,), x).double() for n, x in numbers.items()}
    )
    sizes = 2 + START_UNIFORMS, MOVE_UNIFORMS, 3
    starts, moves, choices = drawn.split_with_sizes(sizes, 2)
    ended = torch.ones(games, dtype=torch.bool)
    state = duel.restart(duel._state(), ended, starts[steps])
    hashed = hashlib.sha256()
    for step in range(steps):
        chosen = torch.zeros(games, 0, dtype=torch.int64)
        for uniform in choices[step].unbind(1):
            mask = duel.mask(state, chosen)
            # A legal option: the first one whose rank is above the uniform number.
            ranks = mask.cumsum(1)
            option = (ranks > uniform.unsqueeze(1) * ranks[:, -1:]).byte().argmax(1, keepdim=True)
            chosen = torch.cat((chosen, option), 1)
        going = torch.tensor(duel.all_legal(state, chosen, ended))
        seen = [duel.see(state, torch.full((games,), seat)) for seat in (0, 1)]
        moved, *rest = duel.move(state, chosen, moves[step])
        for tensor in (*state.values(), duel.legal(state), chosen, going, *seen, *rest):
            hashed.update(tensor.numpy().tobytes())
        state = duel.restart(moved, rest[1], starts[step])
    return hashed.hexdigest()[:16]


STEP = NativeLibrary("the card duel step", SOURCE, Library, digest, DIGEST)

if __name__ == "__main__":
    STEP.print_digest()
