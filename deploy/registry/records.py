"""Values that the registry returns: deployment slots, their events and versions, evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


class ChampionMoved(Exception):
    """The slot's champion changed after it was compared with the candidate: compare again."""


@dataclass(frozen=True)
class Slot:
    """The present state of a deployment slot.

    Attributes:
        name: the slot's name.
        champion: hash of the deployed bundle, None if there is none.
        previous: hash of the champion before it, None if there is none.
        revision: how many times the champion has changed.
        challengers: hashes of the challengers, oldest first.
    """

    name: str
    champion: str | None
    previous: str | None
    revision: int
    challengers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Event:
    """An entry of a slot's history.

    `kind` is promoted, rolled-back, challenger, withdrawn, refused or removed; a live trader adds
    swap-refused.
    """

    slot: str
    kind: str
    at: str
    bundle: str | None
    previous: str | None
    reason: str
    report: dict[str, Any] | None


@dataclass(frozen=True)
class Version:
    """A bundle of a slot and its number there, counted from 1."""

    slot: str
    number: int
    bundle: str
    at: str


@dataclass(frozen=True)
class Garbage:
    """A bundle folder that no slot uses.

    Attributes:
        path: the folder.
        hash: hash of the bundle, None if the registry does not know it.
        why: the reason, for people.
        size: bytes.
    """

    path: Path
    hash: str | None
    why: str
    size: int


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
