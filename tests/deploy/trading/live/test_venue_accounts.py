"""A venue's account is traded by one slot, which stays on it while it holds units."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from sweepd.deploy.trading.live.records import ACCOUNTS, TRADERS
from sweepd.deploy.trading.live.store import Replaced
from sweepd.envs.support.errors import InputError
from tests.deploy.alpaca_server import Exchange
from tests.deploy.trading.live.test_session import FIRST, bars_of, bundle_of
from tests.deploy.trading.live.test_session import exchange as exchange
from tests.deploy.trading.live.test_transfers import run
from tests.deploy.trading.live.world import SLOT, World

SAME = "the same alpaca account PA0000000001, and two slots cannot share an account"


@pytest.fixture
def first(tmp_path: Path, exchange: Exchange) -> World:
    return World(tmp_path, bundle_of(), bars_of(), FIRST, exchange)


@pytest.fixture
def second(first: World, exchange: Exchange) -> World:
    return World(first.folder, bundle_of(5), bars_of(), FIRST, exchange, slot="other-1h")


def fall_silent(world: World) -> None:
    """Set the last heartbeat of the slot's trader to long ago, as after a kill."""
    with world.registry.database.writing() as connection:
        silent = TRADERS.update(slot=world.slot).values(beat="2020-01-01T00:00:00.000Z")
        connection.execute(silent)


def sell_all(world: World, exchange: Exchange) -> None:
    """Halt the slot and sell everything between two bars."""
    session = world.session()
    world.store.halt(world.slot, "by the operator", sells=True)
    session.poll()
    assert max(exchange.units.values()) < Decimal("1e-9")  # less than the smallest step may stay


def test_two_slots_on_one_account_are_refused(
    first: World, second: World, exchange: Exchange
) -> None:
    session = run(first, FIRST, FIRST + 3)
    with pytest.raises(InputError, match=f"slot 'other-1h': slot '{SLOT}' trades {SAME}"):
        second.session()
    session._clock.stop.set()
    session.run()  # it ends, and still holds units
    with pytest.raises(
        InputError, match=f"slot '{SLOT}' holds units in {SAME}.*sweepd trader halt {SLOT}"
    ):
        second.session()
    session._clock.stop.clear()
    sell_all(first, exchange)
    with pytest.raises(InputError, match=f"slot '{SLOT}' trades {SAME}"):
        second.session()
    session = first.session()
    session._clock.stop.set()
    session.run()
    second.session()  # the halt has sold everything, though no bar has closed since
    with pytest.raises(InputError, match=f"slot 'other-1h' trades {SAME}"):
        first.session()


def test_a_silent_trader_keeps_its_account_while_it_holds_units(
    first: World, second: World, exchange: Exchange
) -> None:
    session = run(first, FIRST, FIRST + 3)
    fall_silent(first)
    with pytest.raises(InputError, match=f"slot '{SLOT}' holds units in {SAME}"):
        second.session()
    sell_all(first, exchange)
    session = first.session()
    fall_silent(first)
    second.session()
    with pytest.raises(
        Replaced, match="slot 'crypto-1h': another slot took over its alpaca account PA0000000001"
    ):
        session.poll()  # its process was only suspended


@pytest.mark.parametrize("status", ["intended", "filled", "unfilled"])
def test_buys_that_are_not_booked_count_as_units(first: World, second: World, status: str) -> None:
    """Orders of the last bar may have been filled, and the next bar has not booked them."""
    first.begin()
    [account] = [account for account in first.store.accounts(SLOT) if account.name == "account"]
    assert not any(account.state["trader"]["accounts"]["held"])
    assert [line.order.side for line in first.store.orders(SLOT) if line.account == "account"] == [
        "buy"
    ]
    [fill] = account.state["settled"]
    state = account.state | {"open": [fill["order"]], "settled": []}
    if status != "intended":
        state |= {"open": [], "settled": [fill | {"status": status}]}
    with first.registry.database.writing() as connection:
        connection.execute(ACCOUNTS.update(slot=SLOT, name="account").values(state=state))
    fall_silent(first)
    if status == "unfilled":
        second.session()
    else:
        with pytest.raises(InputError, match="holds units"):
            second.session()


def test_another_account_of_the_venue_is_refused_while_units_are_held(
    first: World, exchange: Exchange
) -> None:
    run(first, FIRST, FIRST + 3)
    told = exchange._account

    def other() -> dict[str, object]:
        return told() | {"account_number": "PA0000000002"}

    exchange._account = other  # type: ignore[method-assign]
    with pytest.raises(InputError) as refused:
        first.session()
    assert str(refused.value) == (
        f"slot '{SLOT}' holds units in the alpaca account PA0000000001, but the keys are those of "
        "the account PA0000000002; use the keys of PA0000000001, or trade PA0000000002 in another "
        "slot"
    )
    exchange._account = told  # type: ignore[method-assign]
    sell_all(first, exchange)
    exchange._account = other  # type: ignore[method-assign]
    first.session()
