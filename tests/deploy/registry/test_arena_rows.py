"""Reigns, entries and days: numbers and seats that survive everything."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from sweepd.deploy.gates import bundle_types
from sweepd.deploy.registry.arena_rows import ArenaDay, ArenaEntry, EntryKind, ReignEnded
from sweepd.deploy.registry.registry import Registry
from tests.deploy.builders import START, small_bundle

SLOT = "crypto-1h"
FIRST, SECOND, THIRD, FOURTH = (small_bundle(seed) for seed in range(4))


@pytest.fixture
def registry(tmp_path: Path, registry_url: str) -> Registry:
    registry = Registry(tmp_path, registry_url)
    registry.promote(SLOT, FIRST, expected=None, reason="the first")
    return registry


def asks(hash_: str, reign: int = 1, kind: EntryKind = "challenger") -> ArenaEntry:
    return ArenaEntry(SLOT, reign, 0, hash_, kind, "", START, 0.01, 0.02)


def seats(registry: Registry) -> list[tuple[int, int, str]]:
    return [(one.reign, one.number, one.bundle) for one in registry.arena.seats(SLOT)]


def test_a_new_champion_begins_a_reign_and_a_refit_does_not(registry: Registry) -> None:
    registry.promote(SLOT, SECOND, expected=FIRST.hash, reason="better")
    registry.promote(SLOT, SECOND, expected=SECOND.hash, reason="again")
    registry.promote(SLOT, THIRD, expected=SECOND.hash, reason="newer bars", refit=True)
    registry.rollback(SLOT, "worse", *bundle_types())
    reign = registry.arena.reign(SLOT)
    assert reign is not None
    assert (reign.number, reign.champion, reign.why) == (3, SECOND.hash, "worse")


def test_numbers_count_entries_of_the_reign_and_are_never_given_twice(registry: Registry) -> None:
    for bundle in (SECOND, THIRD, FOURTH):
        registry.challenger(SLOT, bundle, reason="passed", refit=bundle is FOURTH)
    registry.arena.enter([asks(SECOND.hash)], "")
    registry.arena.enter([asks(SECOND.hash), asks(FOURTH.hash, kind="refit")], "")
    registry.withdraw(SLOT, SECOND.hash, "lost")
    registry.arena.enter([asks(THIRD.hash), asks(SECOND.hash)], "")  # the second had its turn
    assert seats(registry) == [(1, 0, FOURTH.hash), (1, 2, THIRD.hash)]
    gone = next(one for one in registry.arena.entries(SLOT, 1) if one.bundle == SECOND.hash)
    assert (gone.number, gone.reason) == (1, "lost")
    assert gone.left is not None
    assert [one.refit for one in registry.arena.challengers(SLOT)] == [False, True]


def test_a_seat_is_kept_until_the_next_reign_gives_it_again(registry: Registry) -> None:
    for bundle in (SECOND, THIRD, FOURTH):
        registry.challenger(SLOT, bundle, reason="passed")
    registry.arena.enter([asks(SECOND.hash), asks(THIRD.hash)], "")
    registry.promote(SLOT, THIRD, expected=FIRST.hash, reason="better")
    assert seats(registry) == [(1, 1, SECOND.hash)]  # the champion has none
    with pytest.raises(ReignEnded):
        registry.arena.enter([asks(FOURTH.hash)], "")
    again = [asks(FIRST.hash, 2, "former"), asks(SECOND.hash, 2)]
    for _ in range(2):
        registry.arena.enter(again, "the former champion")
        assert seats(registry) == [(2, 1, FIRST.hash), (2, 2, SECOND.hash)]
    assert registry.slot(SLOT).challengers == (SECOND.hash, FOURTH.hash, FIRST.hash)
    moves = [(event.kind, event.bundle) for event in registry.events(SLOT)]
    assert moves.count(("challenger", FIRST.hash)) == 1
    registry.rollback(SLOT, "undone", *bundle_types())
    assert registry.slot(SLOT).challengers == (SECOND.hash, FOURTH.hash)
    assert seats(registry) == [(2, 2, SECOND.hash)]


def test_an_entry_is_refused_whose_first_round_is_before_the_freeze(registry: Registry) -> None:
    registry.challenger(SLOT, SECOND, reason="")
    early = dataclasses.replace(asks(SECOND.hash), since=START - 3600)
    with pytest.raises(ValueError, match="has seen bars until"):
        registry.arena.enter([early], "")
    assert seats(registry) == []


def test_a_day_is_stored_once(registry: Registry) -> None:
    one = ArenaDay(SLOT, 1, SECOND.hash, START, 24, -float("inf"), 0.5, 0.01, 2.0)
    other = dataclasses.replace(one, day=START + 86400, log_e=1.0)
    registry.arena.add_days([one])
    registry.arena.add_days([dataclasses.replace(one, bars=9), other])
    assert registry.arena.days(SLOT, 1) == [one, other]
