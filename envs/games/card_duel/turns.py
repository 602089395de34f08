"""Beginnings and ends: of games, of turns, and of the mulligan."""

from __future__ import annotations

import torch
from torch import Tensor

from sweepd.envs.games.card_duel.cards import CHAMPION
from sweepd.envs.games.card_duel.constants import FRONT, HIGHEST_MANA, OPENING_HAND
from sweepd.envs.games.card_duel.draws import draw
from sweepd.envs.games.card_duel.layout import CHAMPION_PLACE, ROWS, Board, pick

START_UNIFORMS = 1 + 2 * OPENING_HAND
MOVE_UNIFORMS = OPENING_HAND + 1


def begin_games(decks: Tensor, uniforms: Tensor) -> Tensor:
    """Return positions at the mulligan of the first player, (ROWS, games) int8.

    Args:
        decks: (2, DECK_SIZE, games) int8, of the seats.
        uniforms: (START_UNIFORMS, games) float64 in [0, 1): the first player, then the draws of
            the first player and of the second.
    """
    games = uniforms.shape[1]
    board = Board(torch.zeros(ROWS, games, dtype=torch.int8, device=uniforms.device))
    first = (uniforms[0] >= 0.5).view(torch.int8)
    board.mover.copy_(first)
    board.starter.copy_(first)
    board.own_turn.fill_(1)
    board.deck.copy_(pick(first, decks.flip(0), decks))
    board.left.fill_(decks.shape[1])
    board.id[:, CHAMPION_PLACE] = CHAMPION
    board.spark[1] = 1
    # Both sides draw their next card at once.
    draws = uniforms[1:].view(2, OPENING_HAND, games)
    everywhere = torch.ones_like(board.left)
    for number in range(OPENING_HAND):
        draw(board, slice(0, 2), everywhere, draws[:, number])
    return board.cells


def end_turns(board: Board, ends: Tensor) -> None:
    """End the turn of side 0 in some games, (games,) flags, in place."""
    goes = ends - 1  # all bits where the turn goes on
    board.damage[:, :FRONT] &= goes
    board.strength.bitwise_and_(goes)
    board.fresh[0] &= goes
    board.back_fresh[0] &= goes
    # Only the player whose turn it is has gear.
    gear = board.gear[0]
    board.discard[0].scatter_add_(0, gear.long(), ends.expand_as(gear))
    board.discard[0, 0] = 0  # counted empty places
    gear &= goes


def begin_turns(board: Board, begins: Tensor) -> None:
    """Begin the turn of side 1 in some games, (games,) flags, in place. It has yet to draw."""
    tapped, stunned = board.tapped[1], board.stunned[1]
    tapped.copy_(pick(begins, stunned, tapped))
    stunned &= begins - 1
    most = board.max_mana[1]
    most.copy_((most + begins).clamp_max(HIGHEST_MANA))
    board.mana[1] = pick(begins, most, board.mana[1])
    board.advanced[1] &= begins - 1


def draw_cards(board: Board, cards: Tensor, uniforms: Tensor) -> Tensor:
    """Draw cards, in place; return which sides drew from an empty deck, (2, games) flags.

    Args:
        board: The positions.
        cards: (2, games) int8, the numbers of cards; of side 1 at most 1.
        uniforms: (MOVE_UNIFORMS, games) float64: draws of side 0, then one of side 1.
    """
    drawn = torch.stack((uniforms[0], uniforms[-1]))
    empty = draw(board, slice(0, 2), (cards > 0).view(torch.int8), drawn)
    for number in range(1, OPENING_HAND):
        more = (cards[:1] > number).view(torch.int8)
        empty[:1] |= draw(board, slice(0, 1), more, uniforms[number : number + 1])
    return empty
