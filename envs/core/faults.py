"""Illegal actions, latched on the device without asking it anything until somebody wants to know."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from envs.support.errors import RunError


class FaultLatch:
    """Remembers for every row the first step whose action was not finite or beyond 1, and the largest components since.

    Where every step is checked (`debug`), both belong to the same step.
    """

    def __init__(
        self, rows: int, rows_per_member: int, components: Sequence[str], device: torch.device
    ) -> None:
        self._rows_per_member = rows_per_member
        self._components = tuple(components)
        self._steps = 0.0  # the host's own count: it needs no device for that
        # Steps before the first illegal one, as `largest` doesn't forget.
        self._legal_steps = torch.zeros(rows, dtype=torch.float64, device=device)
        self._largest = torch.zeros(len(components), rows, dtype=torch.float64, device=device)
        self._row_size = torch.zeros(rows, dtype=torch.float64, device=device)

    def look(self, action: Tensor, scratch: Tensor) -> None:
        """One step's actions, component-first: (components, rows) float64, and as much room to work in."""
        self._steps += 1.0
        sizes = torch.abs(action, out=scratch)
        torch.maximum(self._largest, sizes, out=self._largest)  # a NaN is the largest, and stays
        self._legal_steps.add_(torch.amax(self._largest, 0, out=self._row_size).le_(1.0))

    def clear(self, rows: slice) -> None:
        """Forget the faults of these rows."""
        self._legal_steps[rows] = self._steps
        self._largest[:, rows] = 0.0

    def latched(self) -> Tensor:
        """(rows,) bool."""
        return self._legal_steps < self._steps

    def check(self) -> None:
        """Raise RunError naming the earliest fault. Synchronises."""
        legal, row = self._legal_steps.min(0)
        if float(legal) == self._steps:
            return
        at = int(row)
        size, component = self._largest[:, at].max(0)
        raise RunError(
            f"row {at} (member {at // self._rows_per_member}) got illegal actions from step {int(legal) + 1} on: "
            f"component {int(component)} ({self._components[int(component)]}) had the size {float(size)!r}; "
            "actions must be finite and in [-1, 1]"
        )

    def state(self, rows: slice) -> dict[str, Tensor]:
        """These rows' faults as a flat dict of tensors."""
        return {
            "fault_age": self._steps - self._legal_steps[rows],
            "fault_largest": self._largest[:, rows].clone(),
        }

    def set_state(self, rows: slice, state: dict[str, Tensor]) -> None:
        """Put back what `state` returned."""
        self._legal_steps[rows] = self._steps - state["fault_age"].to(self._legal_steps.device)
        self._largest[:, rows] = state["fault_largest"].to(self._largest.device)


class ChoiceLatch:
    """Remembers for every row the first step whose action was none of the choices 0 … `choices` - 1, and that action.

    choices: one number; or several, where an action consists of several choices ((rows, choices) instead of (rows,)),
    at most 254 each. It keeps the actions of a few steps and looks at them together.
    """

    _TOGETHER = 16

    def __init__(
        self, rows: int, rows_per_member: int, choices: int | Sequence[int], device: torch.device
    ) -> None:
        self._rows_per_member = rows_per_member
        self._several = not isinstance(choices, int)
        self._choices = (choices,) if isinstance(choices, int) else tuple(choices)
        shape = (rows, len(self._choices)) if self._several else (rows,)
        # float64 holds what a discrete action can be, and is what environments compute with. Several choices are kept
        # in bytes: they are many.
        kind = torch.uint8 if self._several else torch.float64
        self._recent = torch.zeros(self._TOGETHER, *shape, dtype=kind, device=device)
        self._places = self._recent.unbind(0)
        # For every row, since comparing a few numbers at a time is slow.
        self._most = (
            (torch.tensor(self._choices, device=device) - 1)
            .to(kind)
            .expand(rows, -1)
            .reshape(shape)
        )
        to_go = torch.arange(self._TOGETHER, 0, -1, dtype=torch.uint8, device=device)
        self._to_go = to_go.view(-1, *(1 for _ in shape))
        self._noted = 0  # of `recent`
        self._steps = 0  # before those
        # Steps before the first illegal one, or infinity; and what that was.
        self._legal_steps = torch.full(shape, torch.inf, dtype=torch.float64, device=device)
        self._illegal = torch.zeros(shape, dtype=torch.float64, device=device)

    def note(self, action: Tensor) -> Tensor:
        """One step's actions, int64; returns them as float64, or several choices as uint8 (what lies outside of
        0 … 254 as 255 or 254), good until the next steps' are noted.
        """
        if self._noted == self._TOGETHER:
            self._look()
        place = self._places[self._noted]
        self._noted += 1
        return place.copy_(action.clamp(-1, 254) if self._several else action)

    def clear(self, rows: slice) -> None:
        """Forget the faults of these rows."""
        self._look()
        self._legal_steps[rows] = torch.inf
        self._illegal[rows] = 0.0

    def latched(self) -> Tensor:
        """(rows,) bool."""
        self._look()
        latched = self._legal_steps.isfinite()
        return latched.any(-1) if self._several else latched

    def check(self) -> None:
        """Raise RunError naming the earliest fault. Synchronises."""
        self._look()
        legal, at = self._legal_steps.flatten().min(0)
        if bool(legal.isinf()):
            return
        row, choice = divmod(int(at), len(self._choices))
        which = f" for choice {choice}" if self._several else ""
        named, most = self._named(float(self._illegal.flatten()[at])), self._choices[choice] - 1
        raise RunError(
            f"row {row} (member {row // self._rows_per_member}) got an illegal action in step {int(legal) + 1}{which}: "
            f"{named}; actions must be whole numbers from 0 to {most}"
        )

    def state(self, rows: slice) -> dict[str, Tensor]:
        """These rows' faults as a flat dict of tensors."""
        self._look()
        return {
            "fault_age": self._steps - self._legal_steps[rows],
            "fault_action": self._illegal[rows].clone(),
        }

    def set_state(self, rows: slice, state: dict[str, Tensor]) -> None:
        """Put back what `state` returned."""
        self._look()
        self._legal_steps[rows] = self._steps - state["fault_age"].to(self._legal_steps.device)
        self._illegal[rows] = state["fault_action"].to(self._illegal.device)

    def _named(self, action: float) -> str:
        if self._several and action >= 254:
            return "254 or more" if action == 254 else "less than 0"
        return str(int(action))

    def _look(self) -> None:
        """Look at the actions noted since the last time."""
        recent = self._recent[: self._noted]
        if len(recent):
            # From the first illegal one on, how many there are; bytes are quickest to search.
            outside = (
                recent > self._most
                if self._several
                else recent.ne(recent.clamp(0, self._choices[0] - 1))
            )
            illegal = outside.view(torch.uint8)
            left = illegal.mul_(self._to_go[-self._noted :]).amax(0).to(torch.int64)
            found = (left > 0) & self._legal_steps.isinf()
            first = (self._noted - left).clamp_max_(self._noted - 1)
            torch.where(
                found,
                recent.gather(0, first.unsqueeze(0))[0].double(),
                self._illegal,
                out=self._illegal,
            )
            torch.where(
                found, self._steps + first.double(), self._legal_steps, out=self._legal_steps
            )
        self._steps += self._noted
        self._noted = 0
