"""The card duel: a game in turns of two players with hidden hands and conditional masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from sweepd.envs.core.env_spec import BYTES
from sweepd.envs.games.card_duel.cards import PRESETS, RANDOM_DECKS
from sweepd.envs.games.card_duel.constants import CHOICES, DECISIONS, TYPES, Action
from sweepd.envs.games.card_duel.describe import describe_position
from sweepd.envs.games.card_duel.layout import MOVER, Board
from sweepd.envs.games.card_duel.masks import (
    Legal,
    first_mask,
    legal_actions,
    second_mask,
    type_mask,
)
from sweepd.envs.games.card_duel.native import STEP, NativeDuel
from sweepd.envs.games.card_duel.observation import COLUMNS, ITEMS, SIZE, observe
from sweepd.envs.games.card_duel.rules import decide
from sweepd.envs.games.card_duel.tables import decks
from sweepd.envs.games.card_duel.turns import MOVE_UNIFORMS, START_UNIFORMS, begin_games
from sweepd.envs.games.card_duel.words import DuelWords
from sweepd.envs.games.tensor_game import State, TensorGame
from sweepd.envs.support.errors import InputError


@dataclass(frozen=True)
class CardDuelParams:
    """Parameters of one member's games.

    Attributes:
        decks: "any" (a preset deck or a random one, with equal probabilities), "preset", "random",
            or the name of a preset deck.
        mirrored: whether both players have the same deck.

    Raises:
        InputError: a value is out of its range.
    """

    decks: str = "any"
    mirrored: bool = False

    def __post_init__(self) -> None:
        known = ("any", "preset", "random", *PRESETS)
        if self.decks not in known:
            raise InputError(f"card-duel decks {self.decks!r} is not one of {', '.join(known)}")
        if not isinstance(self.mirrored, bool):
            raise InputError(f"card-duel parameter mirrored is {self.mirrored!r}, not a bool")


class CardDuel(TensorGame):
    """A duel of two champions with 30-card decks.

    Each champion has 20 health. Both players draw five cards, and the first, a random one, keeps
    its hand or takes another five; then the second does. The second player has a spark: two
    more mana, once.

    A turn begins: one's units and champion untap, those stunned stay tapped this once; the highest
    mana grows by one up to 8, and is filled; one card is drawn, except in the very first turn. Then
    come any number of main actions until END. At the end all damage of units heals, added attack
    ends, and gear goes to the discard. Main actions:

    - play a unit into a free slot of the front row, where it may attack from the next turn on, or
      of the back row, where it can neither fight nor be attacked. Its effect then needs a target,
      which is a decision of its own; without a possible target nothing happens;
    - play gear onto a front unit or the champion, one on each, which may attack only with gear;
    - cast a spell on its target;
    - attack the enemy champion or a tapped enemy front unit with an untapped front unit or
      champion, which taps;
    - advance a unit from the back row to a free front slot, once a turn; it has +1 attack this
      turn, but if it was played this turn, it may not attack either;
    - use the spark, unless one has 8 mana, beyond which it does not go.

    The defender of an attack may respond: cast quick spells with the mana that is left from its
    turn, and then pass, or make an untapped unit with Guard the target, unless the attacker is
    Evasive. An attack ends without a fight if attacker or target is gone. Both sides deal their
    attack as damage at the same time; a unit whose damage reaches its health dies. Champions
    without gear deal none. Keywords and effects: `cards.Keyword`, `cards.Effect`.

    A hand holds ten cards; those drawn or returned beyond are discarded. A player whose champion
    has no health left, or who must draw from an empty deck, has lost; if both have, or after 300
    decisions, the game is drawn. The last decision's rewards are 1 for the winner, -1 for the loser
    and 0 in a draw; other rewards are 0.

    Actions are `constants.Action`, with its two numbers; observations are `observation.observe`.
    """

    seats, in_turns = 2, True
    if_discrete, masked = True, True
    action_dims = (TYPES, CHOICES, CHOICES)
    state_dim, obs_dtype, items = SIZE, BYTES, ITEMS
    # Seats are drawn; it is the first turn that makes a difference.
    seat_column = COLUMNS["second player"][0]
    max_step = DECISIONS
    counted = MappingProxyType({kind.name.lower(): int(kind) for kind in Action})
    uniforms_per_start = 2 + START_UNIFORMS
    uniforms_per_move = MOVE_UNIFORMS
    words = DuelWords()
    native_code = STEP.library, NativeDuel.of
    _kept: tuple[Tensor, int, Legal] | None = None

    def prepare(self, params: Sequence[CardDuelParams]) -> None:
        """See `GameRules.prepare`."""
        del params
        self._decks = decks(self.device)

    def numeric(self, params: CardDuelParams) -> dict[str, float]:
        """See `GameRules.numeric`. The probability of presets, and which of them there are."""
        names = [*PRESETS]
        one = params.decks in PRESETS
        return {
            "preset": {"any": 0.5, "random": 0.0}.get(params.decks, 1.0),
            "first_preset": float(names.index(params.decks)) if one else 0.0,
            "presets": 1.0 if one else float(len(names)),
            "mirrored": float(params.mirrored),
        }

    def start(self, uniforms: Tensor) -> State:
        """See `GameRules.start`."""
        rows = uniforms.t().contiguous()
        own, other = self._deck(rows[0]), self._deck(rows[1])
        other = torch.where(self.numbers["mirrored"] > 0, own, other)
        decks = self._decks.index_select(0, torch.cat((own, other)))
        by_seat = decks.t().contiguous().view(-1, 2, len(own)).transpose(0, 1)
        return {
            "cells": begin_games(by_seat, rows[2:]).t(),
            "decisions": torch.zeros_like(own, dtype=torch.int16),
            "turns": torch.zeros_like(own, dtype=torch.int16),
        }

    def _deck(self, uniform: Tensor) -> Tensor:
        """Return the numbers of decks: presets if the uniform is below their share."""
        share = self.numbers["preset"]
        preset = self.numbers["first_preset"] + uniform / share * self.numbers["presets"]
        drawn = len(PRESETS) + (uniform - share) / (1.0 - share) * RANDOM_DECKS
        # Not used where it is infinite or no number; below the end in spite of rounding.
        return torch.where(uniform < share, preset, drawn).clamp_max(len(self._decks) - 1).long()

    def mover(self, state: State) -> Tensor:
        """See `GameRules.mover`."""
        return state["cells"][:, MOVER].long()

    def move(self, state: State, action: Tensor, uniforms: Tensor) -> tuple[State, Tensor, Tensor]:
        """See `GameRules.move`."""
        decided = decide(_cells(state), action, uniforms.t().contiguous())
        decisions = state["decisions"] + 1
        lost, other_lost = decided.lost
        won = (other_lost - lost).float()
        moved = {
            "cells": decided.cells.t(),
            "decisions": decisions,
            "turns": state["turns"] + decided.turn,
        }
        over = (lost | other_lost).bool() | (decisions >= DECISIONS)
        return moved, torch.stack((won, -won), 1), over

    def see(self, state: State, seat: Tensor) -> Tensor:
        """See `GameRules.see`."""
        return observe(_cells(state), state["decisions"], seat)

    def mask(self, state: State, chosen: Tensor) -> Tensor:
        """See `GameRules.mask`."""
        legal, numbers = self.legal(state), chosen.unbind(1)
        if not numbers:
            return type_mask(legal)
        if len(numbers) == 1:
            return first_mask(legal, numbers[0])
        return second_mask(legal, numbers[0], numbers[1])

    def legal(self, state: State) -> Legal:
        """Return all masks of a state; kept, as they are asked for choice by choice."""
        cells = state["cells"]
        # The version counts changes in place, such as new episodes of a member.
        if self._kept and self._kept[0] is cells and self._kept[1] == cells._version:
            return self._kept[2]
        legal = legal_actions(Board(_cells(state)))
        self._kept = cells, cells._version, legal
        return legal

    def describe(self, state: State, game: int) -> str:
        """See `GameRules.describe`. The whole position, hidden cards too."""
        clock = int(state["decisions"][game]), int(state["turns"][game])
        return describe_position(state["cells"][game], *clock)


def _cells(state: State) -> Tensor:
    """Return positions with the games last, contiguous."""
    return state["cells"].t().contiguous()
