"""A decision of the duel, for thousands of games at once.

Every part is computed for all games, with flags for those that it is for: no operation depends on
a tensor's value. docs: envs/games/card_duel/game.py has the rules in words.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sweepd.envs.games.card_duel.actions import declare_attacks, fights, play_cards, read_choice
from sweepd.envs.games.card_duel.constants import HEALTH, OPENING_HAND, Action, Phase
from sweepd.envs.games.card_duel.draws import put_hand_back
from sweepd.envs.games.card_duel.hits import fighters_live, hit
from sweepd.envs.games.card_duel.layout import CHAMPION_PLACE, Board, pick
from sweepd.envs.games.card_duel.turns import begin_turns, draw_cards, end_turns


class Decided(NamedTuple):
    """What a decision leads to.

    Attributes:
        cells: (ROWS, games) int8, the positions after it.
        lost: (2, games) flags of the seats: which have lost. Both: a draw.
        turn: (games,) flags: where a turn began.
    """

    cells: Tensor
    lost: Tensor
    turn: Tensor


def decide(cells: Tensor, action: Tensor, uniforms: Tensor) -> Decided:
    """Play a legal action in every game.

    Args:
        cells: (ROWS, games) int8, the positions. Not changed.
        action: (games, 3) int64, of the players to move: type, first and second number.
        uniforms: (MOVE_UNIFORMS, games) float64 in [0, 1), for draws.
    """
    board = Board(cells.clone(memory_format=torch.contiguous_format))
    choice = read_choice(board, action)
    ends, mulligan = choice.kinds[Action.END], choice.kinds[Action.MULLIGAN]
    mulligans, main, response, _ = choice.phases
    seat, last_mulligan = board.mover.clone(), mulligans & (board.own_turn ^ 1)

    effect, waits = play_cards(board, choice)
    declare_attacks(board, choice)
    cards = hit(board, choice, effect)
    under_attack = response & (fights(choice) ^ 1) & fighters_live(board)
    put_hand_back(board, mulligan)
    turn_ends = ends & main
    end_turns(board, turn_ends)
    turn = turn_ends | last_mulligan
    begin_turns(board, turn)
    cards[0] += OPENING_HAND * mulligan
    cards[1] += turn_ends  # the very first turn begins without a draw
    lost = draw_cards(board, cards, uniforms)
    lost |= (board.damage[:, CHAMPION_PLACE] >= HEALTH).view(torch.int8)

    attack = choice.kinds[Action.ATTACK]
    pending = attack | under_attack
    board.attacker &= -pending
    board.target &= -pending
    # MAIN, unless one of these: they exclude each other.
    first_mulligan = mulligans ^ last_mulligan
    board.phase.copy_(
        Phase.MAIN
        + first_mulligan * (Phase.MULLIGAN - Phase.MAIN)
        + pending * (Phase.RESPONSE - Phase.MAIN)
        + waits * (Phase.TARGET - Phase.MAIN)
    )
    board.own_turn.copy_((first_mulligan | pending) ^ 1)
    changes = mulligans | attack | (response ^ under_attack) | turn_ends
    board.mover ^= changes
    sides = board.sides
    sides.copy_(pick(changes, sides.flip(0), sides))
    return Decided(board.cells, pick(seat, lost.flip(0), lost), turn)
