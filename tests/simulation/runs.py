"""Runs of the simulations by seed, and what is printed of one that fails."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.simulation import night, trader, worker
from tests.simulation.scheduler import Fault, Scheduler, Tape, Violation, shrink, tape_text

WORLDS: dict[str, Callable[[Scheduler], None]] = {
    "worker": worker.simulate,
    "night": night.simulate,
    "trader": trader.simulate,
}


@dataclass(frozen=True)
class Failure:
    """A run in which an invariant does not hold, or the simulated code raises an error.

    Attributes:
        what: the simulation.
        tape: its tape.
        error: the first error.
        log: what happened.
    """

    what: str
    tape: Mapping[int, int]
    error: BaseException
    log: list[str]

    def __str__(self) -> str:
        command = f'python -m tests.simulation --what {self.what} --replay "{tape_text(self.tape)}"'
        return f"{type(self.error).__name__}: {self.error}\n{command}"


def run(what: str, tape: Tape) -> Failure | None:
    """Run a simulation with a tape; return its failure, if it fails."""
    scheduler = Scheduler(tape)
    try:
        WORLDS[what](scheduler)
    except (Exception, Violation) as error:
        return Failure(what, tape.taken, error, scheduler.log)
    return None


@dataclass(frozen=True)
class Figures:
    """What seeds have shown.

    Attributes:
        seeds: number of seeds.
        seconds: processor time.
        faults: how often each fault has happened.
        failure: the first failing run.
        failing: its seed.
    """

    seeds: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    failure: Failure | None = None
    failing: int = -1

    def __add__(self, other: Figures) -> Figures:
        known = self if self.failure else other
        return Figures(
            self.seeds + other.seeds,
            self.seconds + other.seconds,
            self.faults + other.faults,
            known.failure,
            known.failing,
        )

    @property
    def record(self) -> dict[str, Any]:
        """The figures as plain data."""
        faults = dict(sorted(self.faults.items()))
        return {"seeds": self.seeds, "processor_seconds": round(self.seconds), "faults": faults}


def first_failure(what: str, seeds: range) -> Figures:
    """Run a simulation with these seeds, up to the first that fails."""
    began, faults = time.process_time(), Counter[str]()
    for done, seed in enumerate(seeds, 1):
        tape = Tape(seed=seed)
        failure = run(what, tape)
        faults.update(Fault(choice).name for choice in tape.taken.values())
        if failure is not None:
            return Figures(done, time.process_time() - began, faults, failure, seed)
    return Figures(len(seeds), time.process_time() - began, faults)


def shrunk(failure: Failure) -> Failure:
    """Return a failure of the same kind of error with as few choices as possible."""

    def found(given: Mapping[int, int]) -> Failure | None:
        again = run(failure.what, Tape(given))
        return again if again and isinstance(again.error, Violation) == expected else None

    expected = isinstance(failure.error, Violation)
    smallest = found(shrink(failure.tape, lambda given: found(given) is not None))
    return smallest or failure
