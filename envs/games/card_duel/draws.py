"""Cards that move between deck, hand and discard."""

from __future__ import annotations

import torch
from torch import Tensor

from sweepd.envs.games.card_duel.constants import HAND, OPENING_HAND
from sweepd.envs.games.card_duel.layout import Board, add_at, at


def draw(board: Board, side: slice, drawing: Tensor, uniforms: Tensor) -> Tensor:
    """Draw one random card in some games, in place; return where the deck was empty.

    The last card of the deck takes the place of the drawn one. A card beyond the hand's limit is
    discarded.

    Args:
        board: The positions.
        side: The sides that draw.
        drawing: (sides, games) flags.
        uniforms: (sides, games) float64 uniform in [0, 1).

    Returns:
        (sides, games) flags.
    """
    deck, left = board.deck[side], board.left[side]
    filled = (left > 0).view(torch.int8)
    taken = drawing & filled
    index = (uniforms * left).long()
    card = at(deck, index) * taken
    last_index = (left - 1).clamp_min(0).long()
    last = at(deck, last_index) * taken
    add_at(deck, index, last - card)
    add_at(deck, last_index, -last)
    left -= taken
    take(board, side, card, taken)
    return drawing & (filled ^ 1)


def take(board: Board, side: slice, card: Tensor, taken: Tensor) -> None:
    """Put cards into hands, or onto the discard where the hand is full, in place.

    Args:
        board: The positions.
        side: The sides that take.
        card: (sides, games) ids, 0 where nothing is taken.
        taken: (sides, games) flags.
    """
    held = board.held[side]
    room = (held < HAND).view(torch.int8)
    add_at(board.hand[side], held.clamp_max(HAND - 1).long(), card * room)
    held += taken & room
    discard(board, side, card, taken & (room ^ 1))


def discard(board: Board, side: slice, card: Tensor, when: Tensor) -> None:
    """Put cards onto discards where the flags say so, in place; see `take`."""
    # Elsewhere, row 0 gets 0: a champion has an id, but no row.
    add_at(board.discard[side], (card * when).long(), when)


def remove_from_hand(board: Board, index: Tensor, removed: Tensor) -> Tensor:
    """Take a card out of the hand of side 0 in some games, in place; return it, else 0.

    Args:
        board: The positions.
        index: (games,) int8, places in the hand where the flag is 1.
        removed: (games,) flags.
    """
    hand = board.hand[0]
    card = at(hand, index.clamp_max(HAND - 1).long()) * removed
    places = torch.arange(HAND, dtype=torch.int8, device=hand.device).unsqueeze(1)
    # Later cards move up; where nothing is removed, no place is late enough.
    late = -(places >= index + (removed ^ 1) * HAND).view(torch.int8)
    following = torch.cat((hand[1:], torch.zeros_like(hand[:1])))
    hand ^= (hand ^ following) & late
    board.held[0] -= removed
    return card


def put_hand_back(board: Board, back: Tensor) -> None:
    """Return the opening hand of side 0 to its deck in some games, (games,) flags, in place."""
    returned = board.hand[0, :OPENING_HAND] * back
    left = board.deck.shape[1] - OPENING_HAND
    board.deck[0, left:] += returned
    board.hand[0, :OPENING_HAND] -= returned
    board.left[0] += OPENING_HAND * back
    board.held[0] -= OPENING_HAND * back
