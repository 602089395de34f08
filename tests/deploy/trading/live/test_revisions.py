"""The record keeps what was seen: later differences are events, and units are followed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from sweepd.deploy.trading.certificates.parity import parity
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.feeds import AGAIN_BARS, RecordedFeed
from sweepd.deploy.trading.live.records import Adjustment
from sweepd.deploy.trading.live.revisions import adjusted, review, undone
from sweepd.envs.crypto.data.bars import Bars
from tests.deploy.trading.live.test_session import FIRST, LAST, bars_of, bundle_of
from tests.deploy.trading.live.world import SLOT, Killer, World
from tests.extra import with_extra

STOP = FIRST + 8  # the first bar after the restart


class ChangingFeed(RecordedFeed):
    """A feed that has other bars from bar `at` on, and says so at that poll."""

    def __init__(self, bars: Bars, later: Bars, at: int) -> None:
        super().__init__(bars)
        self._later, self._at = later, at

    def poll(self, now: float) -> list[ClosedBar]:
        if self._closed(now) <= self._at:
            return super().poll(now)
        self._bars, first = self._later, self._next
        found = super().poll(now)
        self.again = {
            ticker: self._rows(asset, first - AGAIN_BARS, first)
            for asset, ticker in enumerate(self.tickers)
        }
        return found


def scaled(bars: Bars, factor: float, *, rows: slice = slice(None), asset: int = 2) -> Bars:
    """Return the bars with a ticker's prices times a factor, as after a split."""
    found = {name: getattr(bars, name).copy() for name in ("open", "high", "low", "close")}
    volume = bars.volume.copy()
    for values in found.values():
        values[rows, asset] *= factor
    volume[rows, asset] /= factor
    return dataclasses.replace(bars, **found, volume=volume)


def traded(world: World, first: int, end: int) -> None:
    session = world.session()
    for bar in range(first, end):
        world.until_close_of(bar)
        session.poll()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Read-only: all tests share it."""
    world = World(tmp_path_factory.mktemp("undisturbed"), bundle_of(), bars_of(), FIRST)
    world.run()
    return world


@pytest.mark.parametrize("what", ["late", "revised", "volume"])
def test_a_bar_that_changes_before_a_restart_changes_no_decision(tmp_path: Path, what: str) -> None:
    bars, place = bars_of(), STOP - 4
    hole = bars.hole.copy()
    hole[place, 0] = what == "late"
    values = {name: getattr(bars, name).copy() for name in ("open", "high", "low", "close")}
    for column in values.values():
        if what == "late":  # what the trader sees is a hole; the bar arrives afterwards
            column[place, 0] = bars.close[place - 1, 0]
    seen = dataclasses.replace(bars, **values, hole=hole)
    if what == "late":
        seen.volume[place, 0] = 0.0
        changed = bars_of()
    else:
        changed = bars_of()
        getattr(changed, "volume" if what == "volume" else "close")[place, 0] *= 1.02
    alone = World(tmp_path / "alone", bundle_of(), seen, FIRST)
    alone.run()
    world = World(tmp_path / "restarted", bundle_of(), seen, FIRST)
    traded(world, FIRST, STOP)
    world.make_feed = lambda _bundle: RecordedFeed(changed)
    world.run()
    assert world.lines() == alone.lines()
    assert max(day.action for day in parity(world.registry, SLOT)) == 0.0
    [text] = [text for kind, text in world.told if kind == "revised"]
    assert "1 bar changed after it was seen" in text
    traded(world, LAST + 1, LAST + 1)  # another restart: reported once
    assert [kind for kind, _ in world.told].count("revised") == 1


@pytest.mark.parametrize("where", ["restart", "poll"])
@pytest.mark.parametrize("factor", with_extra([0.1, 0.995, 1000.0], [1000.0]))
def test_units_follow_a_split_or_a_dividend(
    tmp_path: Path, undisturbed: World, where: str, factor: float
) -> None:
    world = World(tmp_path / "split", bundle_of(), bars_of(), FIRST)
    changed = scaled(bars_of(), factor)
    if where == "poll":
        world.make_feed = lambda _bundle: ChangingFeed(bars_of(), changed, STOP)
        world.run()
    else:
        traded(world, FIRST, STOP)
        world.make_feed = lambda _bundle: RecordedFeed(changed)
        world.run()
    assert [kind for kind, _ in world.told].count("adjusted") == 1
    assert not {"revised", "transfer", "halted"} & {kind for kind, _ in world.told}
    held = undisturbed.lines()[STOP - FIRST - 1].units["LINK/USDT"]
    assert held > 0.0, "a position is held through the split"
    for line, other in zip(world.lines(), undisturbed.lines(), strict=True):
        assert line.value == pytest.approx(other.value, rel=1e-7)
    assert world.lines()[-1].units["LINK/USDT"] == pytest.approx(
        undisturbed.lines()[-1].units["LINK/USDT"] / factor, rel=1e-5
    )
    for name in ("equal weight", "hold LINK/USDT"):
        assert world.lines(name)[-1].value == pytest.approx(
            undisturbed.lines(name)[-1].value, rel=1e-9
        )
    days = parity(world.registry, SLOT)
    assert max(day.action for day in days) == 0.0
    assert max(day.bar for day in days) < 1e-9


def test_a_kill_during_a_split_changes_no_record(tmp_path: Path) -> None:
    start = World(tmp_path / "start", bundle_of(), bars_of(STOP + 2), FIRST)
    traded(start, FIRST, STOP)
    start.make_feed = lambda _bundle: RecordedFeed(scaled(bars_of(STOP + 2), 0.1))
    undisturbed, count = start.copy(tmp_path / "undisturbed"), Killer()
    undisturbed.run(count)
    for at in range(1, count.steps + 1):
        world = start.killed_at(at, tmp_path)
        assert world.lines() == undisturbed.lines(), at
        assert len(world.store.adjustments(SLOT)) == 1, at


def test_another_large_factor_halts_with_an_alert(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST)
    traded(world, FIRST, STOP)
    # A split that the feed's newest bars do not have: which units are held is unclear.
    changed = scaled(bars_of(), 0.1, rows=slice(0, STOP - 2))
    world.make_feed = lambda _bundle: RecordedFeed(changed)
    world.run()
    trader = world.store.trader(SLOT)
    assert trader is not None
    assert "0.1 times the" in str(trader.halt)
    assert not trader.halt_sells
    assert [kind for kind, _ in world.told if kind in ("adjusted", "alert")] == ["alert"]
    assert {line.order.decided for line in world.store.orders(SLOT)} <= set(
        bars_of().time[FIRST:STOP].tolist()
    )
    world.store.resume(SLOT, "checked")
    world.session()
    trader = world.store.trader(SLOT)
    assert trader is not None
    assert trader.halt is None, "what is known does not halt again"


def test_a_restart_needs_no_history_of_the_feed(tmp_path: Path, undisturbed: World) -> None:
    world = World(tmp_path / "short", bundle_of(), bars_of(), FIRST)
    traded(world, FIRST, STOP)
    first = STOP - 5
    world.make_feed = lambda _bundle: RecordedFeed(bars_of().slice(first, LAST + 1))
    world.run()
    assert world.lines() == undisturbed.lines()


def test_rounding_is_no_difference_and_adjustments_can_be_undone() -> None:
    bars = bars_of()
    rows = {
        ticker: RecordedFeed(scaled(bars, 1.0 + 1e-12))._rows(asset, 600, 640)
        for asset, ticker in enumerate(bars.tickers)
    }
    found = review(bars.slice(0, 640), rows, {})
    assert (found.events, found.adjustments, found.revised) == ((), (), {})
    rows = {"LINK/USDT": RecordedFeed(scaled(bars, 0.37))._rows(2, 600, 640).round(2)}
    found = review(bars.slice(0, 640), rows, {})
    [one] = found.adjustments
    assert (one.price, one.volume) == pytest.approx((0.37, 1 / 0.37), rel=1e-3)
    back = adjusted(adjusted(bars, [one]), undone([one]))
    np.testing.assert_allclose(back.close, bars.close, rtol=1e-12)


def test_adjustments_followed_singly_or_together_lead_to_the_same_bits() -> None:
    bars = bars_of()
    several = [Adjustment("LINK/USDT", int(bars.time[place]), 0.1 * place, 3.0 / place)
               for place in (600, 610, 620)]  # fmt: skip
    singly = bars
    for one in several:
        singly = adjusted(singly, [one])
    together = adjusted(bars, several)
    for name in ("open", "high", "low", "close", "volume"):
        np.testing.assert_array_equal(getattr(singly, name), getattr(together, name))
