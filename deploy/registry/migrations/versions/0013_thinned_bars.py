"""Lines of retired accounts may be deleted, so that they can be thinned to lines per day.

Those of a slot's own account, and of accounts that trade, stay append-only.
"""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"

_TABLE = "account_bars"
_RETIRED = (
    "EXISTS (SELECT 1 FROM accounts WHERE accounts.slot = OLD.slot AND accounts.name = OLD.account "
    "AND accounts.kind <> 'account' AND accounts.retired IS NOT NULL)"
)


def upgrade() -> None:
    """Give the trigger that refuses to delete lines a condition."""
    refusal = f"rows of {_TABLE} are append-only"
    name = f"{_TABLE}_no_delete"
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"DROP TRIGGER {name}")
        op.execute(
            f"CREATE TRIGGER {name} BEFORE DELETE ON {_TABLE} WHEN NOT {_RETIRED} "
            f"BEGIN SELECT RAISE(ABORT, '{refusal}'); END"
        )
    else:
        op.execute(
            f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger AS $$ BEGIN "
            f"IF {_RETIRED} THEN RETURN OLD; END IF; "
            f"RAISE EXCEPTION '{refusal}'; END $$ LANGUAGE plpgsql"
        )
