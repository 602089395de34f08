"""Benchmarks, challengers and the reactions of the monitor in a live session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sweepd.deploy.trading.live.arena as arena_module
import sweepd.deploy.trading.live.monitor as monitor_module
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.scoring import score_bundle
from sweepd.deploy.trading.live.comparison import Comparison
from sweepd.deploy.trading.live.monitor import Monitor
from sweepd.deploy.trading.live.monitor_statistics import MonitorReport
from sweepd.deploy.trading.live.records import CASH, EQUAL_WEIGHT
from sweepd.deploy.trading.live.returns import paired_returns, since_present_bundle
from sweepd.deploy.trading.replay import replay
from sweepd.envs.crypto.data.bars import write_bars
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


def test_the_best_challengers_trade_as_if_alone(tmp_path: Path) -> None:
    bars = bars_of()
    world = World(tmp_path, bundle_of(), bars, FIRST, options={"arena": 2})
    rivals = [rival(seed, objective) for seed, objective in ((3, 0.5), (4, 2.0), (5, 1.0))]
    for one in [*rivals, rival(6, 9.0, tickers=("BTC/USDT", "ETH/USDT"))]:
        world.registry.challenger(SLOT, one, reason="test")
    world.run()
    for one in (rivals[1], rivals[2]):
        values = [line.value for line in world.lines(one.hash[:16])]
        assert values == [entry.value for entry in replay(one, bars, (FIRST, LAST)).entries]
    assert world.lines(rivals[0].hash[:16]) == []
    clients = [line.order.client_id for line in world.store.orders(SLOT)]
    assert len(clients) == len(set(clients))


def test_a_kill_at_any_step_does_not_change_the_arena(tmp_path: Path) -> None:
    bars = bars_of(FIRST + 3)
    worlds = []
    for name in ("undisturbed", "killed"):
        world = World(tmp_path / name, bundle_of(), bars, FIRST, options={"arena": 2})
        for seed in (3, 4):
            world.registry.challenger(SLOT, rival(seed), reason="test")
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


def test_a_better_challenger_is_promoted_and_a_worse_one_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    better, worse = rival(3), rival(4)
    asked: list[int] = []

    def compare(
        ours: np.ndarray, theirs: np.ndarray, _timeframe: str, looks: int, *, seed: int
    ) -> Comparison:
        assert len(ours) == len(theirs) == 6
        asked.append(looks)
        return Comparison(
            "better" if seed == int(better.members_sha256[:15], 16) else "worse", "a test", days=1
        )

    monkeypatch.setattr(arena_module, "compare", compare)
    monkeypatch.setattr(arena_module, "days_due", lambda bars, _timeframe: bars // 6)
    world = World(tmp_path, bundle_of(), bars_of(), FIRST, options={"arena": 2})
    for one in (worse, better):
        world.registry.challenger(SLOT, one, reason="test")
    session = world.session()
    for bar in range(FIRST, FIRST + 9):
        world.until_close_of(bar)
        session.poll()
    assert asked == [0, 1]
    slot = world.registry.slot(SLOT)
    assert (slot.champion, slot.previous, slot.challengers) == (better.hash, world.bundle.hash, ())
    reasons = {event.kind: event.reason for event in world.registry.events(SLOT)}
    assert reasons["promoted"].startswith("won in the arena")
    assert reasons["withdrawn"].startswith("lost in the arena")
    assert [line.bundle for line in world.lines()] == [world.bundle.hash] * 7 + [better.hash] * 2
    assert all(
        why is not None
        for name, why in accounts_of(world).items()
        if name in (better.hash[:16], worse.hash[:16])
    )


def test_later_challengers_take_part_and_failing_ones_retire(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST, options={"arena": 3})
    session = world.session()
    for bar in range(FIRST, FIRST + 3):
        world.until_close_of(bar)
        session.poll()
    late = rival(3)
    world.registry.challenger(SLOT, late, reason="test")
    for bar in range(FIRST + 3, FIRST + 6):
        world.until_close_of(bar)
        session.poll()
    assert [line.time for line in world.lines(late.hash[:16])] == world.bars.time[
        FIRST + 4 : FIRST + 6
    ].tolist()
    [account] = [account for account in session._accounts if account.name == late.hash[:16]]
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


def test_the_record_is_compared_with_the_bundles_own_hold_out(tmp_path: Path) -> None:
    bars, bundle = bars_of(900), bundle_of()
    write_bars(bars, tmp_path / "bars")
    world = World(tmp_path, bundle, bars_of(), FIRST)
    monitor = Monitor(SLOT, world.registry, world.store, "alert", None)
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
    monitor = Monitor(SLOT, world.registry, world.store, "cash", None)
    state, told = monitor.evaluate(world.bundle, 10_000, {})
    assert state["verdict"] == "unknown"
    assert told == [
        ("monitor", "there is no hold-out to compare with: the registry does not know its hold-out")
    ]
    assert monitor.evaluate(world.bundle, 10_000, state) == (state, [])


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
