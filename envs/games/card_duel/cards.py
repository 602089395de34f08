"""The cards of the duel as a table, and decks. All animals, gear and waters of a reef.

A card's id is its position in `CARDS` plus 1; 0 is no card. The rules read nothing but this table.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import cache

from sweepd.envs.support.errors import InputError

DECK_SIZE, COPIES = 30, 2
# Games with random decks draw them among as many, which are always the same.
RANDOM_DECKS = 1000


class Kind(IntEnum):
    """What a card is."""

    UNIT = 1
    GEAR = 2
    SPELL = 3


class Keyword(IntFlag):
    """Lasting abilities of a unit; gear gives them to its bearer.

    CHARGE: may attack in the turn in which it was played. GUARD: while untapped, may become the
    target of an attack instead. EVASIVE: no guard stops it. ARMOR: every damage to it is one less.
    STUN: what it damages is stunned. LAST_GIFT: its owner draws a card when it dies.
    """

    CHARGE = 1
    GUARD = 2
    EVASIVE = 4
    ARMOR = 8
    STUN = 16
    LAST_GIFT = 32


NO_KEYWORD = Keyword(0)


class Effect(IntEnum):
    """What a spell does, or a unit when it is played.

    DAMAGE: 2 damage to an enemy front unit or the enemy champion. HEAL: 3 damage less on an own
    front unit or the own champion. STUN: an enemy front unit is tapped and stunned. RETURN: a
    front unit that costs at most 3 goes to its owner's hand. STRENGTHEN: +2 attack this turn for
    an own front unit. DRAW: draw 2.
    """

    NONE = 0
    DAMAGE = 1
    HEAL = 2
    STUN = 3
    RETURN = 4
    STRENGTHEN = 5
    DRAW = 6


@dataclass(frozen=True)
class Card:
    """A definition. `attack` of gear is added to its bearer's."""

    name: str
    kind: Kind
    cost: int
    attack: int = 0
    health: int = 0
    keywords: Keyword = NO_KEYWORD
    effect: Effect = Effect.NONE
    quick: bool = False


_UNIT, _GEAR, _SPELL = Kind
_CHARGE, _GUARD, _EVASIVE, _ARMOR, _STUN, _LAST_GIFT = Keyword

CARDS = (
    Card("Sand Hopper", _UNIT, 1, 2, 1),
    Card("Hermit Crab", _UNIT, 1, 1, 2, _GUARD),
    Card("Flying Fish", _UNIT, 2, 2, 1, _EVASIVE),
    Card("Cleaner Shrimp", _UNIT, 2, 1, 3, effect=Effect.HEAL),
    Card("Brittle Star", _UNIT, 2, 2, 2, _LAST_GIFT),
    Card("Reef Piper", _UNIT, 2, 2, 2, effect=Effect.STRENGTHEN),
    Card("Electric Ray", _UNIT, 3, 2, 3, _STUN),
    Card("Barracuda", _UNIT, 3, 3, 2, _CHARGE),
    Card("Pistol Shrimp", _UNIT, 3, 2, 2, effect=Effect.DAMAGE),
    Card("Sea Nettle", _UNIT, 3, 2, 3, effect=Effect.STUN),
    Card("Iron Lobster", _UNIT, 4, 3, 4, _ARMOR),
    Card("Undertow Eel", _UNIT, 4, 3, 3, effect=Effect.RETURN),
    Card("Manta", _UNIT, 4, 3, 4, _EVASIVE),
    Card("Wise Octopus", _UNIT, 5, 3, 4, effect=Effect.DRAW),
    Card("Stone Turtle", _UNIT, 5, 3, 6, _GUARD | _ARMOR),
    Card("Old Whale", _UNIT, 7, 6, 8, _GUARD | _LAST_GIFT),
    Card("Coral Spear", _GEAR, 1, 2),
    Card("Shell Plate", _GEAR, 1, 1, keywords=_ARMOR),
    Card("Stinging Net", _GEAR, 2, 1, keywords=_STUN),
    Card("Swift Current", _GEAR, 2, 1, keywords=_CHARGE | _EVASIVE),
    Card("Brine Jet", _SPELL, 2, effect=Effect.DAMAGE, quick=True),
    Card("Surge", _SPELL, 1, effect=Effect.STRENGTHEN, quick=True),
    Card("Riptide", _SPELL, 2, effect=Effect.RETURN),
    Card("High Tide", _SPELL, 3, effect=Effect.DRAW),
)
# The id under which a champion stands beside its front units, and that takes part in tables of
# facts: 20 health, no attack of its own.
CHAMPION = len(CARDS) + 1


def card(card_id: int) -> Card:
    """Return the definition of an id from 1."""
    return CARDS[card_id - 1]


def check_deck(deck: Sequence[int]) -> tuple[int, ...]:
    """Return the deck if it is legal.

    Raises:
        InputError: It has not 30 cards, an unknown id, or more than two copies of a card.
    """
    unknown = sorted({own for own in deck if not 1 <= own <= len(CARDS)})
    if len(deck) != DECK_SIZE or unknown:
        raise InputError(
            f"a deck has {DECK_SIZE} cards with ids from 1 to {len(CARDS)}; this one has "
            f"{len(deck)}, unknown: {unknown}"
        )
    often = sorted(card(own).name for own, count in Counter(deck).items() if count > COPIES)
    if often:
        raise InputError(f"a deck has at most {COPIES} copies of a card; too many: {often}")
    return tuple(deck)


def random_deck(generator: random.Random) -> tuple[int, ...]:
    """Draw a deck from all copies of all cards."""
    return tuple(sorted(generator.sample(sorted([*range(1, len(CARDS) + 1)] * COPIES), DECK_SIZE)))


def _deck(text: str) -> tuple[int, ...]:
    """Return the deck with two copies of each named card, or one after `single`."""
    ids = {own.name: index for index, own in enumerate(CARDS, 1)}
    twice, _, once = text.partition(" single ")
    names = [name.strip() for name in twice.split(",")] * COPIES
    names += [name.strip() for name in once.split(",") if name.strip()]
    return check_deck(sorted(ids[name] for name in names))


PRESETS = {
    # Many cheap attackers, gear for them and for the champion.
    "shoal": _deck(
        "Sand Hopper, Hermit Crab, Flying Fish, Brittle Star, Reef Piper, Electric Ray, Barracuda, "
        "Iron Lobster, Manta, Coral Spear, Swift Current, Brine Jet, Surge single "
        "Pistol Shrimp, Wise Octopus, Stinging Net, High Tide"
    ),
    # Guards and armour until the large ones arrive.
    "reef": _deck(
        "Hermit Crab, Cleaner Shrimp, Brittle Star, Electric Ray, Pistol Shrimp, Sea Nettle, "
        "Iron Lobster, Wise Octopus, Stone Turtle, Shell Plate, Brine Jet, High Tide single "
        "Barracuda, Old Whale, Manta, Undertow Eel, Riptide, Stinging Net"
    ),
    # Effects: every unit does something when it comes, and comes again.
    "tides": _deck(
        "Cleaner Shrimp, Reef Piper, Barracuda, Pistol Shrimp, Sea Nettle, Undertow Eel, Manta, "
        "Wise Octopus, Stinging Net, Brine Jet, Riptide, Surge single "
        "Hermit Crab, Flying Fish, Iron Lobster, Stone Turtle, Shell Plate, High Tide"
    ),
}


@cache
def known_decks() -> tuple[tuple[int, ...], ...]:
    """Return the decks that games are played with: the presets, then random ones."""
    generator = random.Random(0)
    return (*PRESETS.values(), *(random_deck(generator) for _ in range(RANDOM_DECKS)))
