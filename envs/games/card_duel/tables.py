"""Facts of the cards as tensors, looked up by id."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from sweepd.envs.games.card_duel.cards import CARDS, CHAMPION, NO_KEYWORD, Effect, Kind, known_decks
from sweepd.envs.games.card_duel.constants import HEALTH


class Facts(NamedTuple):
    """One number per id from 0 to CHAMPION, (CHAMPION + 1,) int8; all 0 of no card."""

    kind: Tensor
    cost: Tensor
    attack: Tensor
    health: Tensor
    keywords: Tensor
    effect: Tensor
    quick: Tensor


@cache
def facts(device: torch.device) -> Facts:
    """Return the facts on a device."""
    rows = [
        (own.kind, own.cost, own.attack, own.health, own.keywords, own.effect, own.quick)
        for own in CARDS
    ]
    champion = (0, 0, 0, HEALTH, NO_KEYWORD, Effect.NONE, False)
    columns = zip((0,) * len(champion), *rows, champion, strict=True)
    return Facts(*(torch.tensor(column, dtype=torch.int8, device=device) for column in columns))


@cache
def decks(device: torch.device) -> Tensor:
    """Return `known_decks` on a device: (decks, DECK_SIZE) int8."""
    return torch.tensor(known_decks(), dtype=torch.int8, device=device)


def look_up(table: Tensor, ids: Tensor) -> Tensor:
    """Return the table's numbers for ids of any shape."""
    return table.index_select(0, ids.flatten().int()).view(ids.shape)


def numbers_of_cards() -> tuple[tuple[float, ...], ...]:
    """Return what networks may know of each id: cost, attack and health, and 0 or 1 for the rest.

    The rest: each kind, keyword and effect, whether it is quick, and whether it is a champion.
    """
    empty = (0.0,) * (3 + len(Kind) + 6 + len(Effect) - 1 + 2)
    rows = [empty]
    for own in CARDS:
        kinds = [float(own.kind == kind) for kind in Kind]
        keywords = [float(bool(own.keywords & (1 << bit))) for bit in range(6)]
        effects = [float(own.effect == effect) for effect in list(Effect)[1:]]
        sizes = [own.cost / 8.0, own.attack / 8.0, own.health / 8.0]
        rows.append((*sizes, *kinds, *keywords, *effects, float(own.quick), 0.0))
    rows.append((0.0, 0.0, HEALTH / 8.0, *empty[3:-1], 1.0))
    assert len(rows) == CHAMPION + 1
    return tuple(rows)
