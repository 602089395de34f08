"""Which slot may trade a venue's account.

One slot trades an account at a time, because two slots would take each other's orders for
transfers. A slot that holds units stays on its account, because it would lose track of them.
"""

from __future__ import annotations

import datetime as dt

from sqlalchemy import Connection

from sweepd.deploy.trading.live.records import ACCOUNTS, SLOT_ACCOUNT, STOPPED, TRADERS, Trader
from sweepd.envs.support.errors import InputError

# A trader without a heartbeat for that long does not count as running; it sends one every 5 s.
SILENT_SECONDS = 120.0


def take_account(connection: Connection, slot: str, broker: str, account: str) -> None:
    """Check that `slot` may trade a venue's account, and stop other slots' processes writing.

    Raises:
        InputError: another slot trades the account or holds units in it, or this slot holds units
            in another account of the venue.
    """
    own = TRADERS.get(connection, slot=slot)
    if (
        own is not None
        and own.venue_account not in (None, account)
        and holds_units(connection, own)
    ):
        raise InputError(
            f"slot {slot!r} holds units in the {own.broker} account {own.venue_account}, but the "
            f"keys are those of the account {account}; use the keys of {own.venue_account}, "
            f"or trade {account} in another slot"
        )
    sharing = TRADERS.select(TRADERS.c.slot != slot, TRADERS.c.venue_account == account)
    for other in TRADERS.read(connection, sharing):
        if named(other.broker) != named(broker):
            continue
        # A halted but running trader may buy at any time after `resume`.
        runs = is_running(other)
        if runs or holds_units(connection, other):
            does = "trades" if runs else "holds units in"
            raise InputError(
                f"slot {slot!r}: slot {other.slot!r} {does} the same {broker} account {account}, "
                "and two slots cannot share an account; use the keys of another paper account, or "
                f"sell everything there (sweepd trader halt {other.slot}) and stop its trader"
            )
        # Silent for too long; if its process still runs, its next write fails.
        connection.execute(TRADERS.update(slot=other.slot).values(token=""))


def named(broker: str) -> str:
    """Return the name of a broker without its arguments."""
    return broker.partition(" ")[0]


def is_running(trader: Trader) -> bool:
    """Return whether the trader's process has not ended and has sent a recent heartbeat."""
    age = (dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(trader.beat)).total_seconds()
    return not trader.status.startswith(STOPPED) and age < SILENT_SECONDS


def holds_units(connection: Connection, trader: Trader) -> bool:
    """Return whether the slot's own account holds units, or may: buys may not be booked yet."""
    account = ACCOUNTS.get(connection, slot=trader.slot, name=SLOT_ACCOUNT)
    if account is None:
        return False
    if any(account.state["trader"]["accounts"]["held"]):
        return True
    # Results that the next bar will book, and orders that may have been filled since.
    filled = [fill["order"] for fill in account.state["settled"] if fill["status"] == "filled"]
    return any(order["side"] == "buy" for order in [*account.state["open"], *filled])
