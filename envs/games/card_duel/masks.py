"""Legal actions as bits: a position's exact conditional masks in 68 bytes.

Whether a first and second number go together depends on the type, and for spells on the effect of
the card. So three masks need no table of 11 x 10 x 10: the legal first numbers of each type, the
legal second numbers of each type, and those of each effect, each as the bits of an int16.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sweepd.envs.games.card_duel.cards import Effect, Keyword, Kind
from sweepd.envs.games.card_duel.constants import (
    CHEAP,
    CHOICES,
    ENEMY_CHAMPION,
    FRONT,
    HAND,
    HIGHEST_MANA,
    OWN_CHAMPION,
    TYPES,
    Action,
    Phase,
)
from sweepd.envs.games.card_duel.layout import CHAMPION_PLACE, Board, at, is_equal
from sweepd.envs.games.card_duel.tables import facts, look_up

PACKED = 2 * TYPES + 2 * TYPES + 2 * len(Effect) + HAND  # bytes


class Legal(NamedTuple):
    """The legal actions of the players to move.

    Attributes:
        first: (TYPES, games) int16, bit i: first number i is legal. 0: the type is not.
        second: (TYPES, games) int16, likewise of the second number, except of spells.
        targets: (effects, games) int16, the targets of each effect; of DRAW, bit 0.
        spells: (HAND, games) int8, the effects of the cards in the hand.
    """

    first: Tensor
    second: Tensor
    targets: Tensor
    spells: Tensor


def bits(flags: Tensor) -> Tensor:
    """Return (..., games) int16 with the flags (..., rows, games) as bits."""
    weights = 2 ** torch.arange(flags.shape[-2], dtype=torch.int16, device=flags.device)
    return (flags * weights.unsqueeze(1)).sum(-2, dtype=torch.int16)


def as_bools(sets: Tensor, options: int) -> Tensor:
    """Return (..., options) bool of (...) int16 bits."""
    powers = 2 ** torch.arange(options, dtype=torch.int16, device=sets.device)
    return (sets.unsqueeze(-1) & powers) != 0


def targets_of_effects(board: Board) -> Tensor:
    """Return (effects, games) int16: what each effect may hit; see `Legal.targets`.

    The unit whose effect it is, if there is one, is not among them.
    """
    front = board.id[:, :FRONT]
    cost = look_up(facts(front.device).cost, front)
    occupied = is_equal(front, 0) ^ 1
    own, enemy = bits(occupied)
    cheap, enemy_cheap = bits(occupied & (cost <= CHEAP).view(torch.int8))
    # Bit `source - 1` is the unit's own; without a source, 1 << 0 >> 1 is no bit.
    others = ~((torch.ones_like(own) << board.source) >> 1)
    own, cheap, champion = own & others, cheap & others, torch.full_like(own, 1 << OWN_CHAMPION)
    hits = {
        Effect.NONE: torch.zeros_like(own),
        Effect.DAMAGE: enemy << FRONT | 1 << ENEMY_CHAMPION,
        Effect.HEAL: own | champion,
        Effect.STUN: enemy << FRONT,
        Effect.RETURN: cheap | enemy_cheap << FRONT,
        Effect.STRENGTHEN: own,
        Effect.DRAW: torch.ones_like(own),
    }
    return torch.stack([hits[effect] for effect in Effect])


def legal_actions(board: Board) -> Legal:
    """Compute the legal actions of all positions."""
    table, one = facts(board.cells.device), torch.ones_like(board.source, dtype=torch.int16)
    # -1 in games in that phase: all bits.
    mulligan, main, response, target = (
        -is_equal(board.phase, phase).to(torch.int16) for phase in Phase
    )
    targets = targets_of_effects(board)
    hand = board.hand[0]
    kind, spells = look_up(table.kind, hand), look_up(table.effect, hand)
    affordable = (look_up(table.cost, hand) <= board.mana[0]).view(torch.int8)
    units, gear, castable = (bits(affordable & is_equal(kind, own)) for own in Kind)
    quick = bits(look_up(table.quick, hand))
    castable &= bits(at_effects(targets, spells) != 0) & (main | (response & quick))

    free_front, free_back = bits(is_equal(board.id[0, :FRONT], 0)), bits(is_equal(board.back[0], 0))
    bearers, attackers, guards = _own_bodies(board)
    prey = bits(board.tapped[1, :FRONT]) << FRONT | 1 << ENEMY_CHAMPION
    advance = -(board.advanced[0] ^ 1).to(torch.int16)
    spark = (board.spark[0] & (board.mana[0] < HIGHEST_MANA).view(torch.int8)).to(torch.int16)

    def where_any(firsts: Tensor, seconds: Tensor) -> Tensor:
        return firsts & -(seconds != 0).to(torch.int16)

    first = {
        Action.END: one & ~target,
        Action.MULLIGAN: one & mulligan,
        Action.PLAY_FRONT: where_any(units, free_front) & main,
        Action.PLAY_BACK: where_any(units, free_back) & main,
        Action.GEAR: where_any(gear, bearers) & main,
        Action.SPELL: castable,
        Action.ATTACK: attackers & main,
        Action.ADVANCE: where_any(free_back ^ (1 << FRONT) - 1, free_front) & advance & main,
        Action.GUARD: guards & response,
        Action.TARGET: one & target,
        Action.SPARK: spark & main,
    }
    pending = at(targets, board.effect.long())
    second = dict.fromkeys(Action, one) | {
        Action.PLAY_FRONT: free_front,
        Action.PLAY_BACK: free_back,
        Action.GEAR: bearers,
        Action.ATTACK: prey,
        Action.ADVANCE: free_front,
        Action.TARGET: pending,
    }
    return Legal(
        torch.stack([first[action] for action in Action]),
        torch.stack([second[action] for action in Action]),
        targets,
        spells,
    )


def at_effects(targets: Tensor, effects: Tensor) -> Tensor:
    """Return (rows, games) int16: the targets of (rows, games) int8 effects."""
    return targets.gather(0, effects.long())


def _own_bodies(board: Board) -> tuple[Tensor, Tensor, Tensor]:
    """Return as bits the own targets for gear, the own attackers, and the guards in a response."""
    table = facts(board.cells.device)
    ids, gear, tapped = board.id[0], board.gear[0], board.tapped[0]
    present = is_equal(ids, 0) ^ 1
    bare = is_equal(gear, 0)
    without = bits(present & bare)
    # The champion is place 4 among the bodies and 8 among the targets.
    champion = without >> CHAMPION_PLACE
    bearers = (without & (1 << FRONT) - 1) | champion << OWN_CHAMPION
    keywords = look_up(table.keywords, ids) | look_up(table.keywords, gear)
    ready = board.fresh[0] ^ 1 | keywords & Keyword.CHARGE
    armed = bits(bare ^ 1) | (1 << FRONT) - 1  # units need no gear
    untapped = present & (tapped ^ 1)
    attackers = bits(untapped & ready) & armed
    place = (board.attacker - 1).clamp_min(0).long()
    attacker = look_up(table.keywords, at(board.id[1], place))
    attacker |= look_up(table.keywords, at(board.gear[1], place))
    stopped = is_equal(attacker & Keyword.EVASIVE, 0)
    guard = (keywords & Keyword.GUARD) >> 1
    guards = bits((untapped & guard)[:FRONT] & stopped)
    return bearers, attackers, guards


def type_mask(legal: Legal) -> Tensor:
    """Return (games, TYPES) bool: the types with a legal action."""
    return (legal.first != 0).t()


def first_mask(legal: Legal, kind: Tensor) -> Tensor:
    """Return (games, CHOICES) bool: the legal first numbers of types, (games,) int64."""
    return as_bools(at(legal.first, kind), CHOICES)


def second_mask(legal: Legal, kind: Tensor, first: Tensor) -> Tensor:
    """Return (games, CHOICES) bool: the legal second numbers, given type and first number."""
    effect = at(legal.spells, first.clamp_max(HAND - 1)).long()
    spell = (kind == Action.SPELL).to(torch.int16)
    second = at(legal.second, kind)
    second = second ^ ((at(legal.targets, effect) ^ second) & -spell)
    # Nothing follows a first number that is not legal.
    right = (at(legal.first, kind) >> first.to(torch.int16)) & 1
    return as_bools(second & -right, CHOICES)


def full_masks(legal: Legal) -> tuple[Tensor, Tensor, Tensor]:
    """Return all masks: (games, 11), (games, 11, 10) and (games, 11, 10, 10) bool."""
    of_cards = at_effects(legal.targets, legal.spells)
    second = legal.second.unsqueeze(1).repeat(1, CHOICES, 1)
    second[Action.SPELL] = of_cards
    known = as_bools(legal.first, CHOICES)  # (types, games, first)
    of_second = as_bools(second, CHOICES).transpose(1, 2) & known.unsqueeze(-1)
    return type_mask(legal), known.transpose(0, 1), of_second.transpose(0, 1)


def pack(legal: Legal) -> Tensor:
    """Return the masks as (games, PACKED) uint8."""
    words = torch.cat((legal.first, legal.second, legal.targets)).t().contiguous()
    return torch.cat((words.view(torch.uint8), legal.spells.t().view(torch.uint8)), 1)


def unpack(packed: Tensor) -> Legal:
    """Return what `pack` packed."""
    words = packed[:, : PACKED - HAND].contiguous().view(torch.int16).t()
    first, second, targets = words.split_with_sizes((TYPES, TYPES, len(Effect)))
    return Legal(first, second, targets, packed[:, PACKED - HAND :].view(torch.int8).t())
