"""A champion of a game defends its slot in fresh games."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from sweepd.deploy.games.bundle import GameBundle
from sweepd.deploy.games.defence import BLOCK, LEVEL, defend_champion, settle
from sweepd.deploy.promotion.betting import log_threshold
from sweepd.deploy.registry.registry import Registry
from tests.deploy.games.test_duels import ALWAYS, GOOD, SHOWDOWN, WEAK, promote, study

SLOT_GAMES = 20 * 2 * BLOCK


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "deployments")


def coins(seed: int, wins: float, blocks: int = 100) -> Iterator[NDArray[np.float64]]:
    """Points of deals that are won with a probability."""
    rng = np.random.default_rng(seed)
    for _ in range(blocks):
        yield (rng.random(BLOCK) < wins).astype(float)


def test_an_equal_player_wins_as_often_as_stated_at_most_and_a_better_one_soon() -> None:
    number = 2
    level = LEVEL / (number * (number + 1))
    won = sum(settle(coins(seed, 0.5), number).won for seed in range(600))
    assert won <= 600 * level + 3 * math.sqrt(600 * level)
    assert sum(settle(coins(seed, 0.56), number).won for seed in range(20)) >= 18
    # It stops at the first block at which it is decided.
    sure = settle(coins(0, 1.0), 1)
    assert (sure.deals, sure.points, sure.won) == (BLOCK, 1.0, True)
    assert sure.log_e == pytest.approx(
        math.log(sum((1 + 0.5**part) ** BLOCK for part in range(6)) / 6), rel=1e-12
    )
    spent = settle(coins(1, 0.5, 3), 1)
    assert (spent.deals, spent.won) == (3 * BLOCK, False)
    assert spent.log_e < log_threshold(1, LEVEL)


def test_challengers_of_a_game_play_the_champion_in_turn(
    tmp_path: Path, registry: Registry
) -> None:
    first = promote(study(tmp_path / "a", SHOWDOWN, ALWAYS), registry, rules=())
    slot, champion = first.slot, first.champion
    names = []
    for name, player in (("b", WEAK), ("c", GOOD)):
        asked = promote(study(tmp_path / name, SHOWDOWN, player), registry, rules=(), arena=True)
        assert (asked.outcome, asked.looks) == ("challenger", first.looks)
        names.append(registry.slot(slot).challengers[-1])
    told = defend_champion(registry, slot, games=SLOT_GAMES)
    assert "did not win in the arena" in told[0]
    assert "is the champion: won in the arena" in told[1]
    assert registry.slot(slot).champion == names[1]
    assert registry.slot(slot).challengers == ()
    entries = registry.arena.entries(slot, 1)
    assert [(one.number, one.bundle) for one in entries] == [(1, names[0]), (2, names[1])]
    assert defend_champion(registry, slot, games=SLOT_GAMES) == []
    assert champion != names[1]


def test_a_challenge_that_was_killed_has_the_same_number_and_result(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = promote(study(tmp_path / "a", SHOWDOWN, GOOD), registry, rules=())
    promote(study(tmp_path / "b", SHOWDOWN, ALWAYS), registry, rules=(), arena=True)
    [hash_] = registry.slot(first.slot).challengers
    bundle, withdraw = registry.bundle(hash_, GameBundle), Registry.withdraw
    texts: list[str] = []

    def killed(_self: Registry, _slot: str, _hash: str, reason: str) -> None:
        texts.append(reason)
        raise KeyboardInterrupt

    monkeypatch.setattr(Registry, "withdraw", killed)
    with pytest.raises(KeyboardInterrupt):
        defend_champion(registry, first.slot, games=SLOT_GAMES)
    monkeypatch.setattr(Registry, "withdraw", withdraw)
    [text] = defend_champion(registry, first.slot, games=SLOT_GAMES)
    assert text == f"{bundle.name} leaves: {texts[0]}"
    # It has had its turn, and may not have another in this reign.
    registry.challenger(first.slot, bundle, reason="again")
    [text] = defend_champion(registry, first.slot, games=SLOT_GAMES)
    assert text.endswith("it has challenged this champion before")
