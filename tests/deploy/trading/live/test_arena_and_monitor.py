"""Benchmarks, seated challengers and the reactions of the monitor in a live session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sweepd.deploy.trading.live.monitor as monitor_module
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.scored import SCORED_FILE, ScoredRecord
from sweepd.deploy.market.scoring import score_bundle
from sweepd.deploy.registry.arena_rows import ArenaEntry
from sweepd.deploy.registry.bundle_files import describe_files, new_bundle
from sweepd.deploy.trading.live.events import Judged, Look
from sweepd.deploy.trading.live.monitor import Monitor
from sweepd.deploy.trading.live.monitor_statistics import LiveStatistic, MonitorReport
from sweepd.deploy.trading.live.records import CASH, EQUAL_WEIGHT
from sweepd.deploy.trading.live.returns import paired_returns, since_present_bundle
from sweepd.deploy.trading.replay import replay
from sweepd.envs.crypto.data.bars import write_bars
from sweepd.envs.support.errors import InputError
from tests.deploy.builders import small_bundle
from tests.deploy.trading.live.test_session import FIRST, LAST, PARAMS, TICKERS, bars_of, bundle_of
from tests.deploy.trading.live.world import SLOT, Killed, Killer, World


def rival(seed: int, objective: float = 1.0, **changes: Any) -> Bundle:
    given: dict[str, Any] = {"tickers": TICKERS, "params": PARAMS, "gain": 1.5} | changes
    origin = small_bundle(seed, **given).origin.model_copy(update={"objective_value": objective})
    return small_bundle(seed, **given, origin=origin)


def accounts_of(world: World) -> dict[str, str | None]:
    """Accounts by name, with why they are retired."""
    return {account.name: account.retired for account in world.store.accounts(SLOT)}


def test_benchmarks_equal_buying_and_holding(tmp_path: Path) -> None:
    bars, bundle = bars_of(holes=0.05), bundle_of()
    world = World(tmp_path, bundle, bars, FIRST)
    world.run()
    expected = replay(bundle, bars, (FIRST, LAST)).entries
    equal = [line.value for line in world.lines(EQUAL_WEIGHT)]
    np.testing.assert_allclose(equal, [entry.equal_weight for entry in expected], rtol=1e-12)
    assert {line.value for line in world.lines(CASH)} == {10_000.0}
    for asset, ticker in enumerate(TICKERS):
        first = next(bar for bar in range(FIRST + 1, LAST + 1) if not bars.hole[bar, asset])
        units = 10_000.0 * (1 - PARAMS.fee) / (bars.open[first, asset] * (1 + PARAMS.slippage))
        assert world.lines(f"hold {ticker}")[-1].value == pytest.approx(
            units * bars.close[LAST, asset], rel=1e-12
        )


def seat(world: World, *bundles: Bundle) -> None:
    """Make bundles challengers with a seat, in this order."""
    since = int(world.bars.time[world.first])
    for one in bundles:
        world.registry.challenger(SLOT, one, reason="test")
        entry = ArenaEntry(SLOT, 1, 0, one.hash, "challenger", "", since, 0.1, 0.1)
        world.registry.arena.enter([entry], "")


def test_the_first_challengers_trade_as_if_alone(tmp_path: Path) -> None:
    bars = bars_of()
    world = World(tmp_path, bundle_of(), bars, FIRST, options={"arena": 2})
    rivals = [rival(seed, objective) for seed, objective in ((3, 0.5), (4, 2.0), (5, 1.0))]
    seat(world, rival(6, 9.0, tickers=("BTC/USDT", "ETH/USDT")), *rivals)
    world.registry.challenger(SLOT, rival(7), reason="it waits for a seat")
    world.run()
    for one in rivals[:2]:
        values = [line.value for line in world.lines(one.hash[:16])]
        assert values == [entry.value for entry in replay(one, bars, (FIRST, LAST)).entries]
    assert world.lines(rivals[2].hash[:16]) == []
    clients = [line.order.client_id for line in world.store.orders(SLOT)]
    assert len(clients) == len(set(clients))


def test_a_kill_at_any_step_does_not_change_the_arena(tmp_path: Path) -> None:
    bars = bars_of(FIRST + 3)
    worlds = []
    for name in ("undisturbed", "killed"):
        world = World(tmp_path / name, bundle_of(), bars, FIRST, options={"arena": 2})
        seat(world, rival(3), rival(4))
        world.begin()
        worlds.append(world)
    worlds[0].run()
    for at in range(2, 9):
        with pytest.raises(Killed):
            worlds[1].run(Killer(at))
        if worlds[1].clock.now() > float(bars.time[-1]):
            break
    worlds[1].run()
    for account in accounts_of(worlds[0]):
        assert worlds[1].lines(account) == worlds[0].lines(account)
    assert worlds[1].orders() == worlds[0].orders()


def test_later_challengers_take_part_and_failing_ones_retire(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST, options={"arena": 3})
    session = world.session()
    for bar in range(FIRST, FIRST + 3):
        world.until_close_of(bar)
        session.poll()
    late = rival(3)
    seat(world, late)
    for bar in range(FIRST + 3, FIRST + 6):
        world.until_close_of(bar)
        session.poll()
    assert [line.time for line in world.lines(late.hash[:16])] == world.bars.time[
        FIRST + 4 : FIRST + 6
    ].tolist()
    [account] = [account for account in session.machine.accounts if account.name == late.hash[:16]]
    account.trader._policies = [lambda _obs: np.full(3, np.nan)]
    world.until_close_of(FIRST + 6)
    session.poll()
    assert "actions that are not finite" in str(accounts_of(world)[late.hash[:16]])
    assert len(world.lines()) == 7


@pytest.mark.parametrize(
    ("rule", "verdict"),
    [
        ("alert", "worse than scored"),
        ("cash", "worse than scored"),
        ("rollback", "worse than scored"),
        ("cash", "tracking off"),
        ("cash", "as scored"),
    ],
)
def test_a_verdict_has_the_configured_reaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, verdict: str
) -> None:
    before = bundle_of(7)
    world = World(tmp_path, before, bars_of(), FIRST, options={"on_alert": rule})
    champion = bundle_of(8)
    world.registry.promote(SLOT, champion, expected=before.hash, reason="better")
    monkeypatch.setattr(monitor_module, "look_number", lambda bars, _timeframe: bars // 5)
    monkeypatch.setattr(
        monitor_module,
        "judge_record",
        lambda *_, **__: MonitorReport(verdict, "it is so", 5, 5, 10, 1, 5),  # type: ignore[arg-type]
    )
    monkeypatch.setattr(monitor_module, "_score", lambda *_: (np.zeros(50), np.zeros(50)))
    session = world.session()
    for bar in range(FIRST, FIRST + 10):
        world.until_close_of(bar)
        session.poll()
    bad = verdict == "worse than scored"
    trader = world.store.trader(SLOT)
    assert trader is not None
    assert (trader.halt is not None) == (bad and rule == "cash")
    assert trader.state["monitor"]["verdict"] == verdict or rule == "rollback"
    assert (world.registry.slot(SLOT).champion == before.hash) == (bad and rule == "rollback")
    alerts = [text for kind, text in world.told if kind == "alert"]
    assert (len(alerts) > 0) == (verdict != "as scored")
    if bad and rule == "cash":
        assert set(world.lines()[-1].units.values()) == {0.0}
    if bad and rule == "rollback":
        assert world.lines()[-1].bundle == before.hash


def test_a_champion_that_came_after_the_judged_one_is_not_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, judged, newer = bundle_of(7), bundle_of(8), bundle_of(9)
    world = World(tmp_path, before, bars_of(), FIRST)
    world.registry.promote(SLOT, judged, expected=before.hash, reason="better")
    world.begin()
    edge = LiveStatistic(-0.1, 0.1, 0.001, 0.0, 0.2)
    found = MonitorReport("worse than scored", "it is so", 5, 5, 10, 1, 5, 0.01, edge=edge)
    monkeypatch.setattr(monitor_module, "look_number", lambda *_: 1)
    monkeypatch.setattr(monitor_module, "judge_record", lambda *_, **__: found)
    monkeypatch.setattr(monitor_module, "_score", lambda *_: (np.zeros(50), np.zeros(50)))
    session = world.session(on_alert="rollback")
    world.until_close_of(FIRST + 1)
    promote, evaluate = world.registry.promote, session._monitor.evaluate

    def promoted_meanwhile(*given: Any) -> Any:
        promote(SLOT, newer, expected=judged.hash, reason="better still")
        return evaluate(*given)

    monkeypatch.setattr(session._monitor, "evaluate", promoted_meanwhile)
    session.poll()
    slot = world.registry.slot(SLOT)
    assert (slot.champion, slot.previous) == (newer.hash, judged.hash)
    assert world.registry.events(SLOT, kinds=["aged"]) == []  # the mark is the judged one's
    assert session.machine.state["effects"] == []


@pytest.mark.parametrize(("p", "marks"), [(0.001, 1), (0.02, 0)])
def test_a_lost_edge_marks_the_champion_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, p: float, marks: int
) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST)
    world.begin()
    edge = LiveStatistic(-0.1, 0.1, p, 0.0, 0.2)
    found = MonitorReport("worse than scored", "it is so", 5, 5, 10, 1, 5, 0.01, edge=edge)
    monkeypatch.setattr(monitor_module, "look_number", lambda bars, _timeframe: bars or 9)
    monkeypatch.setattr(monitor_module, "judge_record", lambda *_, **__: found)
    monkeypatch.setattr(monitor_module, "_score", lambda *_: (np.zeros(50), np.zeros(50)))
    session = world.session()
    for bar in range(FIRST + 1, FIRST + 4):
        world.until_close_of(bar)
        session.poll()
        session.machine.state["monitor"] = {}  # it was lost in a kill
    marked = world.registry.events(SLOT, kinds=["aged"])
    assert [(one.bundle, one.reason) for one in marked] == [(world.bundle.hash, "it is so")] * marks


def test_a_bundle_from_the_arena_is_compared_with_the_record_it_was_chosen_by(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    record = ScoredRecord(*rng.normal(0.0, 0.01, (2, 400)), luck=0.0005)
    plain = bundle_of(9)
    files = {**plain.files, SCORED_FILE: record.to_bytes()}
    manifest = plain.manifest.model_copy(update={"files": describe_files(files)})
    bundle = new_bundle(Bundle, manifest, files)
    world = World(tmp_path, bundle, bars_of(), FIRST)
    stored = world.registry.bundle(bundle.hash, Bundle)
    found = Monitor(SLOT, world.registry, world.store, None)._scored_returns(stored)
    np.testing.assert_array_equal(found[0], record.returns - 0.0005)
    np.testing.assert_array_equal(found[1], record.equal_weight)
    path = world.registry.path(bundle.hash) / SCORED_FILE
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match=SCORED_FILE):
        world.registry.bundle(bundle.hash, Bundle)


def test_the_record_is_compared_with_the_bundles_own_hold_out(tmp_path: Path) -> None:
    bars, bundle = bars_of(900), bundle_of()
    write_bars(bars, tmp_path / "bars")
    world = World(tmp_path, bundle, bars_of(), FIRST)
    monitor = Monitor(SLOT, world.registry, world.store, None)
    assert monitor._scored_returns(bundle) == "the registry does not know its hold-out"
    other = bundle_of(9)
    world.registry.promote(
        SLOT, other, expected=bundle.hash, reason="", data_dir=str(tmp_path / "bars")
    )
    first, last = 700, 800
    world.registry.evaluations.record_holdout(
        TICKERS,
        "1h",
        int(bars.time[first]),
        int(bars.time[last]),
        members_sha256=other.members_sha256,
        study="s",
        study_uid="u",
        trial=1,
    )
    found = monitor._scored_returns(other)
    assert not isinstance(found, str)
    expected = score_bundle(other, bars, (first - 1, last))
    np.testing.assert_array_equal(found[0], expected.returns)
    np.testing.assert_array_equal(found[1], expected.equal_weight)
    assert len(found[0]) == last - first + 1


def test_a_missing_hold_out_is_reported_as_no_verdict(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST)
    monitor = Monitor(SLOT, world.registry, world.store, None)
    look = Look("monitor", world.bundle.hash, 10_000, ())
    judged = monitor.evaluate(world.bundle, look, {})
    assert judged.state["verdict"] == "unknown"
    assert judged.told == (
        ("monitor", "there is no record to compare with: the registry does not know its hold-out"),
    )
    assert monitor.evaluate(world.bundle, look, judged.state) == Judged("monitor", judged.state)


def test_paired_returns_are_of_the_same_bars(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST)
    session = world.session()
    for bar in range(FIRST, FIRST + 4):
        world.until_close_of(bar)
        session.poll()
    heir = bundle_of(5)
    world.registry.promote(SLOT, heir, expected=world.bundle.hash, reason="")
    for bar in range(FIRST + 4, FIRST + 9):
        world.until_close_of(bar)
        session.poll()
    since, hash_ = since_present_bundle(world.store, SLOT, "account")
    assert (since, hash_) == (int(world.bars.time[FIRST + 4]), heir.hash)
    records = paired_returns(world.store, SLOT, ("account", EQUAL_WEIGHT), since)
    values = [line.value for line in world.lines()][4:]
    np.testing.assert_allclose(records["account"], np.diff(values) / values[:-1])
    assert len(records[EQUAL_WEIGHT]) == len(records["account"]) == 4
