"""Decisions and the simulator's returns are recomputed from the record."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from sweepd.commands import build_app
from sweepd.deploy.trading.certificates.parity import parity
from sweepd.deploy.trading.feeds import RecordedFeed
from sweepd.deploy.trading.flows import Flow
from sweepd.deploy.trading.live.notify import Notifier
from sweepd.deploy.trading.live.records import DIFFERS, SLOT_ACCOUNT
from sweepd.deploy.trading.live.store import store_parity, stored_parity
from sweepd.envs.support.errors import InputError
from tests.deploy.alpaca_server import Exchange, serving
from tests.deploy.builders import ensemble_of
from tests.deploy.trading.live.test_revisions import STOP, ChangingFeed, scaled
from tests.deploy.trading.live.test_session import FIRST, LAST, PARAMS, TICKERS, bars_of, bundle_of
from tests.deploy.trading.live.test_short_session import bundle_of as short_bundle
from tests.deploy.trading.live.test_short_session import wild_bars
from tests.deploy.trading.live.test_transfers import run, transfer
from tests.deploy.trading.live.world import SLOT, MarketClock, World


def command(folder: Path, *words: str) -> Any:
    app = build_app()
    return CliRunner().invoke(app, ["trader", "parity", SLOT, "--deployments", str(folder), *words])


@pytest.mark.parametrize("trials", [1, 2])
def test_a_simulated_account_is_reproduced_exactly(tmp_path: Path, trials: int) -> None:
    """With holes, a restart, missed bars, a transfer and a new champion."""
    bundle = bundle_of() if trials == 1 else ensemble_of([bundle_of(0), bundle_of(1)], (0.6, 0.4))
    world = World(tmp_path, bundle, bars_of(holes=0.05), FIRST)
    session = run(world, FIRST, FIRST + 5)
    transfer(session, Flow(2_000.0))
    run(world, FIRST + 5, FIRST + 8, session)
    heir = bundle_of(7)
    world.registry.promote(SLOT, heir, expected=bundle.hash, reason="better")
    run(world, FIRST + 8, FIRST + 10, session)
    world.until_close_of(FIRST + 12)  # two bars are missed
    run(world, FIRST + 13, LAST + 1)
    lines = world.lines()
    assert {line.bundle for line in lines} == {bundle.hash, heir.hash}
    assert any(line.action is None for line in lines)
    days = parity(world.registry, SLOT)
    assert sum(day.bars for day in days) == len(lines)
    assert sum(day.decisions for day in days) == sum(line.action is not None for line in lines)
    assert max(day.action for day in days) == 0.0
    assert max(day.unexplained for day in days) < 1e-12
    assert max(day.bar for day in days) < 1e-12
    assert all(day.growth == pytest.approx(day.simulated, abs=1e-12) for day in days)
    assert any(day.growth for day in days)


def test_short_positions_with_borrow_fees_and_liquidations(tmp_path: Path) -> None:
    world = World(tmp_path, short_bundle(), wild_bars(), FIRST)
    world.run()
    assert min(min(line.units.values()) for line in world.lines()) < 0.0
    days = parity(world.registry, SLOT)
    assert max(day.action for day in days) <= 1e-12
    assert max(day.bar for day in days) < 1e-12


def test_another_decision_is_found(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST)
    world.run()
    assert command(tmp_path).exit_code == 0
    line = world.lines()[7]
    assert line.action is not None
    changed = dict(line.action) | {TICKERS[1]: line.action[TICKERS[1]] + 0.01}
    with world.registry.database.engine.begin() as connection:
        connection.execute(text("DROP TRIGGER account_bars_no_update"))
        connection.execute(
            text("UPDATE account_bars SET action = :a WHERE time = :t AND account = 'account'"),
            {"a": json.dumps(changed), "t": line.time},
        )
    answer = command(tmp_path, "--json")
    found = json.loads(answer.output)
    assert (answer.exit_code, found["differs"]) == (1, True)
    day = next(one for one in found["days"] if one["day"] == line.time // 86400 * 86400)
    assert day["action"] == pytest.approx(0.01)
    assert "decisions differ, by at most 0.01" in command(tmp_path).output
    days, at = stored_parity(world.registry.database, SLOT)
    assert max(one.action for one in days) > DIFFERS
    assert at is not None


def test_a_return_that_the_fills_do_not_explain_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(
        Notifier, "notify", lambda _self, _kind, _title, text, _slot: sent.append(text)
    )
    world = World(tmp_path, bundle_of(), bars_of(), FIRST)
    world.run()
    assert command(tmp_path).exit_code == 0
    assert sent == []
    line = world.lines()[7]
    with world.registry.database.engine.begin() as connection:
        connection.execute(text("DROP TRIGGER account_bars_no_update"))
        connection.execute(
            text("UPDATE account_bars SET value = :v WHERE time = :t AND account = 'account'"),
            {"v": line.value * 1.0219, "t": line.time},
        )
    answer = command(tmp_path, "--json")
    found = json.loads(answer.output)
    assert (answer.exit_code, found["differs"]) == (1, True)
    assert max(one["action"] for one in found["days"]) == 0.0
    assert max(one["unexplained"] for one in found["days"]) == pytest.approx(0.0219, rel=0.1)
    assert "every decision is reproduced; returns of a bar differ" in command(tmp_path).output
    alerts = [event.text for event in world.store.events(SLOT) if event.kind == "alert"]
    assert len(alerts) == len(sent) == 2


def test_a_venues_fills_cost_what_the_shadow_shows(tmp_path: Path) -> None:
    pytest.importorskip("alpaca", reason="alpaca-py is not installed")
    for world in _with_venue(tmp_path):
        world.run()
        days = parity(world.registry, SLOT)
        assert max(day.action for day in days) <= DIFFERS
        own, shadow = world.lines(), world.lines("shadow")
        total = own[-1].value / own[0].value - shadow[-1].value / shadow[0].value
        grown = simulated = 1.0
        for day in days:
            grown, simulated = grown * (1.0 + day.growth), simulated * (1.0 + day.simulated)
        assert grown - simulated == pytest.approx(total, abs=1e-9)
        assert max(day.bar for day in days) > 1e-5
        assert not any(day.differs for day in days)  # the recorded fills explain it


def _with_venue(folder: Path) -> Iterator[World]:
    market = Exchange(
        {ticker.replace("USDT", "USD"): Decimal(1) for ticker in TICKERS}, spread=Decimal("0.004")
    )
    with serving(market) as exchange:
        params = dataclasses.replace(PARAMS, max_holding_bars=0)
        yield World(folder, bundle_of(params=params), bars_of(), FIRST, exchange)


@pytest.mark.parametrize(
    ("broker", "where"),
    [
        ("venue", "restart"),
        ("venue", "poll"),
        ("simulator", "restart"),
        ("simulator, ensemble", "poll"),
    ],
)
def test_a_split_between_an_order_and_the_bar_that_books_it(
    tmp_path: Path, broker: str, where: str
) -> None:
    """A venue fills it in the earlier units, the simulator at the next open in the new ones."""
    if broker == "venue":
        pytest.importorskip("alpaca", reason="alpaca-py is not installed")
        worlds = _with_venue(tmp_path)
    else:
        ensemble = ensemble_of([bundle_of(0), bundle_of(1)], (0.6, 0.4))
        bundle = ensemble if "ensemble" in broker else bundle_of()
        worlds = iter([World(tmp_path, bundle, bars_of(), FIRST)])
    changed, before = scaled(bars_of(), 0.1), bars_of().time[STOP - 1]
    for world in worlds:
        if where == "poll":
            world.make_feed = lambda _bundle: ChangingFeed(bars_of(), changed, STOP)
        session = run(world, FIRST, STOP)
        if world.exchange is not None:
            world.exchange.units["LINK/USD"] *= 10
            world.clock = MarketClock(world.clock.now(), changed, world.exchange)
            session._clock = world.clock
        if where == "restart":
            world.make_feed = lambda _bundle: RecordedFeed(changed)
        run(world, STOP, LAST + 1, session if where == "poll" else None)
        kinds = [kind for kind, _ in world.told]
        assert (kinds.count("adjusted"), kinds.count("transfer")) == (1, 0)
        orders = world.store.orders(SLOT, account=SLOT_ACCOUNT)
        [line] = [
            one for one in orders if (one.order.ticker, one.order.decided) == (TICKERS[2], before)
        ]
        assert line.fill is not None
        assert line.fill.units > 0.0
        assert not any(day.differs for day in parity(world.registry, SLOT))


def test_a_new_computation_replaces_the_stored_one(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST)
    world.begin()
    assert stored_parity(world.registry.database, SLOT) == ([], None)
    store_parity(world.registry.database, SLOT, parity(world.registry, SLOT))
    world.run()
    days = parity(world.registry, SLOT)
    store_parity(world.registry.database, SLOT, days)
    assert stored_parity(world.registry.database, SLOT)[0] == days


def test_records_that_cannot_be_recomputed_are_refused(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST)
    with pytest.raises(InputError, match="was ever traded: sweepd trade"):
        parity(world.registry, SLOT)
    world.run()
    with world.registry.database.engine.begin() as connection:
        connection.execute(text("DROP TRIGGER trader_bars_no_delete"))
        connection.execute(text(f"DELETE FROM trader_bars WHERE time < {bars_of().time[FIRST]}"))
    with pytest.raises(InputError, match="too late for the first decision"):
        parity(world.registry, SLOT)
