"""The base classes of an algorithm's hyperparameters, and the ranges of their fields."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.validation import StrictModel, first_fault

# A field that is a plain `float` may be any finite number.
AboveZero = Annotated[float, Field(gt=0)]
AtLeastZero = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
# Not strict: samplers and files may give whole numbers as floats.
Count = Annotated[int, Field(ge=0, strict=False)]
PositiveCount = Annotated[int, Field(ge=1, strict=False)]


class Hyperparameters(StrictModel):
    """The hyperparameters of one member; the members of a program may differ in all of them.

    A subclass has a field with its range and default for each.

    `of_the_run` are the fields that a member keeps throughout its training: they act at its start,
    or are the unit of what it has stored.

    Raises:
        InputError: a name is unknown, or a value is out of range.
    """

    of_the_run: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            words = "{name} must be {right}, not {value!r}"
            raise InputError(f"{first_fault(error, type(self), words)}.") from None

    @classmethod
    def numeric(cls) -> tuple[str, ...]:
        """Return the names of all fields that are numbers, in their order."""
        kinds = (bool, int, float)
        return tuple(n for n, field in cls.model_fields.items() if field.annotation in kinds)


class GradientParams(Hyperparameters):
    """The hyperparameters of all algorithms that make gradient steps.

    Attributes:
        learning_rate: Adam's learning rate at the start of training.
        gamma: discount per step (γ).
        max_grad_norm: largest gradient norm of each network.
        adam_eps: Adam's epsilon.
        weight_decay: AdamW's weight decay.
    """

    learning_rate: AboveZero = 1e-3
    gamma: Share = 0.99
    max_grad_norm: AboveZero = 3.0
    adam_eps: AboveZero = 1e-8
    weight_decay: AtLeastZero = 0.0


class Scheduled(GradientParams):
    """Hyperparameters with a learning rate that may decay, besides those of `GradientParams`.

    Attributes:
        lr_schedule: "constant", "linear" or "cosine" decay over the member's rollouts.
    """

    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"

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
