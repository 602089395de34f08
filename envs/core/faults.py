"""A latch for faults: recorded on the device, read by the host only in `check`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from sweepd.envs.core.rows import where_rows
from sweepd.envs.native.memory import per_row
from sweepd.envs.support.errors import RunError


class Fault(NamedTuple):
    """The first fault of a row.

    Attributes:
        row: The row.
        step: The number of the step, from 1.
        values: What was recorded of it.
    """

    row: int
    step: int
    values: list[float]


class FaultLatch:
    """Latches, per row, the first step with a fault, and what a message needs to know of it.

    Attributes:
        legal_steps: (rows,) float64, the steps before the row's first fault. It stops counting
            there, and is below the number of all steps from then on.
        values: (columns, rows), of that fault.
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        explain: Callable[[Fault], str],
        device: torch.device,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        """Make a latch without faults.

        Args:
            rows: Number of rows.
            columns: How many numbers are kept of a fault.
            explain: Says what is wrong.
            device: Device of what is recorded.
            dtype: Type of these numbers.
        """
        self._explain = explain
        # Counted on the host, which needs no synchronisation; so are steps without any fault.
        self._steps = self._unrecorded = 0
        self.legal_steps = torch.zeros(rows, dtype=torch.float64, device=device)
        self.values = per_row(columns, rows=rows, dtype=dtype, device=device)
        self._legal = torch.ones(rows, dtype=torch.bool, device=device)

    def count(self) -> None:
        """Count a step, on the host. To record it is a step of its own, also of native code."""
        self._steps += 1

    def all_legal(self) -> None:
        """Record on the host that the counted step has no fault."""
        self._unrecorded += 1

    def record(self, legal: Tensor, values: Tensor) -> Tensor:
        """Record the counted step on the device.

        Args:
            legal: (rows,) bool, rows without a fault in this step.
            values: (columns, rows) numbers to keep where it is the first fault, of the latch's type.

        Returns:
            (rows,) bool, rows without a fault so far. Valid until the next call.
        """
        self._settle()
        # Rows without a fault keep the latest values: those of their first fault stay.
        where_rows(self._legal, values, self.values, axis=-1, out=self.values)
        self._legal.logical_and_(legal)
        self.legal_steps.add_(self._legal)
        return self._legal

    def record_sizes(self, numbers: Tensor) -> None:
        """Record the counted step's numbers, which are legal from -1 to 1, on the device.

        Keeps the largest absolute values of all steps, also after a fault: that is faster.

        Args:
            numbers: (columns, rows) float64.
        """
        self._settle()
        # NaN propagates and stays.
        torch.maximum(self.values, numbers.abs(), out=self.values)
        # NaN is not ≤ 1, so it counts as illegal without a test of its own.
        torch.le(torch.amax(self.values, 0), 1.0, out=self._legal)
        self.legal_steps.add_(self._legal)

    def clear(self, rows: slice) -> None:
        """Forget the faults of these rows."""
        self._settle()
        self.legal_steps[rows] = self._steps
        self._legal[rows] = True
        self.values[:, rows] = 0

    def going(self) -> Tensor:
        """Return which rows have no fault in the recorded steps: (rows,) bool; as of `record`."""
        return self._legal

    def latched(self) -> Tensor:
        """Return which rows have a fault: (rows,) bool."""
        self._settle()
        return self.legal_steps < self._steps

    def check(self) -> None:
        """Raise RunError for the earliest fault. Synchronises with the device."""
        self._settle()
        legal, row = self.legal_steps.min(0)
        if int(legal) < self._steps:
            values = self.values[:, row].tolist()
            raise RunError(self._explain(Fault(int(row), int(legal) + 1, values)))

    def state(self, rows: slice) -> dict[str, Tensor]:
        """Return these rows' faults as a flat dict of tensors."""
        self._settle()
        return {
            "fault_age": self._steps - self.legal_steps[rows],
            "fault_values": self.values[:, rows].clone(memory_format=torch.contiguous_format),
        }

    def set_state(self, rows: slice, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self._settle()
        age = state["fault_age"].to(self.legal_steps.device)
        self.legal_steps[rows], self._legal[rows] = self._steps - age, age == 0
        self.values[:, rows] = state["fault_values"].to(self.values.device)

    def _settle(self) -> None:
        """Record the steps without any fault that only the host has counted."""
        if self._unrecorded:
            self.legal_steps.add_(self._legal, alpha=self._unrecorded)
            self._unrecorded = 0


class FaultRecord(Protocol):
    """What remembers faults, such as a latch or several."""

    def latched(self) -> Tensor: ...
    def check(self) -> None: ...


class WithFaults:
    """An environment's part that tells its faults, which are in `_faults`."""

    device: torch.device
    _faults: FaultRecord

    def faults(self) -> Tensor:
        """See `VecEnv.faults`."""
        return self._faults.latched().to(self.device)

    def check(self) -> None:
        """See `VecEnv.check`."""
        self._faults.check()


def illegal_number(fault: Fault, rows_per_member: int, components: Sequence[str]) -> str:
    """Say which number is not in [-1, 1]; `Fault.values` are the components' absolute values."""
    # NaN counts as the largest.
    component = int(torch.tensor(fault.values, dtype=torch.float64).argmax())
    return (
        f"row {fault.row} (member {fault.row // rows_per_member}) got illegal actions from step "
        f"{fault.step} on: component {component} ({components[component]}) had the size "
        f"{fault.values[component]!r}; actions must be finite and in [-1, 1]"
    )


def illegal_choice(
    row: int, rows_per_member: int, step: int, value: str, options: int, choice: int | None = None
) -> str:
    """Say that a row's choice in a step is none of its options.

    Args:
        row: The row.
        rows_per_member: Rows of one member.
        step: The step, from 1.
        value: What was chosen.
        options: The number of options.
        choice: Which choice of an action of several, from 0; None: it is the only one.
    """
    which = "" if choice is None else f" for choice {choice}"
    return (
        f"row {row} (member {row // rows_per_member}) got an illegal action in step {step}{which}: "
        f"{value}; actions must be whole numbers from 0 to {options - 1}"
    )
