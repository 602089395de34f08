"""Promotions that are killed or compete, and checks of the registry afterwards."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from sweepd.deploy.gates import bundle_types
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.registry.records import ChampionMoved
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.garbage import clear_garbage
from sweepd.envs.support.errors import InputError
from tests.deploy.builders import small_bundle

SLOT = "crypto-1h"
Folded = tuple[str | None, str | None, frozenset[str], int]


def folded(registry: Registry, slot: str = SLOT) -> Folded:
    """Compute champion, previous champion, challengers and number of moves from the history."""
    champion: str | None = None
    previous: str | None = None
    challengers: set[str] = set()
    moves = 0
    for event in registry.events(slot):
        if event.kind in ("promoted", "rolled-back"):
            assert event.previous == champion, (
                f"event {event.kind} replaces {event.previous}, not {champion}"
            )
            assert event.kind == "promoted" or event.bundle == previous
            champion, previous, moves = event.bundle, champion, moves + 1
            challengers.discard(str(event.bundle))
        elif event.kind == "challenger":
            challengers.add(str(event.bundle))
    return champion, previous, frozenset(challengers), moves


def audit(folder: Path, url: str | None = None, slot: str = SLOT) -> Folded:
    """Reopen the registry and check that the slot matches its history and its bundle can be loaded.

    Raises AssertionError, or InputError for a bundle that cannot be used.
    """
    registry = Registry(folder, url)
    found = registry.slot(slot)
    state = (found.champion, found.previous, frozenset(found.challengers), found.revision)
    assert state == folded(registry, slot), (state, folded(registry, slot))
    for hash_ in (found.champion, found.previous, *found.challengers):
        if hash_ is not None:
            registry.bundle(hash_, *bundle_types())
    versions = registry.versions(slot)
    assert [version.number for version in versions] == list(range(1, len(versions) + 1))
    assert {hash_ for hash_ in state[:2] if hash_} | state[2] <= {
        version.bundle for version in versions
    }
    return state


def die_at(registry: Registry, point: int) -> None:
    """Kill this process, as kill -9 does, when it reaches a point.

    There is a point before every system call that changes files, every SQL statement that writes,
    and every commit: between two points, nothing durable changes. Points are counted from 1.
    """
    reached = 0

    def pass_by(*_: Any, **__: Any) -> None:
        nonlocal reached
        reached += 1
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)

    def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            pass_by()
            return function(*arguments, **options)

        return call

    for name in ("mkdir", "chmod", "fsync", "rename", "replace", "rmdir", "unlink"):
        setattr(os, name, guarded(getattr(os, name)))
    engine = registry.database.engine
    sa.event.listen(engine, "commit", pass_by)

    @sa.event.listens_for(engine, "before_cursor_execute")
    def _before(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if not statement.startswith(("SELECT", "PRAGMA", "BEGIN")):
            pass_by()


def live(folder: str, url: str | None, seed: int, bundles: list[Bundle] | None = None) -> None:
    """Promote, add challengers, roll back and clear in random order, until killed."""
    rng = random.Random(seed)
    bundles = bundles or [small_bundle(one) for one in range(4)]
    registry = Registry(Path(folder), url)
    turn = 0
    while True:
        turn += 1
        act(
            registry,
            rng.choice(("promote", "promote", "challenger", "rollback", "clear")),
            rng.choice(bundles),
            turn,
        )


def act(registry: Registry, action: str, bundle: Bundle, turn: int = 0) -> None:
    """Perform one action; skip it if a concurrent process made it impossible."""
    try:
        if action == "promote":
            expected = registry.slot(SLOT).champion
            registry.promote(
                SLOT, bundle, expected=expected, reason=f"turn {turn}", report={"turn": turn}
            )
        elif action == "challenger":
            registry.challenger(SLOT, bundle, reason=f"turn {turn}")
        elif action == "rollback":
            if registry.slot(SLOT).previous is not None:
                registry.rollback(SLOT, f"turn {turn}", *bundle_types())
        else:
            clear_garbage(registry)
    except ChampionMoved:
        pass
    except InputError as error:
        if "changed while it was being rolled back" not in str(error):
            raise


def race(folder: str, url: str | None, bundle: Bundle, start: Any) -> None:
    """Wait for the other processes, then retry a promotion until it succeeds."""
    registry = Registry(Path(folder), url)
    start.wait()
    while True:
        try:
            registry.promote(
                SLOT, bundle, expected=registry.slot(SLOT).champion, reason=f"racer {bundle.name}"
            )
            return
        except ChampionMoved:
            continue


def audit_race(folder: Path, url: str | None, bundles: list[Bundle]) -> None:
    """Check a slot after every bundle was promoted by a `race`.

    There is one champion, and every event of the history replaced the champion before it.
    """
    champion, previous, _, moves = audit(folder, url)
    events = Registry(folder, url).events(SLOT)
    assert moves == len(events) == len(bundles)
    assert {event.bundle for event in events} == {bundle.hash for bundle in bundles}
    assert champion == events[-1].bundle
    assert previous == (events[-2].bundle if len(events) > 1 else None)
