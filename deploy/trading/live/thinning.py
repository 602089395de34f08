"""Lines of accounts that retired long ago, thinned from one per bar to one per UTC day.

A slot of 5-minute bars writes about 330 MB of lines a year, most of them of challengers. After 90
days nobody needs each of their bars. The lines of a day become one that has the values of the last
and the sums of all, so that days, fees, trades and growth stay what they were; statistics per bar
are then no longer shown. A slot's own account is never thinned.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, func, select

from sweepd.deploy.registry.database import RegistryDatabase
from sweepd.deploy.trading.live.records import ACCOUNT_BARS, ACCOUNTS, SLOT_ACCOUNT, AccountBar
from sweepd.envs.crypto.data.timeframe import DAY

KEPT_DAYS = 90  # after its last bar, a retired account keeps all lines
_SUMS = ("flow", "fees", "notional", "trades", "unfilled", "dropped", "crossed")


def thin_retired(database: RegistryDatabase, now: float) -> int:
    """Thin the lines of accounts that retired more than `KEPT_DAYS` ago, in all slots.

    Each account is thinned in one transaction; what is thinned stays as it is.

    Args:
        database: the registry's.
        now: seconds since the epoch.

    Returns:
        How many lines fewer there are.
    """
    row, before = ACCOUNTS.c, int(now) - KEPT_DAYS * DAY
    with database.reading() as connection:
        query = select(row.slot, row.name).where(row.retired.is_not(None), row.kind != SLOT_ACCOUNT)
        retired = [tuple(one) for one in connection.execute(query)]
        due = [key for key in retired if _last(connection, *key) < before]
    fewer = 0
    for slot, name in due:
        with database.writing() as connection:
            found = ACCOUNTS.get(connection, slot=slot, name=name)
            # It may trade again since it was read.
            if found is not None and found.retired is not None:
                fewer += _thin(connection, slot, name)
    return fewer


def _last(connection: Connection, slot: str, name: str) -> int:
    row = ACCOUNT_BARS.c
    query = select(func.max(row.time)).where(row.slot == slot, row.account == name)
    return int(connection.scalar(query) or 0)


def _thin(connection: Connection, slot: str, name: str) -> int:
    row, fewer = ACCOUNT_BARS.c, 0
    own = (row.slot == slot, row.account == name)
    query = ACCOUNT_BARS.select(*own).order_by(row.time)
    for group in list(_groups(ACCOUNT_BARS.read(connection, query))):
        if len(group) == 1:
            continue
        span = (row.time >= group[0].time, row.time <= group[-1].time)
        connection.execute(ACCOUNT_BARS.table.delete().where(*own, *span))
        ACCOUNT_BARS.add(connection, [day_line(group)], slot=slot)
        fewer += len(group) - 1
    return fewer


def _groups(lines: Sequence[AccountBar]) -> Iterator[list[AccountBar]]:
    """Yield the lines that become one, in their order.

    The first line, from which the account's growth counts, and lines with a transfer stay alone, so
    that time-weighted growth is the product over the groups. So do those of another bundle.
    """
    number = 0

    def key(place: int) -> tuple[int, int, str | None]:
        nonlocal number
        line = lines[place]
        alone = place == 0 or line.flow != 0.0
        after = place > 0 and (place == 1 or lines[place - 1].flow != 0.0)
        number += alone or after
        return number, line.time // DAY, line.bundle

    for _, places in itertools.groupby(range(len(lines)), key):
        yield [lines[place] for place in places]


def day_line(lines: Sequence[AccountBar]) -> AccountBar:
    """Return one line for several: the values of the last, the sums of all."""
    sums = {name: sum(getattr(line, name) for line in lines) for name in _SUMS}
    return dataclasses.replace(lines[-1], **sums)
