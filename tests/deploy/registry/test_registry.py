"""The registry: one champion per slot, transactions, append-only history, counted evaluations."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from sweepd.deploy.gates import bundle_types
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.registry.bundle_files import write_bundle
from sweepd.deploy.registry.records import ChampionMoved
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.garbage import clear_garbage, find_garbage
from sweepd.envs.support.errors import InputError
from tests.deploy.builders import small_bundle
from tests.deploy.registry_chaos import SLOT, act, audit, audit_race, die_at, live, race
from tests.extra import with_extra


@pytest.fixture(scope="module")
def bundles() -> list[Bundle]:
    return [small_bundle(seed) for seed in range(3)]


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "deployments")


def test_a_promotion_moves_the_champion_and_keeps_the_old_one(
    registry: Registry, bundles: list[Bundle]
) -> None:
    first, second, _ = bundles
    assert registry.slot(SLOT).champion is None
    assert (
        registry.promote(
            SLOT, first, expected=None, reason="first", report={"a": 1}, data_dir="bars"
        )
        == 1
    )
    assert registry.promote(SLOT, second, expected=first.hash, reason="second") == 2
    assert (
        registry.promote(SLOT, second, expected=second.hash, reason="again") == 2
    )  # is the champion already: nothing to do
    slot = registry.slot(SLOT)
    assert (slot.champion, slot.previous, slot.revision) == (second.hash, first.hash, 2)
    assert registry.bundle(first.hash, Bundle) == first
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


def test_rollback_brings_the_previous_champion_back(
    registry: Registry, bundles: list[Bundle]
) -> None:
    first, second, _ = bundles
    registry.promote(SLOT, first, expected=None, reason="")
    with pytest.raises(InputError, match="no previous champion"):
        registry.rollback(SLOT, "why", *bundle_types())
    registry.promote(SLOT, second, expected=first.hash, reason="")
    with pytest.raises(ChampionMoved, match="has changed since it was judged"):
        registry.rollback(SLOT, "it lost money", *bundle_types(), expected=first.hash)
    assert registry.rollback(SLOT, "it lost money", *bundle_types(), expected=second.hash) == (
        second.hash,
        first.hash,
    )
    slot = registry.slot(SLOT)
    assert (slot.champion, slot.previous) == (first.hash, second.hash)
    assert registry.events(SLOT)[-1].kind == "rolled-back"
    assert registry.events(SLOT)[-1].reason == "it lost money"
    moves = [registry.last_move(SLOT, one) for one in (first.hash, second.hash, None)]
    assert [move and move.kind for move in moves] == ["rolled-back", "promoted", None]
    roles = [slot.role_of(one) for one in (first.hash, second.hash, "x")]
    assert roles == ["champion", "previous", ""]
    assert slot.role_of("x", removed=["x"]) == "removed"


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
        registry.rollback(SLOT, "", *bundle_types())
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


def test_looks_are_counted_by_overlapping_bars_of_shared_base_assets(registry: Registry) -> None:
    one, two, three = ("1" * 64, "2" * 64, "3" * 64)
    assert _look(registry, one, 100, 200).number == 1
    again = _look(registry, one, 100, 200)
    assert (again.number, again.repeated) == (1, True)
    assert _look(registry, two, 100, 200).number == 2
    assert _look(registry, three, 199, 300).number == 3  # one common bar is not a fresh hold-out
    assert _look(registry, one, 101, 201).number == 4  # nor is one more bar
    assert _look(registry, two, 301, 400).number == 1
    assert _look(
        registry, two, 100, 200, tickers=("ETH/USDT", "BTC/USDT")
    ).repeated  # the order doesn't matter
    # Another ticker or quote currency does not make a new hold-out: the same bars were seen.
    assert _look(registry, two, 100, 200, tickers=("BTC/USDT",)).number == 5
    assert _look(registry, two, 100, 200, tickers=("BTC/USD", "ETH/USD")).number == 6
    assert _look(registry, two, 100, 200, tickers=("ETH/USDT", "BTC/USDT", "LINK/USDT")).number == 7
    assert _look(registry, two, 100, 200, tickers=("SOL/USDT", "ADA/USDT")).number == 1
    assert (
        registry.evaluations.count_holdout(("BTC/EUR", "DOGE/EUR"), 150, 160) == 6
    )  # all but those at 199 to 400 and of other assets
    assert registry.evaluations.count_holdout(("LINK/USDT",), 150, 160) == 1
    assert registry.evaluations.count_holdout(("SOL/USD", "LINK/USD"), 150, 160) == 2
    # Panels of games are counted separately, even with a name like an asset set.
    seen = {"members_sha256": one, "study": "s", "study_uid": "u", "trial": 0}
    assert registry.evaluations.record_panel("BTC/USDT 3", 10**9, **seen).number == 1  # type: ignore[arg-type]
    assert registry.evaluations.count_holdout(("BTC/USDT",), 150, 160) == 6
    assert registry.evaluations.count_panel("BTC/USDT 3") == 1
    assert registry.evaluations.count_panel("BTC/USDT") == 0


def test_the_registry_is_what_it_was_after_reopening(
    registry: Registry, bundles: list[Bundle]
) -> None:
    registry.promote(SLOT, bundles[0], expected=None, reason="")
    assert Registry(registry.folder, create=False).slot(SLOT).champion == bundles[0].hash


def _versions(registry: Registry) -> list[tuple[int, str]]:
    return [(version.number, version.bundle) for version in registry.versions(SLOT)]


def _look(
    registry: Registry,
    members: str,
    first: int,
    last: int,
    tickers: tuple[str, ...] = ("BTC/USDT", "ETH/USDT"),
):
    return registry.evaluations.record_holdout(
        tickers, "1h", first, last, members_sha256=members, study="s", study_uid="u", trial=0
    )


def test_challengers_are_kept_until_they_are_promoted(
    registry: Registry, bundles: list[Bundle]
) -> None:
    first, second, third = bundles
    registry.promote(SLOT, first, expected=None, reason="")
    for _ in range(2):  # asking twice is asking once
        assert registry.challenger(SLOT, second, reason="too few bars") == 2
    registry.challenger(SLOT, third, reason="too few bars")
    asked = [event.bundle for event in registry.events(SLOT, kinds=["challenger"])]
    assert asked == [second.hash, third.hash]
    assert registry.slot(SLOT).challengers == (second.hash, third.hash)
    registry.promote(SLOT, second, expected=first.hash, reason="")
    assert registry.slot(SLOT).challengers == (third.hash,)
    assert registry.slots() == [registry.slot(SLOT)]


def test_a_bundle_is_found_by_slot_alias_version_and_hash(
    registry: Registry, bundles: list[Bundle]
) -> None:
    first, second, third = bundles
    registry.promote(SLOT, first, expected=None, reason="")
    with pytest.raises(InputError, match="has no 'previous'"):
        registry.find("crypto-1h@previous")
    registry.promote(SLOT, second, expected=first.hash, reason="")
    for reference, meant in {
        "crypto-1h": second,
        "crypto-1h@champion": second,
        "crypto-1h@previous": first,
        "crypto-1h@1": first,
        first.hash: first,
        first.hash[:6]: first,
    }.items():
        assert registry.find(reference) == meant.hash, reference
    for reference in (first.hash[:3], third.hash, "crypto-5m", ""):
        with pytest.raises(InputError, match="neither a slot nor"):
            registry.find(reference)
    with pytest.raises(InputError, match="no slot 'crypto-5m'"):
        registry.find("crypto-5m@previous")
    with pytest.raises(InputError, match="crypto-1h@1, crypto-1h@2, crypto-1h@champion"):
        registry.find("crypto-1h@9")


def test_clearing_removes_what_no_slot_needs_and_nothing_else(
    registry: Registry, bundles: list[Bundle]
) -> None:
    first, second, third = bundles
    fourth, fifth = small_bundle(3), small_bundle(4)
    registry.promote(SLOT, first, expected=None, reason="")
    registry.promote("other", first, expected=None, reason="")
    registry.promote(SLOT, second, expected=first.hash, reason="")
    registry.promote(SLOT, third, expected=second.hash, reason="")
    registry.challenger(SLOT, fourth, reason="")
    assert find_garbage(registry) == []  # the first one is another slot's champion
    for champion, bundle in ((first, third), (third, second)):
        registry.promote("other", bundle, expected=champion.hash, reason="")
    orphan = write_bundle(fifth, registry.bundles)
    interrupted = registry.bundles / ".0123456789abcdef.x.tmp"
    interrupted.mkdir()
    (interrupted / "bundle.json").write_text("{")
    assert {item.path for item in find_garbage(registry)} == {
        registry.path(first.hash),
        orphan,
        interrupted,
    }
    assert {item.path for item in clear_garbage(registry)} == {
        registry.path(first.hash),
        orphan,
        interrupted,
    }
    assert sorted(item.name for item in registry.bundles.iterdir()) == sorted(
        bundle.name for bundle in (second, third, fourth)
    )
    assert [
        (event.slot, event.bundle) for event in registry.events() if event.kind == "removed"
    ] == [(SLOT, first.hash), ("other", first.hash)]
    with pytest.raises(InputError, match="were removed at"):
        registry.bundle(first.hash, Bundle)
    assert find_garbage(registry) == []
    registry.promote(SLOT, first, expected=third.hash, reason="back again")
    assert registry.bundle(first.hash, Bundle) == first


def test_a_writer_holds_the_lock_before_its_first_statement(
    registry: Registry, bundles: list[Bundle]
) -> None:
    """A concurrent `clear_garbage` must not remove files that a challenger has just written."""
    registry.promote(SLOT, bundles[0], expected=None, reason="")
    other = sqlite3.connect(registry.database.url.database or "", timeout=0.0)
    with registry.database.writing(), pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")
    other.execute("BEGIN IMMEDIATE")
    other.close()


def test_the_bundles_of_another_registry_are_not_cleared(
    registry: Registry, bundles: list[Bundle]
) -> None:
    registry.promote(SLOT, bundles[0], expected=None, reason="")
    other = Registry(registry.folder, f"sqlite:///{registry.folder / 'other.db'}")
    with pytest.raises(InputError, match="knows none of them"):
        clear_garbage(other)
    assert registry.bundle(bundles[0].hash, Bundle) == bundles[0]


def test_reading_does_not_wait_for_a_writer(registry: Registry, bundles: list[Bundle]) -> None:
    registry.promote(SLOT, bundles[0], expected=None, reason="")
    writer = sqlite3.connect(registry.folder / "registry.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE slots SET revision = 9")
    assert registry.slot(SLOT).revision == 1
    writer.rollback()


@pytest.mark.slow
def test_racing_promoters_end_in_one_champion_and_a_whole_history(
    registry_url: str, tmp_path: Path, bundles: list[Bundle]
) -> None:
    """Concurrent processes that open the same new registry."""
    folder = tmp_path / "made by the racers"
    context = multiprocessing.get_context("fork")
    racing = [*bundles, small_bundle(3)]
    start = context.Barrier(len(racing))
    racers = [
        context.Process(target=race, args=(str(folder), registry_url, bundle, start))
        for bundle in racing
    ]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(120)
    assert [racer.exitcode for racer in racers] == [0] * len(racers)
    audit_race(folder, registry_url, racing)


@pytest.mark.slow
def test_a_kill_at_a_random_instant_leaves_a_valid_registry(
    registry_url: str, tmp_path: Path, bundles: list[Bundle]
) -> None:
    context = multiprocessing.get_context("fork")
    folder, rng, moves, kills = tmp_path / "deployments", random.Random(5), 0, 0
    while kills < 8 or (
        moves == 0 and kills < 40
    ):  # on a busy machine the first worker may not get to a move
        worker = context.Process(target=live, args=(str(folder), registry_url, kills, bundles))
        worker.start()
        time.sleep(rng.uniform(0.05, 0.6) * (1 + kills // 8))
        kills += 1
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        assert worker.exitcode == -signal.SIGKILL
        now = audit(folder, registry_url)[3]
        assert now >= moves
        moves = now
    assert moves > 0
    clear_garbage(Registry(folder, registry_url))
    audit(folder, registry_url)


def _die(folder: str, action: str, bundle: Bundle, point: int) -> None:
    registry = Registry(Path(folder))
    die_at(registry, point)
    act(registry, action, bundle)


@pytest.mark.slow
@pytest.mark.parametrize(
    "action",
    with_extra(("promote", "challenger", "rollback", "clear"), ("challenger", "rollback", "clear")),
)
def test_a_kill_at_every_point_leaves_the_old_state_or_the_new_one(
    tmp_path: Path, bundles: list[Bundle], action: str
) -> None:
    """Kill before each change of a file and around each SQL statement until an action succeeds."""
    first, second, third = bundles
    start = Registry(tmp_path / "start")
    fourth = small_bundle(3)
    for champion, bundle in ((None, fourth), (fourth, first), (first, second)):
        start.promote(SLOT, bundle, expected=champion and champion.hash, reason="")
    before = audit(start.folder)
    start.database.engine.dispose()
    context = multiprocessing.get_context("fork")
    seen, after = set(), None
    for point in range(1, 400):
        folder = tmp_path / str(point)
        shutil.copytree(start.folder, folder)
        worker = context.Process(target=_die, args=(str(folder), action, third, point))
        worker.start()
        worker.join(60)
        state = audit(folder)
        seen.add(state)
        clear_garbage(Registry(folder))
        assert audit(folder) == state
        assert not list((folder / "bundles").glob(".*"))
        shutil.rmtree(folder)
        if worker.exitcode == 0:
            after = state
            break
        assert worker.exitcode == -signal.SIGKILL
    assert point > 3, "the points are no longer found: what does this test patch?"
    assert seen == {before, after}
    assert (before != after) == (action != "clear")
