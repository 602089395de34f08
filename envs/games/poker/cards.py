"""Dealing distinct cards from a small deck."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor


def deal(uniforms: Tensor, deck: int) -> Tensor:
    """Deal distinct cards, all sequences with the same probability.

    Args:
        uniforms: (G, cards) float64 in [0, 1).
        deck: number of cards in the deck.

    Returns:
        (G, cards) int64 from 0 to deck - 1.
    """
    dealt = uniforms.new_zeros(len(uniforms), 0, dtype=torch.int64)
    for count in range(uniforms.shape[1]):
        card = (uniforms[:, count] * (deck - count)).long()
        # `card` counts only the cards that are left: add one for every dealt card that is not
        # above it, in ascending order.
        for gone in dealt.sort(1).values.unbind(1):
            card = card + (card >= gone)
        dealt = torch.cat((dealt, card.unsqueeze(1)), 1)
    return dealt


def every_deal(cards: int, deck: int) -> Tensor:
    """Return (deals, cards) float64, numbers for `deal` that give every sequence once."""
    columns = [(torch.arange(deck - count) + 0.5) / (deck - count) for count in range(cards)]
    rows = itertools.product(*(column.tolist() for column in columns))
    return torch.tensor(list(rows), dtype=torch.float64)
