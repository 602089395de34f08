"""A traded bundle whose files are gone: the slot's champion takes over its account."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.trading.live.records import SHADOW, SLOT_ACCOUNT
from sweepd.envs.crypto.data.bars import write_bars
from sweepd.envs.support.errors import InputError, TryAgainLater
from tests.deploy.alpaca_server import Exchange
from tests.deploy.builders import ensemble_of, small_bundle
from tests.deploy.trading.live.test_session import (
    FIRST,
    PARAMS,
    TICKERS,
    bars_of,
    bundle_of,
    exchange,  # noqa: F401
)
from tests.deploy.trading.live.test_trade_command import run as run_command
from tests.deploy.trading.live.test_transfers import run
from tests.deploy.trading.live.world import SLOT, World

SWAP = FIRST + 4  # the account has positions, and orders to be filled


def heir_of() -> Bundle:
    """Return a bundle with the same tickers in another order, and other rules."""
    params = dataclasses.replace(PARAMS, trailing_stop=0.0, lookback=1)
    return small_bundle(5, tickers=TICKERS[::-1], gain=1.5, params=params)


def lose(world: World, bundle: Bundle) -> None:
    shutil.rmtree(world.registry.path(bundle.hash))


EXTRA = [pytest.param(*case, marks=pytest.mark.extra) for case in ((1, 6), (2, 4))]


@pytest.mark.parametrize(("trials", "bars"), [(1, 4), (2, 6), *EXTRA])
def test_the_champion_takes_over_as_at_an_ordinary_swap(
    tmp_path: Path, trials: int, bars: int
) -> None:
    """The orders of the last bar are booked, and each number is that of an ordinary swap."""
    swap = FIRST + bars
    bundle = bundle_of() if trials == 1 else ensemble_of([bundle_of(0), bundle_of(1)], (0.6, 0.4))
    lost = World(tmp_path / "lost", bundle, bars_of(holes=0.05), FIRST)
    run(lost, FIRST, swap)
    lost.registry.promote(SLOT, heir_of(), expected=bundle.hash, reason="better")
    ordinary = lost.copy(tmp_path / "ordinary")
    assert lost.store.orders(SLOT, decided=int(lost.bars.time[swap - 1]))
    lose(lost, bundle)
    for world in (lost, ordinary):
        run(world, swap, swap + 3)
        run(world, swap + 3, swap + 9)  # another process
    lines, expected = lost.lines(), ordinary.lines()
    assert [line.bundle for line in lines] == [line.bundle for line in expected]
    assert lines[bars].bundle == heir_of().hash
    assert sum(lines[bars - 1].units.values()) > 0
    for line, other in zip(lines, expected, strict=True):
        assert line.value == pytest.approx(other.value, rel=1e-12)
        assert line.units == pytest.approx(other.units, rel=1e-9)
        assert (line.trades, line.unfilled) == (other.trades, other.unfilled)
        assert line.action == pytest.approx(other.action, abs=1e-6)
    told = [(kind, text) for kind, text in lost.told if kind in ("alert", "swapped")]
    assert told == [
        (
            "alert",
            f"bundle {lost.registry.path(bundle.hash)} does not exist (expected a folder with "
            "bundle.json and members.safetensors); the champion takes over at the start, not at a "
            "bar",
        ),
        (
            "swapped",
            f"{heir_of().name} (trial 5 of small) takes over from {bundle.name}, with the present "
            "positions",
        ),
    ]


def test_account_and_shadow_are_taken_over_at_a_broker(
    tmp_path: Path,
    exchange: Exchange,  # noqa: F811
) -> None:
    bundle, heir = bundle_of(), heir_of()
    world = World(tmp_path, bundle, bars_of(), FIRST, exchange)
    run(world, FIRST, SWAP)
    world.registry.promote(SLOT, heir, expected=bundle.hash, reason="better")
    manifest = world.registry.path(bundle.hash) / "bundle.json"
    manifest.chmod(0o644)
    manifest.write_text("{")
    orders = len(exchange.orders)
    run(world, SWAP, SWAP + 6)
    for name in (SLOT_ACCOUNT, SHADOW):
        assert [line.bundle for line in world.lines(name)] == [bundle.hash] * 4 + [heir.hash] * 6
    assert len(exchange.orders) > orders
    sent = [order["client_order_id"] for order in exchange.orders.values()]
    booked = world.store.orders(SLOT, account=SLOT_ACCOUNT)
    assert sent == [line.order.client_id for line in booked if line.fill]
    assert world.lines()[-1].value == pytest.approx(world.lines(SHADOW)[-1].value, rel=1e-4)


@pytest.mark.parametrize(
    ("tickers", "why"),
    [
        (TICKERS, "the champion cannot be loaded, either: bundle"),
        (("BTC/USDT", "XRP/USDT"), "cannot take over: it trades BTC/USDT, XRP/USDT, and the slot"),
    ],
)
def test_without_a_champion_that_can_take_over_the_trader_asks_to_be_restarted(
    tmp_path: Path, tickers: tuple[str, ...], why: str
) -> None:
    bundle, heir = bundle_of(), small_bundle(5, tickers=tickers)
    world = World(tmp_path / "deployments", bundle, bars_of(), FIRST)
    run(world, FIRST, SWAP)
    world.registry.promote(SLOT, heir, expected=bundle.hash, reason="better")
    lose(world, bundle)
    if tickers == TICKERS:
        lose(world, heir)
    with pytest.raises(InputError, match=f"{bundle.name} does not exist.*{why}"):
        world.session()
    write_bars(bars_of(), tmp_path / "bars")
    words = ("trade", "--feed", "recorded", "--data-dir", str(tmp_path / "bars"))
    with pytest.raises(TryAgainLater, match="has traded before, so this may pass") as later:
        run_command(tmp_path, *words)
    assert later.value.exit_code == 75
