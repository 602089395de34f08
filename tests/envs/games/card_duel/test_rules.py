"""The duel's rules as tensors against the scalar reference."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sweepd.envs.games.card_duel.cards import CARDS, DECK_SIZE, PRESETS, Effect, Kind, random_deck
from sweepd.envs.games.card_duel.constants import DECISIONS, FRONT, Action
from sweepd.envs.games.card_duel.layout import Board
from sweepd.envs.games.card_duel.masks import (
    PACKED,
    Legal,
    first_mask,
    full_masks,
    legal_actions,
    pack,
    second_mask,
    type_mask,
    unpack,
)
from sweepd.envs.games.card_duel.observation import observe
from sweepd.envs.games.card_duel.rules import decide
from tests.envs.games.card_duel.reference import Duel, masks, observation
from tests.envs.games.card_duel.sample_games import Chosen, Pair, as_cells, choose


def some_decks(games: int, seed: int) -> list[list[tuple[int, ...]]]:
    """Return preset and random decks of both seats."""
    rng = random.Random(seed)
    known = [*PRESETS.values()]
    return [
        [rng.choice(known) if rng.random() < 0.3 else random_deck(rng) for _ in range(2)]
        for _ in range(games)
    ]


def check_masks(games: list[Duel], legal: Legal) -> None:
    """Compare masks with the brute force."""
    ours = full_masks(legal)
    for index, game in enumerate(games):
        theirs = masks(game)
        for own, other in zip(ours, theirs, strict=True):
            assert own[index].tolist() == other


def check_observations(pair: Pair) -> None:
    """Compare what both seats see."""
    decisions = torch.tensor([game.decisions for game in pair.games], dtype=torch.int16)
    for seat in (0, 1):
        seats = torch.full((len(pair.games),), seat)
        ours = observe(pair.cells, decisions, seats)
        assert ours.dtype == torch.uint8
        assert ours.tolist() == [observation(game, seat) for game in pair.games]


def lost_by(games: list[Duel]) -> Tensor:
    """Return (2, games): who has lost by the rules, other than the limit of decisions."""
    columns = [[side.overdrawn or side.champion.damage >= 20 for side in g.sides] for g in games]
    return torch.tensor(columns, dtype=torch.int8).t()


def step(pair: Pair, actions: list[Chosen], *, looks: bool = True) -> None:
    """Play one decision in both forms, and compare; observations if `looks`."""
    uniforms = pair.drawn()
    decided = decide(pair.cells, torch.tensor(actions), uniforms)
    for game, action, luck in zip(pair.games, actions, uniforms.t().tolist(), strict=True):
        game.play(*action, luck)
    expected = as_cells(pair.games)
    if not torch.equal(decided.cells, expected):
        row, column = (decided.cells != expected).nonzero()[0].tolist()
        got = int(decided.cells[row, column])
        raise AssertionError(
            f"row {row} is {got}, not {int(expected[row, column])}, after {actions[column]} in "
            f"{pair.games[column].__dict__}"
        )
    assert torch.equal(decided.lost, lost_by(pair.games))
    pair.cells = decided.cells
    if looks:
        check_observations(pair)


def compare(games: int, seed: int, steps: int) -> list[Duel]:
    """Play random games until all have ended, and compare everything; return them."""
    pair, rng = Pair(some_decks(games, seed), seed), random.Random(seed)
    assert torch.equal(pair.cells, as_cells(pair.games))
    ended: list[Duel] = []
    for _ in range(steps):
        check_masks(pair.games, legal_actions(Board(pair.cells)))
        step(pair, [choose(game, rng) for game in pair.games])
        going = [index for index, game in enumerate(pair.games) if game.winner is None]
        ended += [game for game in pair.games if game.winner is not None]
        pair.games, pair.cells = [pair.games[index] for index in going], pair.cells[:, going]
        if not going:
            break
    assert not pair.games
    return ended


@settings(max_examples=3)
@given(st.integers(0, 2**32 - 1))
def test_random_games_are_those_of_the_reference(seed: int) -> None:
    assert len(compare(games=1, seed=seed, steps=300)) == 1


def random_options(mask: Tensor, generator: torch.Generator) -> Tensor:
    """Return (games,) int64: a legal option of each row."""
    return torch.multinomial(mask.double(), 1, generator=generator).squeeze(1)


def random_actions(legal: Legal, generator: torch.Generator) -> Tensor:
    """Return (games, 3) int64: legal actions, choice by choice."""
    kind = random_options(type_mask(legal), generator)
    first = random_options(first_mask(legal, kind), generator)
    second = random_options(second_mask(legal, kind, first), generator)
    return torch.stack((kind, first, second), 1)


# A million moves take 100 s: SWEEPD_TEST_MOVES=1000000.
MOVES = int(os.environ.get("SWEEPD_TEST_MOVES", "10000"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_random_moves_are_those_of_the_reference() -> None:
    """States and results of all, masks and observations of some, and cards in exactly one zone."""
    size, moves, seed = 100, 0, 11
    rng = random.Random(seed)
    played: Counter[int] = Counter()
    effects: Counter[int] = Counter()
    used: Counter[int] = Counter()
    while moves < MOVES:
        pair = Pair(some_decks(size, seed), seed)
        decks = [[Counter(side.cards()) for side in game.sides] for game in pair.games]
        seed += 1
        while pair.games:
            legal = legal_actions(Board(pair.cells))
            actions = [
                (own[0], own[1], own[2]) for own in random_actions(legal, pair.generator).tolist()
            ]
            for game, (kind, first, _) in zip(pair.games, actions, strict=True):
                used[kind] += 1
                effects[game.effect] += kind == Action.TARGET
                if kind in (Action.PLAY_FRONT, Action.PLAY_BACK, Action.GEAR, Action.SPELL):
                    played[game.sides[game.mover].hand[first]] += 1
            looks = rng.random() < 0.05
            if looks:
                check_masks(pair.games[:3], legal_of(legal, 3))
            step(pair, actions, looks=looks)
            moves += len(actions)
            going = [index for index, game in enumerate(pair.games) if game.winner is None]
            for index, game in enumerate(pair.games):
                if game.winner is not None:
                    assert [side.cards() for side in game.sides] == decks[index]
            decks = [decks[index] for index in going]
            pair.games, pair.cells = [pair.games[index] for index in going], pair.cells[:, going]
    assert sorted(used) == list(Action)
    assert sorted(played) == list(range(1, len(CARDS) + 1))
    assert all(
        effects[card.effect]
        for card in CARDS
        if card.kind == Kind.UNIT and card.effect and card.effect != Effect.DRAW
    )


def legal_of(legal: Legal, games: int) -> Legal:
    """Return the masks of the first games."""
    return Legal(*(rows[:, :games] for rows in legal))


def test_packed_masks_are_the_same() -> None:
    pair, rng = Pair(some_decks(20, 3), 3), random.Random(3)
    for _ in range(40):
        step(pair, [choose(game, rng) for game in pair.games])
    legal = legal_actions(Board(pair.cells))
    packed = pack(legal)
    assert packed.dtype == torch.uint8
    assert packed.shape == (20, PACKED)
    assert PACKED <= 128
    for own, other in zip(full_masks(legal), full_masks(unpack(packed)), strict=True):
        assert torch.equal(own, other)


def test_masks_choice_by_choice_are_slices_of_the_full_ones() -> None:
    pair, generator = Pair(some_decks(50, 4), 4), torch.Generator().manual_seed(4)
    for _ in range(30):
        legal = legal_actions(Board(pair.cells))
        kinds, firsts, seconds = full_masks(legal)
        assert torch.equal(type_mask(legal), kinds)
        rows = torch.arange(50)
        for _ in range(5):  # also of types and numbers that are not legal
            kind = torch.randint(0, 11, (50,), generator=generator)
            first = torch.randint(0, 10, (50,), generator=generator)
            assert torch.equal(first_mask(legal, kind), firsts[rows, kind])
            assert torch.equal(second_mask(legal, kind, first), seconds[rows, kind, first])
        action = random_actions(legal, generator)
        pair.cells = decide(pair.cells, action, pair.drawn()).cells


def test_nothing_hidden_is_seen() -> None:
    """Other cards in the enemy's hand and other decks change no observation and no mask."""
    pair, generator = Pair(some_decks(50, 5), 5), torch.Generator().manual_seed(5)
    decisions, changed = torch.zeros(50, dtype=torch.int16), 0
    for _ in range(60):
        legal = legal_actions(Board(pair.cells))
        action = random_actions(legal, generator)
        pair.cells = decide(pair.cells, action, pair.drawn()).cells
        for looker in (0, 1):  # the player to move, and the other
            other = pair.cells.clone()
            board = Board(other)
            seat = board.mover.long() ^ looker
            held, left = board.held[1 - looker], board.left
            for game in range(50):
                hand = int(held[game])
                deck = int(left[1 - looker, game])
                # Exchange hidden cards of the enemy, then reorder.
                hidden = torch.cat(
                    (board.hand[1 - looker, :hand, game], board.deck[1 - looker, :deck, game])
                )
                hidden = hidden[torch.randperm(len(hidden), generator=generator)]
                board.hand[1 - looker, :hand, game] = hidden[:hand]
                board.deck[1 - looker, :deck, game] = hidden[hand:]
                own = int(left[looker, game])
                order = torch.randperm(own, generator=generator)
                board.deck[looker, :own, game] = board.deck[looker, order, game]
            changed += int((other != pair.cells).sum())
            seen = observe(pair.cells, decisions, seat)
            assert torch.equal(observe(other, decisions, seat), seen)
            if not looker:
                for own, same in zip(
                    legal_actions(board), legal_actions(Board(pair.cells)), strict=True
                ):
                    assert torch.equal(own, same)
    assert changed > 3_000


def cards_by_seat(board: Board) -> Tensor:
    """Return (2, ids, games) int64: how many of each card are in a seat's zones together."""
    zones = (board.deck, board.hand, board.id[:, :FRONT], board.gear, board.back)
    cards = torch.cat(zones, 1).long()
    counts = board.discard.long().scatter_add(1, cards, torch.ones_like(cards))
    counts[:, 0] = 0  # empty places
    return torch.where(board.mover > 0, counts.flip(0), counts)


def test_every_card_is_in_exactly_one_zone() -> None:
    """At every step of 30 games; and decks and hands are filled from the beginning, as counted."""
    pair, generator = Pair(some_decks(30, 7), 7), torch.Generator().manual_seed(7)
    board = Board(pair.cells)
    cards, zones, over = cards_by_seat(board), set[str](), torch.zeros(30, dtype=torch.bool)
    assert (cards.sum(1) == DECK_SIZE).all()
    for _ in range(DECISIONS):
        for rows, counts in ((board.deck, board.left), (board.hand, board.held)):
            places = torch.arange(rows.shape[1]).view(1, -1, 1)
            assert torch.equal(rows > 0, places < counts.unsqueeze(1))
        assert torch.equal(cards_by_seat(board), cards)
        held = {"deck": board.deck, "hand": board.hand, "front": board.id[:, :FRONT]}
        held |= {"gear": board.gear, "back": board.back, "discard": board.discard}
        zones |= {name for name, rows in held.items() if rows.any()}
        uniforms = pair.drawn()
        decided = decide(board.cells, random_actions(legal_actions(board), generator), uniforms)
        # Games that are over stay as they were.
        over |= decided.lost.any(0)
        board = Board(torch.where(over, board.cells, decided.cells))
        if over.all():
            break
    assert over.all()
    assert zones == {"deck", "hand", "front", "gear", "back", "discard"}


def test_games_do_not_depend_on_their_company_or_change_their_arguments() -> None:
    pair, generator = Pair(some_decks(64, 6), 6), torch.Generator().manual_seed(6)
    for _ in range(50):
        before, uniforms = pair.cells.clone(), pair.drawn()
        action = random_actions(legal_actions(Board(pair.cells)), generator)
        decided = decide(pair.cells, action, uniforms)
        assert torch.equal(pair.cells, before)
        some = torch.tensor([5, 60, 3])
        alone = decide(pair.cells[:, some], action[some], uniforms[:, some])
        for own, other in zip(alone, decided, strict=True):
            assert torch.equal(own, other[..., some])
        pair.cells = decided.cells
