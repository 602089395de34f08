"""The state of many duels as one tensor of bytes, and names for its rows.

A position is (ROWS, games) int8 with games last, so that every operation runs over contiguous
memory. Side 0 belongs to the player to move and side 1 to the other: the rules then need no index
by seat, and the sides change places when the other is to move.

Flags are int8, 0 or 1: torch computes with them many times faster than it selects by bools.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

import torch
from torch import Tensor

from sweepd.envs.games.card_duel.cards import CARDS, DECK_SIZE
from sweepd.envs.games.card_duel.constants import BACK, FRONT, HAND

BODIES = FRONT + 1  # front units, then the champion
CHAMPION_PLACE = FRONT
ATTRIBUTES = ("id", "damage", "strength", "tapped", "stunned", "fresh", "gear")
# Rows of a side. Cards are ids; what is empty is 0. The first `left` rows of the deck and the first
# `held` rows of the hand are filled. The deck has no order: cards are drawn at random. The discard
# counts cards by id; its row 0 stays 0.
SIDE_ROWS = {
    "deck": DECK_SIZE,
    "left": 1,
    "hand": HAND,
    "held": 1,
    "bodies": len(ATTRIBUTES) * BODIES,
    "back": BACK,
    "back_fresh": BACK,
    "discard": len(CARDS) + 1,
    "mana": 1,
    "max_mana": 1,
    "spark": 1,
    "advanced": 1,
}
SIDE = sum(SIDE_ROWS.values())
# Rows that belong to no side. `mover` is the seat to move and `own_turn` whether it is its turn;
# `starter` is the seat that had the first turn.
# `attacker` and `target` are places of bodies and `source` is a front slot, each plus 1: 0 is none.
SHARED_ROWS = ("phase", "mover", "own_turn", "attacker", "target", "effect", "source", "starter")
ROWS = 2 * SIDE + len(SHARED_ROWS)
MOVER = 2 * SIDE + SHARED_ROWS.index("mover")
_STARTS = dict(zip(SIDE_ROWS, pairwise(accumulate(SIDE_ROWS.values(), initial=0)), strict=True))


class Board:
    """Views of a position's rows: what is written to them is written to the position.

    Attributes:
        cells: (ROWS, games) int8, the position.
        deck, hand, back, back_fresh, discard: (2, rows, games) of both sides.
        left, held, mana, max_mana, spark, advanced: (2, games).
        bodies: (2, attributes, places, games); by attribute also `id`, `damage`, `strength`,
            `tapped`, `stunned`, `fresh` and `gear`, (2, places, games).
        phase, mover, own_turn, attacker, target, effect, source, starter: (games,).
    """

    def __init__(self, cells: Tensor) -> None:
        self.cells, self.games = cells, cells.shape[1]
        self.sides = cells[: 2 * SIDE].view(2, SIDE, self.games)
        self.deck, self.hand, self.back = self._many("deck"), self._many("hand"), self._many("back")
        self.back_fresh, self.discard = self._many("back_fresh"), self._many("discard")
        self.left, self.held = self._one("left"), self._one("held")
        self.mana, self.max_mana = self._one("mana"), self._one("max_mana")
        self.spark, self.advanced = self._one("spark"), self._one("advanced")
        self.bodies = self._many("bodies").view(2, len(ATTRIBUTES), BODIES, self.games)
        self.id, self.damage, self.strength, self.tapped, self.stunned, self.fresh, self.gear = (
            self.bodies.unbind(1)
        )
        shared = cells[2 * SIDE :]
        self.phase, self.mover, self.own_turn, self.attacker = shared[:4].unbind(0)
        self.target, self.effect, self.source, self.starter = shared[4:].unbind(0)

    def _many(self, name: str) -> Tensor:
        first, last = _STARTS[name]
        return self.sides[:, first:last]

    def _one(self, name: str) -> Tensor:
        return self._many(name).squeeze(1)


def is_equal(one: Tensor, other: Tensor | int) -> Tensor:
    """Return where two tensors are equal, as flags."""
    return (one == other).view(torch.int8)


def pick(flag: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Return `one` where the flag is 1, else `other`; int8, broadcast.

    On the CPU `torch.where` takes ten times as long: it is not vectorized for bytes.
    """
    return other ^ ((one ^ other) & -flag)


def at(rows: Tensor, index: Tensor) -> Tensor:
    """Return (..., games): in each game the row that (..., games) int64 `index` names."""
    return rows.gather(-2, index.unsqueeze(-2)).squeeze(-2)


def add_at(rows: Tensor, index: Tensor, value: Tensor) -> None:
    """Add (..., games) `value` to the row that `index` names, in place."""
    rows.scatter_add_(-2, index.unsqueeze(-2), value.unsqueeze(-2))
