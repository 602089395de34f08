"""The registry: one champion per slot, transactions, append-only history, counted looks."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from deploy.bundle import Bundle
from deploy.registry import ChampionMoved, Registry
from envs.errors import InputError
from tests.deploy.builders import small_bundle

SLOT = "crypto-1h"


@pytest.fixture(scope="module")
def bundles() -> list[Bundle]:
    return [small_bundle(seed) for seed in range(3)]


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "deployments")


def test_a_promotion_moves_the_champion_and_keeps_the_old_one(registry: Registry, bundles: list[Bundle]) -> None:
    first, second, _ = bundles
    assert registry.slot(SLOT).champion is None
    assert registry.promote(SLOT, first, expected=None, reason="first", report={"a": 1}, data_dir="bars") == 1
    assert registry.promote(SLOT, second, expected=first.hash, reason="second") == 2
    assert (
        registry.promote(SLOT, second, expected=second.hash, reason="again") == 2
    )  # is the champion already: nothing to do
    slot = registry.slot(SLOT)
    assert (slot.champion, slot.previous, slot.revision) == (second.hash, first.hash, 2)
    assert registry.bundle(first.hash) == first
    assert registry.data_dir(first.hash) == Path("bars")
    assert _versions(registry) == [(1, first.hash), (2, second.hash)]
    events = registry.events(SLOT)
    assert [(event.kind, event.bundle, event.previous, event.reason) for event in events] == [
        ("promoted", first.hash, None, "first"),
        ("promoted", second.hash, first.hash, "second"),
    ]
    assert events[0].report == {"a": 1}


def test_a_promotion_against_a_champion_that_moved_is_refused_and_changes_nothing(
    registry: Registry, bundles: list[Bundle]
) -> None:
    first, second, third = bundles
    registry.promote(SLOT, first, expected=None, reason="")
    with pytest.raises(ChampionMoved):
        registry.promote(SLOT, second, expected=None, reason="")
    with pytest.raises(ChampionMoved):
        registry.promote(SLOT, second, expected=third.hash, reason="")
    assert registry.slot(SLOT).champion == first.hash
    assert _versions(registry) == [(1, first.hash)]
    assert len(registry.events()) == 1


def test_rollback_brings_the_previous_champion_back(registry: Registry, bundles: list[Bundle]) -> None:
    first, second, _ = bundles
    registry.promote(SLOT, first, expected=None, reason="")
    with pytest.raises(InputError, match="no previous champion"):
        registry.rollback(SLOT, "why")
    registry.promote(SLOT, second, expected=first.hash, reason="")
    assert registry.rollback(SLOT, "it lost money") == (second.hash, first.hash)
    slot = registry.slot(SLOT)
    assert (slot.champion, slot.previous) == (first.hash, second.hash)
    assert registry.events(SLOT)[-1].kind == "rolled-back"
    assert registry.events(SLOT)[-1].reason == "it lost money"


def test_rollback_to_a_changed_bundle_is_refused(registry: Registry, bundles: list[Bundle]) -> None:
    first, second, _ = bundles
    registry.promote(SLOT, first, expected=None, reason="")
    registry.promote(SLOT, second, expected=first.hash, reason="")
    weights = registry.path(first.hash) / "members.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.chmod(0o644)
    weights.write_bytes(bytes(content))
    with pytest.raises(InputError, match="changed"):
        registry.rollback(SLOT, "")
    assert registry.slot(SLOT).champion == second.hash


def test_unknown_slots_and_absent_registries_are_named(
    registry: Registry, bundles: list[Bundle], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="none"):
        registry.require(None)
    registry.promote(SLOT, bundles[0], expected=None, reason="")
    assert registry.require(None).name == SLOT
    with pytest.raises(InputError, match=r"'crypto-5m' has no champion.*crypto-1h"):
        registry.require("crypto-5m")
    with pytest.raises(InputError, match="no registry at"):
        Registry(tmp_path / "elsewhere", create=False)
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(InputError, match="not a database URL"):
        Registry(tmp_path, "nonsense")
    (tmp_path / "text.db").write_text("this is no database, however long it may be" * 100)
    with pytest.raises(InputError, match="cannot be used"):
        Registry(tmp_path, f"sqlite:///{tmp_path / 'text.db'}")


def test_looks_are_counted_per_asset_set_and_overlapping_bars(registry: Registry) -> None:
    one, two, three = ("1" * 64, "2" * 64, "3" * 64)
    assert _look(registry, one, 100, 200).number == 1
    again = _look(registry, one, 100, 200)
    assert (again.number, again.repeated) == (1, True)
    assert _look(registry, two, 100, 200).number == 2
    assert _look(registry, three, 199, 300).number == 3  # one common bar is not a fresh hold-out
    assert _look(registry, one, 101, 201).number == 4  # nor is one more bar
    assert _look(registry, two, 301, 400).number == 1
    assert _look(registry, two, 100, 200, tickers=("ETH/USDT", "BTC/USDT")).repeated  # the order doesn't matter
    assert _look(registry, two, 100, 200, tickers=("BTC/USDT",)).number == 1
    assert registry.looks(("BTC/USDT", "ETH/USDT"), 150, 160) == 3


def test_the_registry_is_what_it_was_after_reopening(registry: Registry, bundles: list[Bundle]) -> None:
    registry.promote(SLOT, bundles[0], expected=None, reason="")
    assert Registry(registry.folder, create=False).slot(SLOT).champion == bundles[0].hash


def _versions(registry: Registry) -> list[tuple[int, str]]:
    return [(version.number, version.bundle) for version in registry.versions(SLOT)]


def _look(registry: Registry, members: str, first: int, last: int, tickers: tuple[str, ...] = ("BTC/USDT", "ETH/USDT")):
    return registry.take_look(tickers, "1h", first, last, members_sha256=members, study="s", study_uid="u", trial=0)


def _race(folder: str, seed: int, start: float) -> None:
    bundle = small_bundle(seed)
    while time.time() < start:
        pass
    registry = Registry(Path(folder))
    while True:
        try:
            registry.promote(SLOT, bundle, expected=registry.slot(SLOT).champion, reason=f"racer {seed}")
            return
        except ChampionMoved:
            continue


@pytest.mark.slow
def test_racing_promoters_end_in_one_champion_and_a_whole_history(tmp_path: Path) -> None:
    folder = tmp_path / "made by the racers"
    context = multiprocessing.get_context("fork")
    start = time.time() + 1.0
    racers = [context.Process(target=_race, args=(str(folder), seed, start)) for seed in range(3)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
        assert racer.exitcode == 0
    registry = Registry(folder, create=False)
    events = registry.events(SLOT)
    assert len(events) == 3
    assert [event.previous for event in events] == [
        None,
        *(event.bundle for event in events[:-1]),
    ]  # each beat the one before it
    slot = registry.slot(SLOT)
    assert (slot.champion, slot.previous, slot.revision) == (events[-1].bundle, events[-2].bundle, 3)
    assert [number for number, _ in _versions(registry)] == [1, 2, 3]


def _promote_for_ever(folder: str) -> None:
    registry, bundles = Registry(Path(folder)), [small_bundle(seed) for seed in range(2)]
    turn = 0
    while True:
        registry.promote(SLOT, bundles[turn % 2], expected=registry.slot(SLOT).champion, reason=str(turn))
        turn += 1


@pytest.mark.slow
def test_a_kill_at_any_instant_leaves_a_loadable_champion(registry: Registry) -> None:
    context = multiprocessing.get_context("fork")
    for delay in (0.0, 0.02, 0.05):
        before = len(registry.events(SLOT))
        promoter = context.Process(target=_promote_for_ever, args=(str(registry.folder),))
        promoter.start()
        while len(registry.events(SLOT)) < before + 3:
            time.sleep(0.05)
        time.sleep(delay)
        assert promoter.pid is not None
        os.kill(promoter.pid, signal.SIGKILL)
        promoter.join()
        slot, events = registry.slot(SLOT), registry.events(SLOT)
        assert slot.champion == events[-1].bundle  # the alias and its history are of one transaction
        assert slot.revision == len(events)
        assert slot.champion is not None
        registry.bundle(slot.champion)
    assert sqlite3.connect(registry.folder / "registry.db").execute("PRAGMA integrity_check").fetchone() == ("ok",)
