"""One parameter of a search space: a range, a list of choices, or a constant."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optuna.trial import BaseTrial

from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.space.subject import Scalar


@dataclass(frozen=True)
class Dimension:
    """How one parameter is drawn: by a range (low, high), by choices, or as a constant value.

    Attributes:
        log: whether the range has a logarithmic scale.
        off: value of a range that is switched off; None if it cannot be.
        start: value in the first trial.
    """

    name: str
    low: float | int | None = None
    high: float | int | None = None
    log: bool = False
    step: float | int | None = None
    choices: tuple[Scalar, ...] = ()
    value: Scalar | None = None
    off: Scalar | None = None
    start: Scalar | None = None

    @property
    def whole(self) -> bool:
        """Whether the range is one of integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> tuple[float | int, float | int]:
        """Lower and upper end of a range."""
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    @property
    def switch(self) -> str:
        """Name of the boolean parameter that says whether the range is on."""
        return f"{self.name}_on"

    @property
    def values(self) -> list[Scalar]:
        """The constant or the choices; for a range, its ends and the value when it is off."""
        found = (self.low, self.high, self.off, self.value, *self.choices)
        return [value for value in found if value is not None]

    @property
    def start_params(self) -> dict[str, Scalar]:
        """Parameters of the first trial that `start` sets."""
        return {} if self.start is None else self.fixed_params(self.start)

    def fixed_params(self, value: Scalar) -> dict[str, Scalar]:
        """Return the parameters of a trial that uses this value: its switch, too, if it has one."""
        if self.off is None:
            return {self.name: value}
        return {self.switch: False} if value == self.off else self._on(value)

    def suggest(self, trial: BaseTrial) -> dict[str, Scalar]:
        """Draw this parameter, and its switch if it has one.

        A parameter that is switched off is not drawn.
        """
        if self.value is not None:
            return {}
        if self.choices:
            chosen: Any = trial.suggest_categorical(self.name, self.choices)
            return {self.name: chosen}
        if self.off is None:
            return {self.name: self._suggest_number(trial)}
        if not trial.suggest_categorical(self.switch, (False, True)):
            return {self.switch: False}
        return self._on(self._suggest_number(trial))

    def _on(self, value: Scalar) -> dict[str, Scalar]:
        return {self.switch: True, self.name: value}

    def _suggest_number(self, trial: BaseTrial) -> Scalar:
        low, high = self.ends
        if self.whole:
            step = int(self.step or 1)
            return trial.suggest_int(self.name, int(low), int(high), step=step, log=self.log)
        return trial.suggest_float(self.name, float(low), float(high), step=self.step, log=self.log)

    def resolve(self, params: Mapping[str, Scalar]) -> Scalar:
        """Return the value that a trial with these parameters uses."""
        if self.value is not None:
            return self.value
        if self.off is not None and not params[self.switch]:
            return self.off
        return params[self.name]

    def validate(self, params: Mapping[str, Scalar]) -> None:
        """Raise InputError if the trial's value of this parameter is not one that can be drawn."""
        value = params.get(self.name)
        if value is not None and self.value is None:
            self._check_drawn(value)

    def validate_value(self, value: Any) -> None:
        """Raise InputError if no trial can use this value of a range or of choices."""
        if self.off is not None and value == self.off:
            return
        if not self.choices and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise InputError(f"{self.name} = {value!r} must be a number")
        if self.whole and value != int(value):
            raise InputError(f"{self.name} = {value!r} must be a whole number")
        self._check_drawn(value)

    def _check_drawn(self, value: Scalar) -> None:
        if self.choices:
            if value not in self.choices:
                allowed = ", ".join(map(str, self.choices))
                raise InputError(f"{self.name} = {value!r} is not one of {allowed}")
            return
        low, high = self.ends
        if not float(low) <= float(value) <= float(high):
            raise InputError(f"{self.name} = {value!r} lies outside {low} … {high}")

    def around(self, params: Mapping[str, Scalar], share: float) -> Dimension:
        """Return the dimension narrowed to the neighbourhood of a trial's value.

        A choice and a range that is off become constants. A range keeps `share` of its width (in
        the logarithm on a log scale) on both sides of the value, within its old ends.
        """
        if self.value is not None:
            return self
        value = self.resolve(params)
        if self.choices or (self.off is not None and value == self.off):
            return Dimension(self.name, value=value)
        low, high, at = *map(float, self.ends), float(value)
        if self.log:
            reach = share * math.log(high / low)
            low, high = max(low, at * math.exp(-reach)), min(high, at * math.exp(reach))
        else:
            reach = share * (high - low)
            low, high = max(low, at - reach), min(high, at + reach)
        if self.whole:  # outwards, so that the value itself stays inside
            low, high = math.floor(low), math.ceil(high)
        return Dimension(self.name, low=low, high=high, log=self.log, step=self.step)

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of a TOML file that describes this dimension."""
        entry: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "name" and value != field.default:
                entry[field.name] = list(value) if isinstance(value, tuple) else value
        return entry
