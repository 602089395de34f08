"""Records of the registry and their tables: bundles, slots, versions, events, evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    Column,
    Connection,
    ForeignKeyConstraint,
    Index,
    Integer,
    PrimaryKeyConstraint,
    UniqueConstraint,
)

from sweepd.deploy.registry.database import utc_now
from sweepd.deploy.registry.tables import Long, RecordTable


class ChampionMoved(Exception):
    """The slot's champion changed after it was compared with the candidate: compare again."""


@dataclass(frozen=True)
class RegisteredBundle:
    """A bundle that is or was a champion or a challenger.

    kind: `market`, `game` or `program`. timeframe, tickers, last_seen: of markets, else None.
    data_dir: folder of the bars that it was scored on, on the machine that promoted it.
    """

    hash: str
    members_sha256: str
    environment: str
    study: str
    study_uid: str
    trial: int
    data_dir: str
    at: str
    kind: str
    timeframe: str | None
    tickers: list[str] | None
    last_seen: Long | None


@dataclass(frozen=True)
class Champions:
    """The champion of a deployment slot and the one before it.

    Attributes:
        name: the slot's name.
        champion: hash of the deployed bundle, None if there is none.
        previous: hash of the champion before it, None if there is none.
        revision: how many times the champion has changed.
    """

    name: str
    champion: str | None
    previous: str | None
    revision: int


@dataclass(frozen=True)
class Slot(Champions):
    """The present state of a deployment slot: `Champions`, and the challengers.

    Attributes:
        challengers: hashes of the challengers, oldest first.
    """

    challengers: tuple[str, ...] = ()

    def role_of(self, bundle: str, removed: Sequence[str] = ()) -> str:
        """Return the bundle's present role, in a word; "" if it has none.

        Args:
            bundle: its hash.
            removed: hashes of bundles that were removed from the slot.
        """
        if bundle == self.champion:
            return "champion"
        if bundle == self.previous:
            return "previous"
        if bundle in self.challengers:
            return "challenger"
        return "removed" if bundle in removed else ""


@dataclass(frozen=True)
class Challenger:
    """A bundle that asks for the slot. refit: it has the champion's own hyperparameters."""

    slot: str
    bundle: str
    at: str
    refit: bool = False


@dataclass(frozen=True)
class Version:
    """A bundle of a slot and its number there, counted from 1."""

    slot: str
    number: int
    bundle: str
    at: str


@dataclass(frozen=True)
class Event:
    """An entry of a slot's history. report: of the gate, if there was one.

    `kind` is promoted, rolled-back, challenger, withdrawn, refused or removed; a live trader adds
    swap-refused and aged (its record is worse than scored).
    """

    slot: str
    kind: str
    at: str
    bundle: str | None
    previous: str | None
    reason: str
    report: dict[str, Any] | None


@dataclass(frozen=True)
class EvaluationRecord:
    """An evaluation of a candidate on hold-out bars, on a game's panel, or on fresh seeds.

    kind: `market`, `game` or `program`. subject: a market's tickers, sorted and joined by spaces,
    the key of a game, or a command. timeframe, first, last: of markets, the hold-out's bars from
    open to open. games: size of the panel, or number of fresh seeds. number, at: set when it is
    counted; the number is that among the evaluations on the same hold-out or panel, or of a command.
    """

    kind: str
    subject: str
    members_sha256: str
    study: str
    study_uid: str
    trial: int
    timeframe: str | None = None
    first: Long | None = None
    last: Long | None = None
    games: int | None = None
    number: int = 0
    at: str = ""


@dataclass(frozen=True)
class CountedEvaluation:
    """A counted evaluation on hold-out bars or on a game's panel.

    Attributes:
        number: 1 for the first evaluation on this hold-out or panel, 2 for the second, and so on.
        repeated: whether the same weights had been evaluated on the same data before. A repeated
            evaluation reveals nothing new, so it keeps its number.
    """

    number: int
    repeated: bool


def row_id() -> Column[int]:
    """The column of a row number that the database counts up."""
    return Column("id", Integer, primary_key=True)


BUNDLES: Final = RecordTable(
    "bundles", RegisteredBundle, PrimaryKeyConstraint("hash"), Index(None, "members_sha256")
)
SLOTS: Final = RecordTable(
    "slots",
    Champions,
    PrimaryKeyConstraint("name"),
    ForeignKeyConstraint(["champion"], [BUNDLES.c.hash]),
    ForeignKeyConstraint(["previous"], [BUNDLES.c.hash]),
)
CHALLENGERS: Final = RecordTable(
    "challengers",
    Challenger,
    PrimaryKeyConstraint("slot", "bundle"),
    ForeignKeyConstraint(["bundle"], [BUNDLES.c.hash]),
)
VERSIONS: Final = RecordTable(
    "versions",
    Version,
    PrimaryKeyConstraint("slot", "number"),
    UniqueConstraint("slot", "bundle"),
    ForeignKeyConstraint(["bundle"], [BUNDLES.c.hash]),
)
EVENTS: Final = RecordTable(
    "events",
    Event,
    row_id(),
    Index(None, "slot"),
    ForeignKeyConstraint(["bundle"], [BUNDLES.c.hash]),
    ForeignKeyConstraint(["previous"], [BUNDLES.c.hash]),
)
EVALUATIONS: Final = RecordTable("evaluations", EvaluationRecord, row_id(), Index(None, "subject"))


def add_event(
    connection: Connection,
    slot: str,
    kind: str,
    reason: str,
    *,
    bundle: str | None = None,
    previous: str | None = None,
    report: dict[str, Any] | None = None,
) -> None:
    """Append an event to the slot's history, in a transaction of the caller."""
    EVENTS.add(connection, [Event(slot, kind, utc_now(), bundle, previous, reason, report)])
