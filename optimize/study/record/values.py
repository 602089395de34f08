"""The values of a study: what each is called, which way it is optimised, and what bounds it.

The first value of a trial is its objective, which is maximised. Further values (`--also`) and
constraints (`--constraint`) are about numbers that every evaluation records.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.intervals import Floats

MAXIMIZE, MINIMIZE = "maximize", "minimize"  # as in Optuna
BALANCED, FIRST = "balanced", "first"  # rules that choose one trial of a frontier
# Before the text of a constraint: system attribute with a trial's violation, as Optuna writes it.
CONSTRAINT_PREFIX = "constraints:"


@dataclass(frozen=True)
class Value:
    """A value of a trial. name: of a number that its evaluation records."""

    name: str
    maximize: bool = True

    @property
    def direction(self) -> str:
        """The direction as in Optuna."""
        return MAXIMIZE if self.maximize else MINIMIZE

    @property
    def sign(self) -> float:
        """Factor that makes larger values better."""
        return 1.0 if self.maximize else -1.0

    @property
    def text(self) -> str:
        """The value as `--also` takes it."""
        return f"{self.direction}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Value:
        """Read a value of `--also`. Raises InputError."""
        direction, colon, name = (part.strip() for part in text.partition(":"))
        if direction not in (MAXIMIZE, MINIMIZE) or not colon or not name:
            raise InputError(
                f"--also {text!r} is not valid: give {MAXIMIZE}:NAME or {MINIMIZE}:NAME, like "
                "minimize:max_drawdown"
            )
        return cls(name, direction == MAXIMIZE)


@dataclass(frozen=True)
class Constraint:
    """A limit that a trial must keep.

    Attributes:
        name: of the number.
        upper: whether the limit is the largest allowed number, else the smallest.
        limit: allowed itself.
    """

    name: str
    upper: bool
    limit: float

    @property
    def text(self) -> str:
        """The constraint as `--constraint` takes it."""
        return f"{self.name}{'<=' if self.upper else '>='}{self.limit!r}"

    def violation(self, number: float) -> float:
        """Return by how much a number breaks the limit; at most 0 if it does not, as in Optuna."""
        return number - self.limit if self.upper else self.limit - number

    @classmethod
    def parse(cls, text: str) -> Constraint:
        """Read a value of `--constraint`. Raises InputError."""
        found = re.fullmatch(r"\s*([^<>=\s]+)\s*(<=|>=)\s*(\S+)\s*", text)
        try:
            limit = float(found[3]) if found else math.nan
        except ValueError:
            limit = math.nan
        if found is None or not math.isfinite(limit):
            raise InputError(
                f"--constraint {text!r} is not valid: give NAME<=NUMBER or NAME>=NUMBER, like "
                "max_drawdown<=0.3"
            )
        return cls(found[1], found[2] == "<=", limit)


@dataclass(frozen=True, kw_only=True)
class ValuedSpec:
    """What the trials of a study are judged by.

    Attributes:
        objective: name of the first value, which is maximised.
        also: further values, as `--also` takes them.
        constraints: as `--constraint` takes them, in alphabetical order.
        choose: rule that chooses one trial of the frontier; "" with one value.
    """

    objective: str
    also: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    choose: str = ""

    @property
    def values(self) -> tuple[Value, ...]:
        """The values of a trial, in the order of the study's directions."""
        return Value(self.objective), *map(Value.parse, self.also)

    @property
    def signs(self) -> tuple[float, ...]:
        """Of each value, the factor that makes larger ones better."""
        return tuple(value.sign for value in self.values)

    @property
    def limits(self) -> tuple[Constraint, ...]:
        """The constraints."""
        return tuple(map(Constraint.parse, self.constraints))

    @property
    def several(self) -> bool:
        """Whether a trial has more than one value, so that the best trials are a frontier."""
        return bool(self.also)

    @staticmethod
    def without_unused(described: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a spec without those that few studies need, where they are empty."""
        rare = ("also", "constraints", "choose", "async_envs")
        return {name: value for name, value in described.items() if value or name not in rare}

    @staticmethod
    def with_tuples(described: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a spec with tuples in place of the lists of JSON."""
        lists = ("also", "constraints")
        return described | {name: tuple(described[name]) for name in lists if name in described}


def non_dominated(points: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which of (n, values) points no other one dominates; larger is better.

    A point dominates another if it is at least as good in every value and better in one. Equal
    points do not dominate each other.
    """
    points = np.asarray(points, dtype=np.float64)
    kept = np.zeros(len(points), dtype=bool)
    front: list[Floats] = []
    # A point can only be dominated by one before it in this order.
    for index in np.lexsort(points.T[::-1])[::-1]:
        own = points[index]
        known = np.array(front)
        if front and ((known >= own).all(1) & (known > own).any(1)).any():
            continue
        kept[index] = True
        front.append(own)
    return kept


def distances(points: Floats, front: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Floats:
    """Return the distance of each (n, values) point to the best of every value on the frontier.

    Values are scaled to their range on the frontier; larger is better. A point that dominates
    another is not farther away, so the nearest point is on the frontier.
    """
    ideal, worst = points[front].max(0), points[front].min(0)
    scale = np.where(ideal > worst, ideal - worst, 1.0)
    return np.asarray(np.sqrt((((ideal - points) / scale) ** 2).sum(1)))


def rule_words(choose: str, values: Sequence[Value], constraints: Sequence[Constraint]) -> str:
    """Say by which rule one trial of a frontier is chosen."""
    among = "of the trials that meet the constraints " if constraints else ""
    if choose == FIRST:
        return f"{among}the one with the highest {values[0].name} (--choose {FIRST})"
    return (
        f"{among}the one nearest to the best of every value, each scaled to its range on the "
        f"frontier (--choose {BALANCED})"
    )


def values_text(values: Sequence[Value], numbers: Sequence[float]) -> str:
    """Format the values of a trial after its first one: `max_drawdown 0.1200`."""
    further = zip(values[1:], numbers[1:], strict=True)
    return ", ".join(f"{value.name} {number:+.4f}" for value, number in further)


def constraint_attributes(violations: Mapping[str, float]) -> dict[str, float]:
    """Return violations as system attributes of a trial, as Optuna writes them."""
    return {CONSTRAINT_PREFIX + text: by for text, by in violations.items()}


def recorded_violations(attributes: Mapping[str, Any]) -> dict[str, float]:
    """Return the violations among the system attributes of a trial, by the text of the constraint."""
    # As `FrozenTrial.constraints`, which also reads a form of older versions of Optuna.
    return {
        key.removeprefix(CONSTRAINT_PREFIX): float(by)
        for key, by in attributes.items()
        if key.startswith(CONSTRAINT_PREFIX)
    }


def total_violation(violations: Mapping[str, float]) -> float:
    """Return by how much constraints are broken, in all: 0 if they are met."""
    return sum(by for by in violations.values() if by > 0.0)


def broken_words(violations: Mapping[str, float]) -> str:
    """Say which constraints a trial does not meet: `max_drawdown<=0.3 (by 0.12)`; "" if it does.

    Args:
        violations: by the text of the constraint, see `Constraint.violation`.
    """
    return ", ".join(f"{text} (by {by:.4g})" for text, by in violations.items() if by > 0.0)
