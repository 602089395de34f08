"""Rows without a legal choice, latched on the device without asking it anything until somebody wants to know."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from envs.support.errors import RunError


class MaskLatch:
    """Remembers for every row the first choice that left it no legal option, in which step, and its state then.

    names: what the state's columns are called, "player" among them.
    """

    def __init__(
        self, rows: int, rows_per_member: int, names: Sequence[str], device: torch.device
    ) -> None:
        self._rows_per_member, self._names = rows_per_member, tuple(names)
        self._steps = 0  # the host's own count of the steps before this one
        self._step = torch.full((rows,), torch.inf, dtype=torch.float64, device=device)
        self._choice = torch.zeros(rows, dtype=torch.float64, device=device)
        self._state = torch.zeros(rows, len(self._names), dtype=torch.float64, device=device)

    def look(self, mask: Tensor, choice: int, state: Tensor) -> None:
        """mask: (rows, options) bool, of that choice (from 0); state: (rows, names), numbers."""
        found = mask.any(-1).logical_not_().logical_and_(self._step.isinf())
        self._step.masked_fill_(found, float(self._steps))
        self._choice.masked_fill_(found, float(choice))
        torch.where(found.unsqueeze(-1), state.double(), self._state, out=self._state)

    def advance(self) -> None:
        """A step is over."""
        self._steps += 1

    def clear(self, rows: slice) -> None:
        """Forget the faults of these rows."""
        self._step[rows], self._choice[rows], self._state[rows] = torch.inf, 0.0, 0.0

    def latched(self) -> Tensor:
        """(rows,) bool."""
        return self._step.isfinite()

    def check(self) -> None:
        """Raise RunError naming the earliest fault. Synchronises."""
        step, row = self._step.min(0)
        if bool(step.isinf()):
            return
        at = int(row)
        state = ", ".join(
            f"{name} {value:g}"
            for name, value in zip(self._names, self._state[at].tolist(), strict=True)
        )
        raise RunError(
            f"row {at} (member {at // self._rows_per_member}) had no legal option for choice {int(self._choice[at])} "
            f"in step {int(step) + 1}, its state: {state}; an environment must leave at least one"
        )

    def state(self, rows: slice) -> dict[str, Tensor]:
        """These rows' faults as a flat dict of tensors."""
        kept = {
            "age": self._steps - self._step[rows],
            "choice": self._choice[rows],
            "state": self._state[rows],
        }
        return {f"mask_fault_{name}": tensor.clone() for name, tensor in kept.items()}

    def set_state(self, rows: slice, state: dict[str, Tensor]) -> None:
        """Put back what `state` returned."""
        device = self._step.device
        self._step[rows] = self._steps - state["mask_fault_age"].to(device)
        self._choice[rows] = state["mask_fault_choice"].to(device)
        self._state[rows] = state["mask_fault_state"].to(device)
