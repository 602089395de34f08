"""Rows of the arena: reigns of a slot's champions, and the challengers' entries and days in them.

A reign begins with a new champion. In it, challengers enter one after another, each with a number
that decides how much it must show (`sweepd.deploy.promotion.betting`). Numbers and seats are
given in one transaction, so they survive a kill and are never given twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy import Connection, ForeignKeyConstraint, PrimaryKeyConstraint, func, select

from sweepd.deploy.registry.database import RegistryDatabase, utc_now
from sweepd.deploy.registry.records import BUNDLES, CHALLENGERS, Challenger, add_event
from sweepd.deploy.registry.tables import Long, RecordTable

EntryKind = Literal["challenger", "former", "refit"]
REFIT: Final = "refit"


class ReignEnded(Exception):
    """The slot has a newer reign: judge that one."""


@dataclass(frozen=True)
class Reign:
    """The time from a change of champion to the next one. number: counted from 1 in the slot.

    A refit of the champion continues its reign, so `champion` is the first bundle of the reign.
    """

    slot: str
    number: int
    champion: str
    at: str
    why: str


@dataclass(frozen=True)
class ArenaEntry:
    """A bundle that takes part in a reign.

    number: j = 1, 2, ... in the order of entry; 0 for a refit.
    kind: `challenger`, the `former` champion, or a `refit` of the champion.
    admitted: UTC text. since: open of the newest bar when it entered; only later ones count.
    worst, best: the lowest and highest return of a bar relative to the champion before that, as
        fractions, see `sweepd.deploy.promotion.betting`; worst is positive for a loss.
    left: UTC text, None while it has its seat; reason: why it left.
    """

    slot: str
    reign: int
    number: int
    bundle: str
    kind: EntryKind
    admitted: str
    since: Long
    worst: float
    best: float
    left: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class ArenaDay:
    """A seated bundle's record at the end of a UTC day.

    day: its start, seconds. bars: that count, since its entry.
    log_e: log of E for "better than the champion"; -inf once it has lost everything.
    log_loss: log of E for "worse"; of a refit: for "worse by more than the margin".
    relative: log growth over that of the champion.
    ratio: annual mean of the relative return over its standard deviation; 0 without variation.
    """

    slot: str
    reign: int
    bundle: str
    day: Long
    bars: int
    log_e: float
    log_loss: float
    relative: float
    ratio: float


REIGNS: Final = RecordTable(
    "reigns",
    Reign,
    PrimaryKeyConstraint("slot", "number"),
    ForeignKeyConstraint(["champion"], [BUNDLES.c.hash]),
)
ARENA_ENTRIES: Final = RecordTable(
    "arena_entries",
    ArenaEntry,
    PrimaryKeyConstraint("slot", "reign", "bundle"),
    ForeignKeyConstraint(["bundle"], [BUNDLES.c.hash]),
)
ARENA_DAYS: Final = RecordTable(
    "arena_days", ArenaDay, PrimaryKeyConstraint("slot", "reign", "bundle", "day")
)


class ArenaRows:
    """Reads and writes the rows of a registry's arenas."""

    def __init__(self, database: RegistryDatabase) -> None:
        self._database = database

    def reign(self, slot: str) -> Reign | None:
        """Return the present reign of a slot, None without a champion."""
        with self._database.reading() as connection:
            return _reign(connection, slot)

    def seats(self, slot: str) -> list[ArenaEntry]:
        """Return the entries that have a seat, in the order of entry.

        Right after a change of champion they are those of the reign before, until `enter`.
        """
        row = ARENA_ENTRIES.c
        query = ARENA_ENTRIES.select(row.slot == slot, row.left.is_(None))
        with self._database.reading() as connection:
            query = query.order_by(row.admitted, row.number, row.bundle)
            return ARENA_ENTRIES.read(connection, query)

    def entries(self, slot: str, reign: int) -> list[ArenaEntry]:
        """Return all entries of a reign, also those that left, in the order of entry."""
        row = ARENA_ENTRIES.c
        query = ARENA_ENTRIES.select(row.slot == slot, row.reign == reign)
        with self._database.reading() as connection:
            return ARENA_ENTRIES.read(connection, query.order_by(row.number, row.admitted))

    def days(self, slot: str, reign: int) -> list[ArenaDay]:
        """Return the days of a reign's entries, oldest first."""
        row = ARENA_DAYS.c
        query = ARENA_DAYS.select(row.slot == slot, row.reign == reign)
        with self._database.reading() as connection:
            return ARENA_DAYS.read(connection, query.order_by(row.day, row.bundle))

    def challengers(self, slot: str) -> list[Challenger]:
        """Return a slot's challengers with and without a seat, in the order in which they came."""
        row = CHALLENGERS.c
        query = CHALLENGERS.select(row.slot == slot).order_by(row.at, row.bundle)
        with self._database.reading() as connection:
            return CHALLENGERS.read(connection, query)

    def enter(self, asked: Sequence[ArenaEntry], reason: str) -> None:
        """Give seats, in one transaction. Bundles that entered the reign before are left out.

        Args:
            asked: all of one slot and reign, in order; their numbers and moments are set here.
            reason: why, for the slot's history, where a bundle was no challenger before.

        Raises:
            ReignEnded: the slot has a newer reign.
            ValueError: a bundle's first round would be a bar that it, or the champion, has seen.
        """
        if not asked:
            return
        slot, number = asked[0].slot, asked[0].reign
        with self._database.writing() as connection:
            present, now = _reign(connection, slot), utc_now()
            if present is None or present.number != number:
                raise ReignEnded(f"slot {slot!r} has a newer reign")
            for entry in asked:
                key = {"slot": slot, "bundle": entry.bundle}
                if ARENA_ENTRIES.get(connection, reign=number, **key) is not None:
                    continue
                for hash_ in (entry.bundle, present.champion):
                    _check_unseen(connection, hash_, entry.since)
                newest = select(func.max(ARENA_ENTRIES.c.number)).where(
                    ARENA_ENTRIES.c.slot == slot, ARENA_ENTRIES.c.reign == number
                )
                own = 0 if entry.kind == REFIT else (connection.scalar(newest) or 0) + 1
                leave(connection, slot, entry.bundle, f"reign {number} began")
                given = dataclasses.replace(entry, number=own, admitted=now)
                ARENA_ENTRIES.add(connection, [given])
                if CHALLENGERS.get(connection, **key) is None:
                    CHALLENGERS.add(connection, [Challenger(slot, entry.bundle, now)])
                    add_event(connection, slot, "challenger", reason, bundle=entry.bundle)

    def add_days(self, days: Sequence[ArenaDay]) -> None:
        """Append days; those that are stored already are left out."""
        with self._database.writing() as connection:
            for one in days:
                key = {name: getattr(one, name) for name in ("slot", "reign", "bundle", "day")}
                if ARENA_DAYS.get(connection, **key) is None:
                    ARENA_DAYS.add(connection, [one])


def begin_reign(connection: Connection, slot: str, champion: str, why: str) -> None:
    """Begin a reign, in a transaction of the caller."""
    before = _reign(connection, slot)
    number = 1 if before is None else before.number + 1
    REIGNS.add(connection, [Reign(slot, number, champion, utc_now(), why)])


def leave(connection: Connection, slot: str, bundle: str, reason: str) -> None:
    """Take a bundle's seat, if it has one, in a transaction of the caller."""
    taken = ARENA_ENTRIES.update(slot=slot, bundle=bundle).where(ARENA_ENTRIES.c.left.is_(None))
    connection.execute(taken.values(left=utc_now(), reason=reason))


def _reign(connection: Connection, slot: str) -> Reign | None:
    query = REIGNS.select(REIGNS.c.slot == slot).order_by(REIGNS.c.number.desc()).limit(1)
    return next(iter(REIGNS.read(connection, query)), None)


def _check_unseen(connection: Connection, hash_: str, since: int) -> None:
    bundle = BUNDLES.get(connection, hash=hash_)
    if bundle is not None and bundle.last_seen is not None and bundle.last_seen > since:
        raise ValueError(
            f"bundle {hash_[:16]} has seen bars until {bundle.last_seen}, so it cannot be judged by "
            f"bars after {since}"
        )
