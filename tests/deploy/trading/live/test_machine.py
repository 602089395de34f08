"""The trader's machine: what it says of itself is complete, and what it commits is enough."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sweepd.deploy.trading.certificates.parity import parity
from sweepd.deploy.trading.live.events import (
    ChallengersAre,
    ChampionIs,
    Commit,
    Event,
    Instruction,
    Started,
    content,
    restored_event,
)
from sweepd.deploy.trading.live.machine import Machine
from sweepd.deploy.trading.risk_limits import RiskLimits
from tests.deploy.alpaca_server import Exchange, serving
from tests.deploy.builders import ensemble_of
from tests.deploy.trading.live.test_arena_and_monitor import seat
from tests.deploy.trading.live.test_session import FIRST, LAST, TICKERS, bars_of, bundle_of
from tests.deploy.trading.live.world import SLOT, World

FORGOTTEN = ("number", "champion", "refused")  # a start forgets which champion was examined


def eventful(world: World) -> None:
    """Trade with a halt, a new champion, a challenger, missed and late bars, and a restart."""
    session = world.session()
    for bar in range(FIRST, LAST + 1):
        if bar == FIRST + 2:
            seat(world, bundle_of(3))
        if bar == FIRST + 4:
            world.store.halt(SLOT, "by the operator", sells=True)
            world.clock.wait(10.0)
            session.poll()
        if bar == FIRST + 6:
            world.store.resume(SLOT, "checked")
        if bar == FIRST + 7:
            world.registry.promote(SLOT, bundle_of(5), expected=world.bundle.hash, reason="better")
        if bar == FIRST + 9:
            session = world.session()
        if bar in (FIRST + 10, FIRST + 11):
            continue  # missed
        world.until_close_of(bar)
        if bar == FIRST + 14:
            world.clock.wait(1_800.0)  # late
        session.poll()


def worlds(folder: Path, then: Callable[[World], None]) -> None:
    """Let `then` see a world with the simulator, and one with a venue."""
    options = {"arena": 2, "limits": RiskLimits(drawdown=0.05)}
    ensemble = ensemble_of([bundle_of(0), bundle_of(1)], (0.6, 0.4))
    then(World(folder / "sim", ensemble, bars_of(holes=0.05), FIRST, options=options))
    pytest.importorskip("alpaca", reason="alpaca-py is not installed")
    market = Exchange(
        {ticker.replace("USDT", "USD"): Decimal(1) for ticker in TICKERS}, spread=Decimal("0.001")
    )
    with serving(market) as exchange:
        then(World(folder / "venue", bundle_of(), bars_of(), FIRST, exchange, options))


def test_a_machine_continues_from_its_snapshot_after_any_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every event another machine is made of the snapshot as JSON, and takes its place."""
    handle, started = Machine.handle, dict[int, Started]()
    replaced: list[str] = []

    def replacing(machine: Machine, event: Event) -> list[Instruction]:
        found = handle(machine, event)
        if isinstance(event, Started):
            started[id(machine)] = event
            return found
        if isinstance(event, ChallengersAre):
            started[id(machine)] = dataclasses.replace(
                started[id(machine)], challengers=event.hashes
            )
        before = machine.snapshot()
        again = dataclasses.replace(
            started[id(machine)], bundle=machine.own.bundle.hash, lost=None, bars=None
        )
        other = Machine(
            machine._slot,
            machine._library,
            machine.history,
            json.loads(json.dumps(before)),
            dry_run=machine._dry_run,
            parts=machine._parts,
        )
        if machine.own.since is None:  # nothing is stored of an account without bars
            return found
        handle(other, again)
        after = other.snapshot()
        assert json.dumps(after["accounts"]) == json.dumps(before["accounts"])
        kept = [
            {k: v for k, v in one["state"].items() if k not in FORGOTTEN} for one in (after, before)
        ]
        assert kept[0] == json.loads(json.dumps(kept[1]))
        replaced.append(type(event).__name__)
        machine.__dict__.update({"entry": None} | vars(machine) | vars(other))
        machine.state = before["state"]
        return found

    def run(world: World) -> None:
        eventful(world)
        with monkeypatch.context() as patch:
            patch.setattr(Machine, "handle", replacing)
            other = dataclasses.replace(world, folder=world.folder / "again", told=[])
            if world.exchange is not None:
                world.exchange.cash, world.exchange.units = Decimal(10_000), {}
                world.exchange.orders = {}
            eventful(other)
        accounts = {one.name for one in world.store.accounts(SLOT)}
        assert len(accounts) > 6
        for name in accounts:
            assert other.lines(name) == world.lines(name), name
        assert other.orders() == world.orders()
        assert other.told == world.told

    worlds(tmp_path, run)
    assert {"BarClosed", "ChampionIs", "Halted", "Resumed", "Filled"} <= set(replaced)


def test_without_a_commit_nothing_has_changed_and_a_commit_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, quiet = Machine.handle, list[str]()

    def checked(machine: Machine, event: Event) -> list[Instruction]:
        before = None if isinstance(event, Started) else json.dumps(machine.snapshot())
        found = handle(machine, event)
        commits = [place for place, one in enumerate(found) if isinstance(one, Commit)]
        assert commits in ([], [0])
        if not commits:
            assert json.dumps(machine.snapshot()) == before
            quiet.append(type(event).__name__)
        return found

    monkeypatch.setattr(Machine, "handle", checked)
    worlds(tmp_path, eventful)
    assert {"ChampionIs", "ChallengersAre", "Checked", "Reviewed"} <= set(quiet)


def test_stored_events_are_read_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, seen = Machine.handle, list[Event]()

    def kept(machine: Machine, event: Event) -> list[Instruction]:
        if isinstance(event, Started) and machine._slot == "dry-run":
            return handle(machine, event)
        seen.append(event)
        return handle(machine, event)

    monkeypatch.setattr(Machine, "handle", kept)
    worlds(tmp_path, eventful)
    for event in seen:
        stored = json.loads(json.dumps(content(event)))
        market: dict[str, Any] = {
            name: getattr(event, name) for name in ("bar", "bars") if hasattr(event, name)
        }
        assert restored_event(type(event).__name__, stored, **market) == event


def test_parity_knows_halts_and_risk_rules(tmp_path: Path) -> None:
    def run(world: World) -> None:
        eventful(world)
        inputs = world.store.inputs(SLOT)
        assert [one.number for one in inputs] == list(range(1, len(inputs) + 1))
        assert any(one.snapshot for one in inputs)
        days = parity(world.registry, SLOT)
        assert sum(day.bars for day in days) == len(world.lines())
        assert max(day.action for day in days) == 0.0
        assert max(day.unexplained for day in days) < 1e-12
        if world.exchange is None:
            assert max(abs(day.gap) for day in days) < 1e-12

    worlds(tmp_path, run)


def test_a_champion_that_cannot_be_loaded_is_examined_again_after_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST)
    world.begin()
    heir = bundle_of(5)
    world.registry.promote(SLOT, heir, expected=world.bundle.hash, reason="better")
    path = world.registry.path(heir.hash) / "members.safetensors"
    whole = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(whole[:-1] + b"x")
    session = world.session()
    for bar in range(FIRST + 1, FIRST + 3):
        world.until_close_of(bar)
        session.poll()
    assert [kind for kind, _ in world.told].count("swap refused") == 1
    path.write_bytes(whole)
    session = world.session()
    for bar in range(FIRST + 3, FIRST + 5):
        world.until_close_of(bar)
        session.poll()
    assert [line.bundle for line in world.lines()][-2:] == [heir.hash, heir.hash]
    assert ChampionIs.__name__ in {one.kind for one in world.store.inputs(SLOT)}
