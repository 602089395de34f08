"""The table of cards, and decks."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from sweepd.envs.games.card_duel.cards import (
    CARDS,
    PRESETS,
    Effect,
    Keyword,
    Kind,
    card,
    check_deck,
    random_deck,
)
from sweepd.envs.games.card_duel.constants import HIGHEST_MANA
from sweepd.envs.support.errors import InputError


def test_the_pool_uses_every_kind_keyword_and_effect() -> None:
    assert Counter(own.kind for own in CARDS) == {Kind.UNIT: 16, Kind.GEAR: 4, Kind.SPELL: 4}
    assert sum(own.quick for own in CARDS) == 2
    assert len({own.name for own in CARDS}) == 24
    assert {own.effect for own in CARDS} == set(Effect)
    units = [own for own in CARDS if own.kind == Kind.UNIT]
    assert all(any(keyword in own.keywords for own in units) for keyword in Keyword)
    for own in CARDS:
        assert 1 <= own.cost <= HIGHEST_MANA
        assert (own.health > 0) == (own.kind == Kind.UNIT)
        assert not own.quick or own.kind == Kind.SPELL
        # A spell without a target casts in a response, too; no rule says what it would hit.
        assert (own.effect != Effect.NONE) >= (own.kind == Kind.SPELL)
        assert own.kind != Kind.GEAR or (own.effect == Effect.NONE and own.attack > 0)


def test_decks_are_legal() -> None:
    rng = random.Random(0)
    for deck in [*PRESETS.values(), *(random_deck(rng) for _ in range(100))]:
        assert check_deck(deck) == deck
    together = {own for deck in PRESETS.values() for own in deck}
    assert together == set(range(1, len(CARDS) + 1)), "a card is in no preset"
    assert card(1) is CARDS[0]


@pytest.mark.parametrize(
    ("deck", "said"),
    [
        ([1, 2] * 14, "30 cards"),
        ([*range(1, 25), *range(1, 6), 25], "unknown: .25"),
        ([1, 1, 1, *range(2, 25), *range(2, 6)][:30], "Sand Hopper"),
    ],
)
def test_illegal_decks_are_refused(deck: list[int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_deck(deck)
