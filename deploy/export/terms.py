"""How the hyperparameters of an algorithm are called and defined in another library.

A `Term` gives a parameter of theirs from ours; a `Lost` is a parameter of ours that they don't have.
Every hyperparameter and every size of a shape has one of the two in each table (a test holds this).
Where the two sides define a number differently, it is converted so that both compute the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Values = Mapping[str, Any]  # `Source.values`


@dataclass(frozen=True)
class Term:
    """A parameter of another library.

    Attributes:
        theirs: its name; of Stable-Baselines3, "policy_kwargs.…", "VecNormalize.…",
            "make_vec_env.…" and "learn.…" are no arguments of the algorithm's class.
        ours: the parameters of sweepd that it is made of.
        value: its value from ours; None is their default.
        how: the conversion, as a table has it; "" where the value stays as it is.
        said: what the user should know about this value; "" where both sides do the same.
    """

    theirs: str
    ours: tuple[str, ...]
    value: Callable[[Values], Any]
    how: str = ""
    said: Callable[[Values], str] = lambda _: ""


@dataclass(frozen=True)
class Lost:
    """A parameter of sweepd that another library does not have.

    Attributes:
        ours: its name.
        neutral: whether nothing is lost with these values.
        why: what the other library does instead.
    """

    ours: str
    neutral: Callable[[Values], bool]
    why: str


@dataclass(frozen=True)
class Peer:
    """An algorithm of another library.

    Attributes:
        name: its class, or its script.
        terms: its parameters.
        lost: parameters of ours that it does not have.
        differences: how the algorithms differ whatever the parameters are.
        of_numbers: likewise, where actions are numbers.
    """

    name: str
    terms: tuple[Term, ...]
    lost: tuple[Lost, ...]
    differences: tuple[str, ...] = ()
    of_numbers: tuple[str, ...] = ()

    def given(self, values: Values) -> dict[str, Any]:
        """Return their parameters by name, without those that stay at their defaults."""
        found = {term.theirs: term.value(values) for term in self.terms}
        return {name: value for name, value in found.items() if value is not None}

    def notes(self, values: Values) -> list[str]:
        """Return a sentence for everything that is lost or only similar with these values."""
        said = [text for term in self.terms if (text := term.said(values))]
        missing: dict[str, list[str]] = {}  # by the reason
        for one in self.lost:
            if one.ours in values and not one.neutral(values):
                missing.setdefault(one.why, []).append(f"{one.ours} = {_shown(values[one.ours])}")
        for why, names in missing.items():
            said.append(f"{', '.join(names)}: no counterpart, {why}")
        return said

    def differs(self, values: Values) -> list[str]:
        """Return how the algorithms differ, whatever the other parameters are."""
        return [*self.differences, *(() if values["discrete"] else self.of_numbers)]


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def same(theirs: str, ours: str) -> Term:
    """Return the term of a parameter with equal meaning."""
    return Term(theirs, (ours,), lambda v: v[ours])


def is_one_of(name: str, *neutral: Any) -> Callable[[Values], bool]:
    """Return whether a parameter has one of these values, as a function of all."""
    return lambda v: v[name] in neutral


def lost(ours: str, neutral: Any, why: str) -> Lost:
    """Return a parameter without counterpart, with the one value at which nothing is lost."""
    return Lost(ours, is_one_of(ours, neutral), why)


def whole(number: float) -> int:
    """Round to a whole number of at least 1."""
    return max(1, round(number))
