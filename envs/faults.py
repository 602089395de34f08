"""Illegal actions, latched on the device without asking it anything until somebody wants to know."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from envs.errors import RunError

_NEVER = 2.0**52  # a step number that no run reaches


class FaultLatch:
    """Remembers for every row the first step whose action was not finite or beyond 1, with the component farthest
    off.
    """

    def __init__(self, rows: int, rows_per_member: int, components: Sequence[str], device: torch.device) -> None:
        self._rows_per_member = rows_per_member
        self._components = tuple(components)
        self._steps = torch.zeros((), dtype=torch.float64, device=device)
        self._step = torch.full((rows,), _NEVER, dtype=torch.float64, device=device)
        self._size = torch.zeros(rows, dtype=torch.float64, device=device)
        self._component = torch.zeros(rows, dtype=torch.int64, device=device)

    def look(self, action: Tensor) -> None:
        """One step's actions, component-first: (components, rows) float64."""
        size, component = action.abs().max(0)  # a NaN is larger than everything
        self._steps += 1.0
        new = (~(size <= 1.0)).logical_and_(self._step == _NEVER)
        torch.where(new, self._steps, self._step, out=self._step)
        torch.where(new, size, self._size, out=self._size)
        torch.where(new, component, self._component, out=self._component)

    def clear(self, rows: slice) -> None:
        """Forget the faults of these rows."""
        self._step[rows] = _NEVER

    def latched(self) -> Tensor:
        """(rows,) bool."""
        return self._step < _NEVER

    def check(self) -> None:
        """Raise RunError naming the earliest fault. Synchronises."""
        step, row = self._step.min(0)
        if float(step) == _NEVER:
            return
        at = int(row)
        component = int(self._component[at])
        raise RunError(
            f"row {at} (member {at // self._rows_per_member}) got an illegal action in step {int(step)}: "
            f"component {component} ({self._components[component]}) had the size {float(self._size[at])!r}; "
            "actions must be finite and in [-1, 1]"
        )

    def state(self, rows: slice) -> dict[str, Tensor]:
        """These rows' faults as a flat dict of tensors."""
        return {
            "fault_step": self._step[rows].clone(),
            "fault_size": self._size[rows].clone(),
            "fault_component": self._component[rows].clone(),
        }

    def set_state(self, rows: slice, state: dict[str, Tensor]) -> None:
        """Put back what `state` returned."""
        self._step[rows] = state["fault_step"].to(self._step.device)
        self._size[rows] = state["fault_size"].to(self._size.device)
        self._component[rows] = state["fault_component"].to(self._component.device)
