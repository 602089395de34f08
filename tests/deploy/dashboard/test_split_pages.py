"""After a split, candles, marks, round trips and positions are in the present units."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("plotly")

from sweepd.deploy.dashboard.series import SeriesCache
from sweepd.deploy.dashboard.view import Holdings, slot_view
from sweepd.deploy.trading.feeds import RecordedFeed
from sweepd.deploy.trading.live.profits import ProfitBook
from sweepd.deploy.trading.live.queries import Records
from sweepd.deploy.trading.live.records import SLOT_ACCOUNT
from sweepd.deploy.trading.round_trips import Profits
from tests.deploy.dashboard.test_web import client, figures, get
from tests.deploy.trading.live.test_revisions import STOP, ChangingFeed, scaled, traded
from tests.deploy.trading.live.test_session import FIRST, TICKERS, bars_of, bundle_of
from tests.deploy.trading.live.world import SLOT, World

TICKER, FACTOR = TICKERS[2], 0.1
NAMES = ("open", "high", "low", "close")


def profits_of(world: World) -> Profits:
    trader = world.store.trader(SLOT)
    assert trader is not None
    book = ProfitBook(Records(world.registry.database), world.store)
    found = book.read(trader, SLOT_ACCOUNT)
    assert found is not None
    return found


def holdings_of(world: World) -> Holdings:
    view = slot_view(world.registry, SeriesCache(world.store), SLOT, world.clock.now())
    assert view.holdings is not None
    return view.holdings


def traces(world: World) -> dict[str, dict[str, Any]]:
    page = get(client(world.folder), f"/chart?slot={SLOT}&asset={TICKER}&days=7")
    return {trace["name"]: trace for trace in figures(page)["candles"]["data"]}


@pytest.fixture(params=["restart", "poll"])
def worlds(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[World, World]:
    """Return a slot whose feed splits LINK 10:1 with a position held, and one without a split."""
    plain = World(tmp_path / "plain", bundle_of(), bars_of(), FIRST)
    plain.run()
    world = World(tmp_path / "split", bundle_of(), bars_of(), FIRST)
    changed = scaled(bars_of(), FACTOR)
    if request.param == "poll":
        world.make_feed = lambda _bundle: ChangingFeed(bars_of(), changed, STOP)
    else:
        traded(world, FIRST, STOP)
        world.make_feed = lambda _bundle: RecordedFeed(changed)
    world.run()
    assert plain.lines()[STOP - FIRST - 1].units[TICKER] > 0.0
    return world, plain


def test_candles_marks_and_round_trips_are_on_one_scale(worlds: tuple[World, World]) -> None:
    world, plain = worlds
    split, whole = (traces(one) for one in worlds)
    for name in NAMES:
        np.testing.assert_allclose(
            split["price"][name], np.array(whole["price"][name]) * FACTOR, rtol=1e-9
        )
    np.testing.assert_allclose(split["volume"]["y"], np.array(whole["volume"]["y"]) / FACTOR)
    for side in ("buys", "sells"):
        assert split[side]["x"] == whole[side]["x"]
        np.testing.assert_allclose(split[side]["y"], np.array(whole[side]["y"]) * FACTOR, rtol=1e-6)
    found, expected = profits_of(world), profits_of(plain)
    assert len(found.trips) == len(expected.trips) > 3
    for trip, other in zip(found.trips, expected.trips, strict=True):
        assert (trip.opened, trip.closed, trip.buys) == (other.opened, other.closed, other.buys)
        assert trip.profit == pytest.approx(other.profit, rel=1e-5, abs=1e-6)
        assert trip.entry == pytest.approx(other.entry * FACTOR, rel=1e-6)
    assert found.unexplained == pytest.approx(0.0, abs=1e-6)
    assert found.flows == 0.0


def test_positions_are_right_between_a_split_and_the_next_bar(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST)
    traded(world, FIRST, STOP)
    before = holdings_of(world)
    world.make_feed = lambda _bundle: RecordedFeed(scaled(bars_of(), FACTOR))
    world.session()
    after = holdings_of(world)
    assert (after.time, after.value, after.cash) == (before.time, before.value, before.cash)
    for one, other in zip(after.positions, before.positions, strict=True):
        factor = FACTOR if one.ticker == TICKER else 1.0
        assert one.units == pytest.approx(other.units / factor)
        assert one.value == pytest.approx(other.value)
    assert sum(one.value or 0.0 for one in after.positions) == pytest.approx(
        after.value - after.cash
    )
    assert profits_of(world).unexplained == pytest.approx(0.0, abs=1e-6)
