"""Events as a trader saw them, and accounts that know their own orders.

An account's state named the orders that were booked already, and the others were looked up among
the orders of the last bar. Now it has orders without a result, results that the next bar will book,
and results that were booked.
"""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

from sweepd.deploy.registry.migrations.shared import columns, make_append_only

revision = "0010"
down_revision = "0009"
ORDER = ["client_id", "ticker", "side", "decided", "units", "notional", "whole", "restart_clock"]
RESULT = {"filled_units": "units", "filled_notional": "notional", "fee": "fee", "price": "price"}


def upgrade() -> None:
    """Create the table, and rewrite the states of accounts."""
    op.create_table(
        "trader_inputs",
        *columns(sa.Text, "slot"),
        *columns(sa.Text, "at"),
        *columns(sa.Integer, "number"),
        *columns(sa.BigInteger, "bar"),
        *columns(sa.Text, "kind"),
        *columns(sa.JSON, "content"),
        sa.Column("snapshot", sa.JSON),
        sa.PrimaryKeyConstraint("slot", "number", name="pk_trader_inputs"),
    )
    make_append_only("trader_inputs")
    connection = op.get_bind()
    rows = connection.execute(
        sa.text(
            "SELECT accounts.slot, name, last_bar, accounts.state FROM accounts "
            "JOIN traders ON traders.slot = accounts.slot WHERE kind <> 'benchmark'"
        )
    ).all()
    for slot, name, last, stored in rows:
        state = json.loads(stored) if isinstance(stored, str) else stored
        connection.execute(
            sa.text("UPDATE accounts SET state = :state WHERE slot = :slot AND name = :name"),
            {
                "state": json.dumps(_with_orders(connection, slot, name, last, state)),
                "slot": slot,
                "name": name,
            },
        )


def _with_orders(
    connection: sa.Connection, slot: str, name: str, last: int, state: dict[str, Any]
) -> dict[str, Any]:
    """Return an account's state with the orders of its last bar, in the present units."""
    key = {"slot": slot, "account": name, "last": last}
    factors: dict[str, float] = {}
    for ticker, price in connection.execute(
        sa.text("SELECT ticker, price FROM trader_adjustments WHERE slot = :slot AND time = :last"),
        key,
    ):
        factors[ticker] = factors.get(ticker, 1.0) * price
    open_, settled, counted = (list[dict[str, Any]]() for _ in range(3))
    for row in connection.execute(
        sa.text(
            "SELECT * FROM orders WHERE slot = :slot AND account = :account AND decided = :last "
            "ORDER BY client_id"
        ),
        key,
    ).mappings():
        factor = factors.get(row["ticker"], 1.0)
        order = {field: row[field] for field in ORDER} | {"units": row["units"] / factor}
        order |= {field: bool(row[field]) for field in ("whole", "restart_clock")}
        if row["status"] == "intended":
            open_.append(order)
            continue
        fill = {"order": order, "status": row["status"], "at": row["at"], "reason": row["reason"]}
        fill |= {field: row[column] for column, field in RESULT.items()}
        fill |= {"units": fill["units"] / factor, "price": fill["price"] * factor}
        booked = row["client_id"] in state.get("booked", [])
        (counted if booked else settled).append(fill)
    return {
        "trader": state.get("trader"),
        "holdings": state.get("broker") or {"cash": 0.0, "units": {}},
        "open": open_,
        "settled": settled,
        "counted": counted,
    }
