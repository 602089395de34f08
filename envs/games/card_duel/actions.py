"""Main actions: cards that are played, units that advance, attacks that are declared."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sweepd.envs.games.card_duel.cards import Effect
from sweepd.envs.games.card_duel.constants import (
    ADVANCE_STRENGTH,
    FRONT,
    HIGHEST_MANA,
    OWN_CHAMPION,
    SPARK_MANA,
    TYPES,
    Action,
    Phase,
)
from sweepd.envs.games.card_duel.draws import discard, remove_from_hand
from sweepd.envs.games.card_duel.layout import CHAMPION_PLACE, Board, add_at, at, is_equal
from sweepd.envs.games.card_duel.masks import targets_of_effects
from sweepd.envs.games.card_duel.tables import facts, look_up

MOVER = slice(0, 1)


class Choice(NamedTuple):
    """The actions of the players to move, (games,) int8 each.

    Attributes:
        kinds: (TYPES, games) flags, 1 for the action's type.
        phases: (phases, games) flags, 1 for the phase.
        first, second: Its numbers.
        place: The body that `second` means as a target: 0-3, or 4 of a champion.
        enemy: Whether `second` means the enemy's.
    """

    kinds: Tensor
    phases: Tensor
    first: Tensor
    second: Tensor
    place: Tensor
    enemy: Tensor


def read_choice(board: Board, action: Tensor) -> Choice:
    """Return what (games, 3) int64 actions mean."""
    kind, first, second = action.t().to(torch.int8).contiguous().unbind(0)
    numbers = torch.arange(TYPES, dtype=torch.int8, device=action.device).unsqueeze(1)
    champion = (second >= OWN_CHAMPION).view(torch.int8)
    slot = second & FRONT - 1
    return Choice(
        kinds=is_equal(numbers, kind),
        phases=is_equal(numbers[: len(Phase)], board.phase),
        first=first,
        second=second,
        place=slot * (champion ^ 1) + CHAMPION_PLACE * champion,
        # Of targets 4-7, bit 2 is set; of champions, bit 0 tells which.
        enemy=(second >> 2) & 1 | champion & second,
    )


def play_cards(board: Board, choice: Choice) -> tuple[Tensor, Tensor]:
    """Play cards and advance units, in place.

    Returns:
        The effects that happen now, (games,) ids of `Effect`; and where a unit's effect waits for
        its target, (games,) flags.
    """
    table, kinds = facts(board.cells.device), choice.kinds
    to_front, to_back = kinds[Action.PLAY_FRONT], kinds[Action.PLAY_BACK]
    unit, spell = to_front | to_back, kinds[Action.SPELL]
    before = targets_of_effects(board)  # so a unit is not a target of its own effect

    card = remove_from_hand(board, choice.first, unit | spell | kinds[Action.GEAR])
    board.mana[0] -= look_up(table.cost, card)
    discard(board, MOVER, card.unsqueeze(0), spell.unsqueeze(0))
    _place_units(board, choice, card)
    place = choice.place.long()
    add_at(board.gear[0], place, card * kinds[Action.GEAR])
    mana = board.mana[0]
    mana.copy_((mana + SPARK_MANA * kinds[Action.SPARK]).clamp_max(HIGHEST_MANA))
    board.spark[0] -= kinds[Action.SPARK]

    effect = look_up(table.effect, card)
    draws = is_equal(effect, Effect.DRAW)
    possible = (at(before, effect.long()) != 0).view(torch.int8)
    waits = unit & (draws ^ 1) & possible
    now = effect * (spell | draws) + board.effect * kinds[Action.TARGET]
    board.effect.copy_(effect * waits)
    board.source.copy_((choice.second + 1) * (waits & to_front))
    return now, waits


def _place_units(board: Board, choice: Choice, card: Tensor) -> None:
    """Put played units into their slots, and move those that advance."""
    kinds, slot = choice.kinds, (choice.second & FRONT - 1).long()
    to_front, to_back = kinds[Action.PLAY_FRONT], kinds[Action.PLAY_BACK]
    advances, from_slot = kinds[Action.ADVANCE], (choice.first & FRONT - 1).long()
    unit = at(board.back[0], from_slot) * advances
    fresh = at(board.back_fresh[0], from_slot) * advances
    add_at(board.back[0], from_slot, -unit)
    add_at(board.back_fresh[0], from_slot, -fresh)
    add_at(board.back[0], slot, card * to_back)
    add_at(board.back_fresh[0], slot, to_back)
    add_at(board.id[0], slot, card * to_front + unit)
    add_at(board.fresh[0], slot, to_front + fresh)
    add_at(board.strength[0], slot, ADVANCE_STRENGTH * advances)
    board.advanced[0] |= advances


def declare_attacks(board: Board, choice: Choice) -> None:
    """Tap attackers, and remember who attacks whom, in place."""
    attacks = choice.kinds[Action.ATTACK]
    add_at(board.tapped[0], choice.first.clamp_max(CHAMPION_PLACE).long(), attacks)
    board.attacker.add_((choice.first + 1) * attacks)
    board.target.add_((choice.place + 1) * attacks)


def fights(choice: Choice) -> Tensor:
    """Return where a response ends and the attack is fought out, (games,) flags."""
    passes = choice.kinds[Action.END] & choice.phases[Phase.RESPONSE]
    return passes | choice.kinds[Action.GUARD]
