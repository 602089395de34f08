"""The base class of an algorithm's hyperparameters: checks of ranges, and conversion to numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Self

from sweepd.envs.support.errors import InputError

SCHEDULES = ("constant", "linear", "cosine")


class Scheduled:
    """Hyperparameters with a learning rate that may decay.

    Attributes:
        learning_rate: Adam's learning rate at the start of training.
        lr_schedule: one of `SCHEDULES`, the decay over the member's rollouts.
    """

    learning_rate: float
    lr_schedule: str

    def learning_rate_at(self, rollout: int, total: int) -> float:
        """Return the learning rate of a rollout (from 0) of `total`; past the end, the last one's.

        linear: η (1 - k/n); cosine: η (1 + cos(π k/n)) / 2, with k = rollout and n = total.
        """
        progress = min(rollout, total - 1) / total
        if self.lr_schedule == "linear":
            return self.learning_rate * (1.0 - progress)
        if self.lr_schedule == "cosine":
            return self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.learning_rate


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """The hyperparameters of one member; the members of a program may differ in all of them.

    A subclass lists its fields by range: `_above_zero`, `_zero_to_one` (bounds included),
    `_finite` (any finite number) and `_options` (strings, with the values allowed). All other
    fields must be at least 0.

    `of_the_run` are the fields that a member keeps throughout its training: they act at its start,
    or are the unit of what it has stored.
    """

    of_the_run: ClassVar[tuple[str, ...]] = ()

    _above_zero: ClassVar[tuple[str, ...]] = (
        "learning_rate",
        "reward_scale",
        "max_grad_norm",
        "adam_eps",
    )
    _zero_to_one: ClassVar[tuple[str, ...]] = ("gamma", "soft_update_tau")
    _finite: ClassVar[tuple[str, ...]] = ()
    _options: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in self._options:
                if value not in self._options[field.name]:
                    choices = ", ".join(self._options[field.name])
                    raise InputError(f"{field.name} must be one of {choices}, not {value!r}.")
                continue
            if field.name in self._above_zero:
                valid, range_ = value > 0, "above 0"
            elif field.name in self._zero_to_one:
                valid, range_ = 0 <= value <= 1, "between 0 and 1"
            elif field.name in self._finite:
                valid, range_ = True, "finite"
            else:
                valid, range_ = value >= 0, "at least 0"
            # Infinity passes most ranges, and NaN passes "finite".
            if not (valid and math.isfinite(value)):
                raise InputError(f"{field.name} must be {range_}, not {value}.")
            # Samplers and files may give whole numbers as floats.
            if field.type == "int" and value != int(value):
                raise InputError(f"{field.name} must be a whole number, not {value}.")

    @classmethod
    def numeric(cls) -> tuple[str, ...]:
        """Return the names of all fields that are numbers, in their order."""
        return tuple(field.name for field in fields(cls) if field.name not in cls._options)

    def to_numbers(self) -> list[float]:
        """Return all fields in their order as numbers; of strings, the index of the option."""
        return [
            float(self._options[field.name].index(getattr(self, field.name)))
            if field.name in self._options
            else float(getattr(self, field.name))
            for field in fields(self)
        ]

    @classmethod
    def from_numbers(cls, numbers: Sequence[float]) -> Self:
        """Rebuild what `to_numbers` returned.

        Raises:
            InputError: `numbers` are more or fewer than the fields, or out of range.
        """
        own = fields(cls)
        if len(own) != len(numbers):
            raise InputError(
                f"The member's params are {len(numbers)} numbers, where {len(own)} are expected."
            )
        values: dict[str, float | str] = {}
        for field, number in zip(own, numbers, strict=True):
            if field.name in cls._options:
                values[field.name] = cls._options[field.name][int(number)]
            else:
                values[field.name] = int(number) if field.type == "int" else number
        return cls(**values)
