"""The dashboard on the records of a real live trader."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sweepd.deploy.dashboard.series import SeriesCache
from sweepd.deploy.dashboard.view import slot_view
from tests.deploy.trading.live.test_session import FIRST, LAST, TICKERS, bars_of, bundle_of
from tests.deploy.trading.live.world import SLOT, World


def test_positions_curves_and_orders_of_a_real_session(tmp_path: Path) -> None:
    bars, bundle = bars_of(), bundle_of()
    world = World(tmp_path, bundle, bars, FIRST)
    world.run()
    view = slot_view(world.registry, SeriesCache(world.store), SLOT, time.time())
    assert view.champion == bundle.hash
    assert (view.health.state, view.health.level) == ("stopped", "warning")
    assert view.health.bars_behind is None, "recorded bars are as old as they are"
    lines = world.lines()
    own = view.account("account")
    assert own is not None
    assert (own.bars, own.value, own.trades) == (
        len(lines),
        lines[-1].value,
        sum(line.trades for line in lines),
    )
    assert {account.name for account in view.accounts if account.kind == "benchmark"} == {
        "equal weight",
        "cash",
        *(f"hold {ticker}" for ticker in TICKERS),
    }
    assert view.holdings is not None
    assert {one.ticker: one.price for one in view.holdings.positions} == dict(
        zip(TICKERS, bars.close[LAST].tolist(), strict=True)
    )
    total = view.holdings.cash + sum(one.value or 0.0 for one in view.holdings.positions)
    assert total == pytest.approx(view.holdings.value, rel=1e-12)
    written = {line.order.client_id: line for line in world.store.orders(SLOT)}
    assert len(view.orders) == min(25, len(written))
    assert {order.status for order in view.orders} <= {"filled", "unfilled", "intended"}
    assert any(event.kind == "started" for event in view.events)
    assert view.monitor is None or view.monitor.verdict in ("too early", "unknown")
