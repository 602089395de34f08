"""A latch for rows without a legal choice: recorded on the device, read only in `check`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sweepd.envs.support.errors import RunError


class MaskLatch:
    """Latches, per row, the first choice without a legal option, its step and the row's state.

    Args:
        rows: number of rows.
        rows_per_member: rows of one member, for messages.
        names: names of the state's columns, among them "player".
        device: device of the masks.
    """

    def __init__(
        self, rows: int, rows_per_member: int, names: Sequence[str], device: torch.device
    ) -> None:
        self._rows_per_member, self._names = rows_per_member, tuple(names)
        self._steps = 0  # steps before the current one, counted on the host
        self._step = torch.full((rows,), torch.inf, dtype=torch.float64, device=device)
        self._choice = torch.zeros(rows, dtype=torch.float64, device=device)
        self._state = torch.zeros(rows, len(self._names), dtype=torch.float64, device=device)

    def record(self, mask: Tensor, choice: int, state: Tensor) -> None:
        """Record the mask of one choice.

        Args:
            mask: (rows, options) bool.
            choice: index of the choice, from 0.
            state: (rows, names), of any numeric dtype.
        """
        found = mask.any(-1).logical_not_().logical_and_(self._step.isinf())
        self._step.masked_fill_(found, float(self._steps))
        self._choice.masked_fill_(found, float(choice))
        torch.where(found.unsqueeze(-1), state.double(), self._state, out=self._state)

    def advance(self) -> None:
        """Advance to the next step."""
        self._steps += 1

    def clear(self, rows: slice) -> None:
        """Clear the faults of these rows."""
        self._step[rows], self._choice[rows], self._state[rows] = torch.inf, 0.0, 0.0

    def latched(self) -> Tensor:
        """Return which rows have a fault: (rows,) bool."""
        return self._step.isfinite()

    def check(self) -> None:
        """Raise RunError for the earliest fault. Synchronises with the device."""
        step, row = self._step.min(0)
        if bool(step.isinf()):
            return
        at = int(row)
        state = ", ".join(
            f"{name} {value:g}"
            for name, value in zip(self._names, self._state[at].tolist(), strict=True)
        )
        raise RunError(
            f"row {at} (member {at // self._rows_per_member}) had no legal option for choice "
            f"{int(self._choice[at])} in step {int(step) + 1}, its state: {state}; an environment "
            "must leave at least one"
        )

    def state(self, rows: slice) -> dict[str, Tensor]:
        """Return these rows' faults as a flat dict of tensors."""
        kept = {
            "age": self._steps - self._step[rows],
            "choice": self._choice[rows],
            "state": self._state[rows],
        }
        return {f"mask_fault_{name}": tensor.clone() for name, tensor in kept.items()}

    def set_state(self, rows: slice, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        device = self._step.device
        self._step[rows] = self._steps - state["mask_fault_age"].to(device)
        self._choice[rows] = state["mask_fault_choice"].to(device)
        self._state[rows] = state["mask_fault_state"].to(device)
