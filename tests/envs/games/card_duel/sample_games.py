"""Games of the scalar reference as tensors, and random choices."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from sweepd.envs.games.card_duel.cards import CARDS, DECK_SIZE
from sweepd.envs.games.card_duel.constants import Action, Phase
from sweepd.envs.games.card_duel.layout import ROWS
from sweepd.envs.games.card_duel.turns import MOVE_UNIFORMS, START_UNIFORMS, begin_games
from tests.envs.games.card_duel.reference import Body, Duel, Side

Chosen = tuple[int, int, int]


def side_cells(side: Side) -> list[int]:
    """Return a side in the order of `layout.SIDE_ROWS`."""

    def padded(cards: Sequence[int], size: int) -> list[int]:
        return [*cards, *[0] * (size - len(cards))]

    bodies = [body or Body(0) for body in side.bodies()]
    attributes = ("id", "damage", "strength", "tapped", "stunned", "fresh", "gear")
    return [
        *padded(side.deck, DECK_SIZE),
        len(side.deck),
        *padded(side.hand, 10),
        len(side.hand),
        *(int(getattr(body, name)) for name in attributes for body in bodies),
        *(0 if unit is None else unit.id for unit in side.back),
        *(0 if unit is None else int(unit.fresh) for unit in side.back),
        *(side.discard[own] for own in range(len(CARDS) + 1)),
        side.mana,
        side.max_mana,
        int(side.spark),
        int(side.advanced),
    ]


def cells_of(game: Duel) -> list[int]:
    """Return a game as a column of cells."""
    own_turn = game.mover == game.turn_of

    def number(place: int | None) -> int:
        return 0 if place is None else place + 1

    cells = [
        *side_cells(game.sides[game.mover]),
        *side_cells(game.sides[1 - game.mover]),
        game.phase,
        game.mover,
        int(own_turn),
        number(game.attacker),
        number(game.target),
        game.effect,
        number(game.source),
        game.first,
    ]
    assert len(cells) == ROWS
    return cells


def as_cells(games: Sequence[Duel]) -> Tensor:
    """Return (ROWS, games) int8."""
    columns = bytes(value for game in games for value in cells_of(game))
    return torch.frombuffer(bytearray(columns), dtype=torch.int8).view(len(games), ROWS).t()


class Pair:
    """The same games as scalars and as tensors, played with the same random numbers."""

    def __init__(self, decks: Sequence[Sequence[Sequence[int]]], seed: int) -> None:
        """Begin games with these decks of both seats."""
        self.generator = torch.Generator().manual_seed(seed)
        uniforms = self.uniforms(START_UNIFORMS, len(decks))
        rows = torch.tensor(decks, dtype=torch.int8).permute(1, 2, 0).contiguous()
        self.cells = begin_games(rows, uniforms)
        columns = uniforms.t().tolist()
        self.games = [Duel(own, column) for own, column in zip(decks, columns, strict=True)]

    def uniforms(self, rows: int, games: int) -> Tensor:
        return torch.rand(rows, games, dtype=torch.float64, generator=self.generator)

    def drawn(self) -> Tensor:
        return self.uniforms(MOVE_UNIFORMS, len(self.games))


def legal_list(game: Duel) -> list[Chosen]:
    """Return all legal actions of a game, by trying all."""
    return [
        (kind, first, second)
        for kind in Action
        for first in range(10)
        for second in range(10)
        if game.legal(kind, first, second)
    ]


def choose(game: Duel, rng: random.Random) -> Chosen:
    """Choose a type, then numbers; end turns a bit less often, so that much happens."""
    actions = legal_list(game)
    kinds = sorted({action[0] for action in actions})
    if game.phase == Phase.MAIN and len(kinds) > 1 and rng.random() < 0.7:
        kinds.remove(Action.END)
    kind = rng.choice(kinds)
    return rng.choice([action for action in actions if action[0] == kind])
