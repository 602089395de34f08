"""Latches for illegal actions: recorded on the device, read by the host only in `check`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sweepd.envs.native.memory import per_row
from sweepd.envs.support.errors import RunError


class FaultLatch:
    """Latches, per row, the first step with an action that is not finite or outside [-1, 1].

    Also keeps the largest absolute value per component since then. If every step is checked
    (`debug`), both belong to the same step.

    Args:
        rows: number of rows.
        rows_per_member: rows of one member, for messages.
        components: names of the action's components, for messages.
        device: device of the actions.
    """

    def __init__(
        self, rows: int, rows_per_member: int, components: Sequence[str], device: torch.device
    ) -> None:
        self._rows_per_member = rows_per_member
        self._components = tuple(components)
        self._steps = 0.0  # counted on the host, which needs no synchronisation
        # Steps before the first illegal action. It stops counting there, since `_largest` keeps its
        # maximum.
        self._legal_steps = torch.zeros(rows, dtype=torch.float64, device=device)
        self._largest = per_row(len(components), rows=rows, device=device)
        self._row_size = torch.zeros(rows, dtype=torch.float64, device=device)

    def count_step(self) -> None:
        """Count a step. For native code that records it in `tensors`; `record` counts by itself."""
        self._steps += 1.0

    def record(self, action: Tensor) -> None:
        """Record one step's actions, (components, rows) float64."""
        self.count()
        self.measure(action)

    def count(self) -> None:
        """Count a step on the host: the first part of `record`."""
        self._steps += 1.0

    def measure(self, action: Tensor) -> None:
        """Record the counted step's actions on the device: the second part of `record`."""
        # NaN propagates and stays.
        torch.maximum(self._largest, action.abs(), out=self._largest)
        # NaN is not ≤ 1, so it counts as illegal without a test of its own.
        self._legal_steps.add_(torch.amax(self._largest, 0, out=self._row_size).le_(1.0))

    def clear(self, rows: slice) -> None:
        """Clear the faults of these rows."""
        self._legal_steps[rows] = self._steps
        self._largest[:, rows] = 0.0

    def latched(self) -> Tensor:
        """Return which rows have a fault: (rows,) bool."""
        return self._legal_steps < self._steps

    def native_state(self) -> tuple[dict[str, int], dict[str, Tensor | None]]:
        """Return what a native step changes."""
        return {}, {"legal_steps": self._legal_steps, "largest": self._largest}

    def check(self) -> None:
        """Raise RunError for the earliest fault. Synchronises with the device."""
        legal, row = self._legal_steps.min(0)
        if float(legal) == self._steps:
            return
        at = int(row)
        size, component = self._largest[:, at].max(0)
        raise RunError(
            f"row {at} (member {at // self._rows_per_member}) got illegal actions from step "
            f"{int(legal) + 1} on: component {int(component)} ({self._components[int(component)]}) "
            f"had the size {float(size)!r}; actions must be finite and in [-1, 1]"
        )

    def state(self, rows: slice) -> dict[str, Tensor]:
        """Return these rows' faults as a flat dict of tensors."""
        return {
            "fault_age": self._steps - self._legal_steps[rows],
            "fault_largest": self._largest[:, rows].clone(),
        }

    def set_state(self, rows: slice, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self._legal_steps[rows] = self._steps - state["fault_age"].to(self._legal_steps.device)
        self._largest[:, rows] = state["fault_largest"].to(self._largest.device)


class ChoiceLatch:
    """Latches, per row, the first step whose action is none of the choices 0 … `choices` - 1.

    Actions of several steps are buffered and checked together, which is cheaper.

    Args:
        rows: number of rows.
        rows_per_member: rows of one member, for messages.
        choices: number of choices, with actions (rows,); or one number per choice of a
            multi-discrete action, at most 254 each, with actions (rows, choices).
        device: device of the actions.
    """

    _BUFFER = 16

    def __init__(
        self, rows: int, rows_per_member: int, choices: int | Sequence[int], device: torch.device
    ) -> None:
        self._rows_per_member = rows_per_member
        self._several = not isinstance(choices, int)
        self._choices = (choices,) if isinstance(choices, int) else tuple(choices)
        shape = (rows, len(self._choices)) if self._several else (rows,)
        # float64 holds any discrete action and is the dtype in which environments compute.
        # Multi-discrete actions are kept in bytes, because there are many of them.
        kind = torch.uint8 if self._several else torch.float64
        self._recent = torch.zeros(self._BUFFER, *shape, dtype=kind, device=device)
        self._places = self._recent.unbind(0)
        # Expanded to all rows, because broadcasting a few numbers is slower.
        self._most = (
            (torch.tensor(self._choices, device=device) - 1)
            .to(kind)
            .expand(rows, -1)
            .reshape(shape)
        )
        to_go = torch.arange(self._BUFFER, 0, -1, dtype=torch.uint8, device=device)
        self._to_go = to_go.view(-1, *(1 for _ in shape))
        self._buffered = 0  # buffered steps
        self._unchecked = 0  # of them, those whose actions may be illegal
        self._steps = 0  # steps before the buffered ones
        # Steps before the first illegal action (infinity if there is none), and that action.
        self._legal_steps = torch.full(shape, torch.inf, dtype=torch.float64, device=device)
        self._illegal = torch.zeros(shape, dtype=torch.float64, device=device)

    def record(self, action: Tensor) -> Tensor:
        """Buffer one step's actions.

        Args:
            action: int64.

        Returns:
            The actions as float64, or multi-discrete ones as uint8, where values below 0 become 255
            and values above 254 become 254. Valid until the next call.
        """
        self.take_place()
        return self.put(action)

    def take_place(self) -> int:
        """Take the buffer's next place for a step, on the host: the first part of `record`."""
        if self._buffered == self._BUFFER:
            self._check_buffer()
        self._buffered += 1
        self._unchecked += 1
        return self._buffered

    def taken(self) -> Tensor:
        """Return the buffer's place that was taken, for native code that fills it."""
        return self._places[self._buffered - 1]

    def confirm(self) -> None:
        """Native code has found all actions in the place taken legal."""
        self._unchecked -= 1

    def put(self, action: Tensor) -> Tensor:
        """Buffer the actions in the place taken, on the device: the second part of `record`."""
        return self.taken().copy_(action.clamp(-1, 254) if self._several else action)

    def clear(self, rows: slice) -> None:
        """Clear the faults of these rows."""
        self._check_buffer()
        self._legal_steps[rows] = torch.inf
        self._illegal[rows] = 0.0

    def latched(self) -> Tensor:
        """Return which rows have a fault: (rows,) bool."""
        self._check_buffer()
        latched = self._legal_steps.isfinite()
        return latched.any(-1) if self._several else latched

    def check(self) -> None:
        """Raise RunError for the earliest fault. Synchronises with the device."""
        self._check_buffer()
        legal, at = self._legal_steps.flatten().min(0)
        if bool(legal.isinf()):
            return
        row, choice = divmod(int(at), len(self._choices))
        which = f" for choice {choice}" if self._several else ""
        named, most = self._named(float(self._illegal.flatten()[at])), self._choices[choice] - 1
        raise RunError(
            f"row {row} (member {row // self._rows_per_member}) got an illegal action in step "
            f"{int(legal) + 1}{which}: {named}; actions must be whole numbers from 0 to {most}"
        )

    def state(self, rows: slice) -> dict[str, Tensor]:
        """Return these rows' faults as a flat dict of tensors."""
        self._check_buffer()
        return {
            "fault_age": self._steps - self._legal_steps[rows],
            "fault_action": self._illegal[rows].clone(),
        }

    def set_state(self, rows: slice, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self._check_buffer()
        self._legal_steps[rows] = self._steps - state["fault_age"].to(self._legal_steps.device)
        self._illegal[rows] = state["fault_action"].to(self._illegal.device)

    def _named(self, action: float) -> str:
        if self._several and action >= 254:
            return "254 or more" if action == 254 else "less than 0"
        return str(int(action))

    def _check_buffer(self) -> None:
        """Check the buffered actions and empty the buffer."""
        recent = self._recent[: self._buffered]
        if self._unchecked:
            # Mark each illegal action with the number of steps left in the buffer: the maximum
            # belongs to the first one. Bytes are the fastest dtype for this.
            outside = (
                recent > self._most
                if self._several
                else recent.ne(recent.clamp(0, self._choices[0] - 1))
            )
            illegal = outside.view(torch.uint8)
            left = illegal.mul_(self._to_go[-self._buffered :]).amax(0).to(torch.int64)
            found = (left > 0) & self._legal_steps.isinf()
            first = (self._buffered - left).clamp_max_(self._buffered - 1)
            torch.where(
                found,
                recent.gather(0, first.unsqueeze(0))[0].double(),
                self._illegal,
                out=self._illegal,
            )
            torch.where(
                found, self._steps + first.double(), self._legal_steps, out=self._legal_steps
            )
        self._steps += self._buffered
        self._buffered = self._unchecked = 0
