"""Illegal actions given to environments that live on the host: found before an environment sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envs.external.actions import ActionLayout
from envs.external.masks import Masks
from envs.support.errors import RunError


@dataclass(frozen=True)
class _Fault:
    age: int  # the row's steps before it
    component: int
    value: float


class ActionCheck:
    """Remembers for every row its first action that was not a number between `low` and `high` (one per component): -1
    and 1, or, where actions are choices, 0 and the last one; or that was masked. And rows where everything is.
    """

    def __init__(
        self, rows: int, rows_per_member: int, actions: ActionLayout, masks: Masks | None = None
    ) -> None:
        self._masks = masks
        self._rows_per_member, self._low, self._high = rows_per_member, actions.low, actions.high
        self._sizes = np.array(actions.choices, np.uint64) if actions.discrete else None
        self._starts = np.cumsum(
            (0, *actions.choices[:-1])
        )  # of the choices' options, side by side
        self._began = np.zeros(rows, dtype=np.int64)
        self._steps = 0
        self._found: dict[int, _Fault] = {}

    def legal(self, action: NDArray[Any]) -> NDArray[Any]:
        """One step's actions, (rows, components): themselves, or legal ones where some are not. Raises RunError for a
        row in which none is.
        """
        self._steps += 1
        if self._sizes is None:
            fine = np.abs(action) <= 1.0  # not so where it is NaN
        else:
            fine = (
                action.astype(np.int64, copy=False).view(np.uint64) < self._sizes
            )  # negative ones are large there
        options = None
        if self._masks:
            options = self._masks.options()
            self._masks.latch.check()
            self._masks.latch.advance()
            fine &= np.take_along_axis(options, np.where(fine, action, 0) + self._starts, 1)
        if b"\0" not in fine.tobytes():  # quicker than asking for `all`
            return action
        for row in np.flatnonzero(~fine.all(1)).tolist():
            component = int(np.flatnonzero(~fine[row])[0])
            age = self._steps - 1 - int(self._began[row])
            self._found.setdefault(row, _Fault(age, component, float(action[row, component])))
        instead = self._low if options is None else self._first(options)
        return np.where(fine, action, instead).astype(action.dtype)

    def clear(self, rows: slice) -> None:
        """Forget the faults of these rows."""
        self._began[rows] = self._steps
        self._found = {
            row: fault for row, fault in self._found.items() if not rows.start <= row < rows.stop
        }
        if self._masks:
            self._masks.latch.clear(rows)

    def latched(self) -> Tensor:
        """(rows,) bool."""
        found = torch.zeros(len(self._began), dtype=torch.bool)
        found[list(self._found)] = True
        return found | self._masks.latch.latched() if self._masks else found

    def check(self) -> None:
        """Raise RunError naming the earliest fault."""
        if self._masks:
            self._masks.latch.check()
        if not self._found:
            return
        row, fault = min(
            self._found.items(), key=lambda item: (item[1].age + int(self._began[item[0]]), item[0])
        )
        low, high = self._low[fault.component], self._high[fault.component]
        raise RunError(
            f"row {row} (member {row // self._rows_per_member}) got an illegal action in its step {fault.age + 1}: "
            f"component {fault.component} was {fault.value:g}; it must be from {low:g} to {high:g}"
            + (", and not masked" if self._masks else "")
        )

    def _first(self, options: NDArray[np.bool_]) -> NDArray[np.int64]:
        """(rows, components): the first legal option of each."""
        return np.stack([part.argmax(1) for part in np.split(options, self._starts[1:], axis=1)], 1)

    def state(self, rows: slice) -> dict[str, Tensor]:
        """These rows' faults as a flat dict of tensors."""
        none = _Fault(-1, 0, 0.0)
        found = [self._found.get(row, none) for row in range(rows.start, rows.stop)]
        return {
            **(self._masks.latch.state(rows) if self._masks else {}),
            "fault_age": torch.tensor([fault.age for fault in found]),
            "fault_component": torch.tensor([fault.component for fault in found]),
            "fault_value": torch.tensor([fault.value for fault in found], dtype=torch.float64),
            "age": torch.from_numpy(self._steps - self._began[rows]),
        }

    def set_state(self, rows: slice, state: dict[str, Tensor]) -> None:
        """Put back what `state` returned."""
        self.clear(rows)
        self._began[rows] = self._steps - state["age"].numpy()
        kept = zip(
            range(rows.start, rows.stop),
            *(state[name].tolist() for name in ("fault_age", "fault_component", "fault_value")),
            strict=True,
        )
        if self._masks:
            self._masks.latch.set_state(rows, state)
        self._found |= {
            row: _Fault(age, component, value) for row, age, component, value in kept if age >= 0
        }
