"""What nights store in the registry's database: a row per night, and one per step that is over.

One process per slot writes. A process that begins or continues a night puts its token into the
night's row, and every transaction checks that it is still there, so that a process that was
suspended and replaced cannot write any more.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from sqlalchemy import Connection, ForeignKeyConstraint, PrimaryKeyConstraint

from sweepd.deploy.registry.database import RegistryDatabase
from sweepd.deploy.registry.tables import RecordTable
from sweepd.envs.support.errors import RunError

# In their order. bars: download. check: the folder of bars. begin: name, total and deadline of the
# study, fixed before it trains. study: train. stage: judge its best trial. admit: let it ask for a
# seat in the arena. arena: judge those who trade. defend: players of a game against the champion.
# certify: the trader's record. disk: remove. report: write and send.
Name = Literal[
    "bars",
    "check",
    "begin",
    "study",
    "stage",
    "admit",
    "arena",
    "defend",
    "certify",
    "disk",
    "report",
]
STEPS: Final[tuple[Name, ...]] = get_args(Name)
Outcome = Literal["done", "skipped", "refused", "failed", "late"]
NightOutcome = Literal["done", "broken", "late"]


@dataclass(frozen=True)
class Night:
    """A night of a slot.

    Attributes:
        slot: the slot.
        night: its UTC day, as 20261128.
        token: of the process that writes.
        config: the settings that it began with, see `NightConfig.record`.
        started: when, UTC text.
        failures: how often the step that is next has failed.
        problem: why it failed last; None if it did not.
        ended: when its last step was over, UTC text; None before.
        outcome: done; broken: a step failed or was refused; late: it was not over when the next
            night began. None before its end.
    """

    slot: str
    night: str
    token: str
    config: dict[str, Any]
    started: str
    failures: int = 0
    problem: str | None = None
    ended: str | None = None
    outcome: NightOutcome | None = None


@dataclass(frozen=True)
class NightStep:
    """A step of a night that is over, however it ended; it is never repeated.

    Attributes:
        slot: the slot.
        night: as of `Night`.
        step: its name, see `STEPS`.
        at: when it was over, UTC text.
        seconds: how long it took since its process (last) started it.
        outcome: done; skipped: there was no reason to do it; refused: the input is wrong; failed:
            repeatedly; late: its time was over.
        facts: what it found, as plain data; "reason" is a sentence without its full stop.
    """

    slot: str
    night: str
    step: Name
    at: str
    seconds: float
    outcome: Outcome
    facts: dict[str, Any]


NIGHTS: Final = RecordTable("nights", Night, PrimaryKeyConstraint("slot", "night"))
NIGHT_STEPS: Final = RecordTable(
    "night_steps",
    NightStep,
    PrimaryKeyConstraint("slot", "night", "step"),
    ForeignKeyConstraint(["slot", "night"], [NIGHTS.c.slot, NIGHTS.c.night]),
)


class NightReplaced(RunError):
    """Another process continues this night."""


class NightStore:
    """The nights' rows in a registry's database."""

    def __init__(self, database: RegistryDatabase) -> None:
        self._database = database

    def night(self, slot: str, night: str) -> Night | None:
        """Return a night, None if it has not begun."""
        with self._database.reading() as connection:
            return NIGHTS.get(connection, slot=slot, night=night)

    def nights(self, slot: str) -> list[Night]:
        """Return all nights of a slot, oldest first."""
        with self._database.reading() as connection:
            return NIGHTS.read(
                connection, NIGHTS.select(NIGHTS.c.slot == slot).order_by(NIGHTS.c.night)
            )

    def steps(self, slot: str, night: str | None = None) -> list[NightStep]:
        """Return the steps that are over, of one night or of all, in their order."""
        row = NIGHT_STEPS.c
        query = NIGHT_STEPS.select(row.slot == slot)
        if night is not None:
            query = query.where(row.night == night)
        with self._database.reading() as connection:
            found = NIGHT_STEPS.read(connection, query)
        return sorted(found, key=lambda one: (one.night, STEPS.index(one.step)))

    def begin(self, slot: str, night: str, config: dict[str, Any], now: str) -> Night:
        """Begin a night, or take it over from the process that began it.

        Args:
            slot: the slot.
            night: its UTC day.
            config: settings of a new night; one that has begun keeps its own.
            now: UTC text.

        Returns:
            The night's row, whose token the other methods need.
        """
        token = secrets.token_hex(8)
        with self._database.writing() as connection:
            found = NIGHTS.get(connection, slot=slot, night=night)
            if found is None:
                found = Night(slot, night, token, config, now)
                NIGHTS.add(connection, [found])
            else:
                connection.execute(NIGHTS.update(slot=slot, night=night).values(token=token))
            return replace(found, token=token)

    def write(self, night: Night, step: NightStep) -> None:
        """Append a step that is over.

        Raises:
            NightReplaced: another process continues the night.
        """
        with self._writing(night) as connection:
            NIGHT_STEPS.add(connection, [step])
            self._change(connection, night, failures=0, problem=None)

    def fail(self, night: Night, problem: str) -> int:
        """Count a failure of the step that is next, and return how many there were.

        Raises:
            NightReplaced: another process continues the night.
        """
        with self._writing(night) as connection:
            found = NIGHTS.get(connection, slot=night.slot, night=night.night)
            assert found is not None
            self._change(connection, night, failures=found.failures + 1, problem=problem)
            return found.failures + 1

    def end(self, night: Night, outcome: NightOutcome, now: str) -> None:
        """Write that the night is over.

        Raises:
            NightReplaced: another process continues the night.
        """
        with self._writing(night) as connection:
            self._change(connection, night, ended=now, outcome=outcome)

    @staticmethod
    def _change(connection: Connection, night: Night, **values: object) -> None:
        connection.execute(NIGHTS.update(slot=night.slot, night=night.night).values(values))

    @contextmanager
    def _writing(self, night: Night) -> Iterator[Connection]:
        with self._database.writing() as connection:
            found = NIGHTS.get(connection, slot=night.slot, night=night.night)
            if found is None or found.token != night.token:
                raise NightReplaced(
                    f"night {night.night} of slot {night.slot!r} is continued by another process"
                )
            yield connection
