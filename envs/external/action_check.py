"""Which actions of environments on the CPU are legal: their masks, and a check of actions.

Unlike in tensor environments, values may be read here: the data is on the host anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sweepd.envs.core.mask_faults import MaskLatch
from sweepd.envs.external.actions import ActionLayout
from sweepd.envs.external.sharded import ShardedEnvs
from sweepd.envs.support.errors import RunError

_SHOWN = 8  # numbers of a row's observation that a message contains


class ActionMasks:
    """The action masks that are part of the observations in the shared buffers.

    Attributes:
        latch: Remembers rows without any legal option, with the player and the first numbers of its
            observation.
    """

    def __init__(self, envs: ShardedEnvs, rows_per_member: int) -> None:
        self._buffers, self._observations = envs.buffers, envs.observations
        self._starts = [0, *accumulate(envs.actions.choices)]
        rows = len(self._buffers.obs)
        self._player = torch.arange(rows)[:, None] % envs.rows
        names = [
            "player",
            *(f"observation[{at}]" for at in range(min(_SHOWN, self._observations.size))),
        ]
        self.latch = MaskLatch(rows, rows_per_member, names, torch.device("cpu"))

    def options(self) -> NDArray[np.bool_]:
        """Return which options are legal, and latch the rows in which a choice has none.

        Returns:
            (rows, options) bool, the options of all choices side by side. All options of a row
            without an agent are legal.
        """
        options = self._observations.flags(self._buffers.obs) | ~self._buffers.present[:, None]
        # Per choice, whether any option is legal: the "or" over its part of the columns.
        some = np.logical_or.reduceat(options, self._starts[:-1], axis=1)
        if not some.all():
            raw = torch.from_numpy(self._buffers.obs.view(np.uint8).reshape(len(options), -1))
            seen = self._observations.unpack(raw)[:, :_SHOWN]
            for choice in range(some.shape[1]):
                state = torch.cat((self._player.double(), seen.double()), 1)
                self.latch.record(torch.from_numpy(some[:, choice : choice + 1]), choice, state)
        return options

    def of_choice(self, choice: int) -> Tensor:
        """Return (rows, options of that choice) bool."""
        return torch.from_numpy(self.options()[:, self._starts[choice] : self._starts[choice + 1]])


def action_masks(envs: ShardedEnvs, rows_per_member: int) -> ActionMasks | None:
    """Return the environments' masks; None if they have none, so that every option is legal."""
    return ActionMasks(envs, rows_per_member) if envs.observations.masked else None


@dataclass(frozen=True)
class _Fault:
    age: int  # steps of the row before it
    component: int
    value: float


class ActionCheck:
    """Replaces illegal actions and remembers the first one of every row.

    Legal are numbers from -1 to 1, or choices from 0 to the number of options - 1 that are not
    masked.
    """

    def __init__(
        self,
        rows: int,
        rows_per_member: int,
        actions: ActionLayout,
        masks: ActionMasks | None = None,
    ) -> None:
        self._masks = masks
        self._rows_per_member, self._low, self._high = rows_per_member, actions.low, actions.high
        self._sizes = np.array(actions.choices, np.uint64) if actions.discrete else None
        # Where each choice's options begin among those of all choices.
        self._starts = np.cumsum((0, *actions.choices[:-1]))
        self._began = np.zeros(rows, dtype=np.int64)  # value of `_steps` when the row was cleared
        self._steps = 0
        self._found: dict[int, _Fault] = {}

    def legal(self, action: NDArray[Any]) -> NDArray[Any]:
        """Check one step's actions, (rows, components); replace illegal components by legal ones.

        Raises:
            RunError: A row has no legal option.
        """
        self._steps += 1
        if self._sizes is None:
            fine = np.abs(action) <= 1.0  # False for NaN
        else:
            # As unsigned numbers, negative ones are too large: one comparison finds both.
            fine = action.astype(np.int64, copy=False).view(np.uint64) < self._sizes
        options = None
        if self._masks:
            options = self._masks.options()
            self._masks.latch.check()
            self._masks.latch.advance()
            # Components that are out of range look up option 0; they stay illegal.
            fine &= np.take_along_axis(options, np.where(fine, action, 0) + self._starts, 1)
        if b"\0" not in fine.tobytes():  # faster than `fine.all()`
            return action
        for row in np.flatnonzero(~fine.all(1)).tolist():
            component = int(np.flatnonzero(~fine[row])[0])
            age = self._steps - 1 - int(self._began[row])
            self._found.setdefault(row, _Fault(age, component, float(action[row, component])))
        replacement = self._low if options is None else self._first(options)
        return np.where(fine, action, replacement).astype(action.dtype)

    def clear(self, rows: slice) -> None:
        """Forget the faults of these rows."""
        self._began[rows] = self._steps
        self._found = {
            row: fault for row, fault in self._found.items() if not rows.start <= row < rows.stop
        }
        if self._masks:
            self._masks.latch.clear(rows)

    def latched(self) -> Tensor:
        """Return (rows,) bool: rows that had an illegal action, or no legal option."""
        found = torch.zeros(len(self._began), dtype=torch.bool)
        found[list(self._found)] = True
        return found | self._masks.latch.latched() if self._masks else found

    def check(self) -> None:
        """Raise RunError naming the earliest fault, if there is any."""
        if self._masks:
            self._masks.latch.check()
        if not self._found:
            return
        row, fault = min(
            self._found.items(), key=lambda item: (item[1].age + int(self._began[item[0]]), item[0])
        )
        low, high = self._low[fault.component], self._high[fault.component]
        raise RunError(
            f"row {row} (member {row // self._rows_per_member}) got an illegal action in its step "
            f"{fault.age + 1}: component {fault.component} was {fault.value:g}; it must be from "
            f"{low:g} to {high:g}" + (", and not masked" if self._masks else "")
        )

    def _first(self, options: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return (rows, components): the first legal option of each choice."""
        return np.stack([part.argmax(1) for part in np.split(options, self._starts[1:], axis=1)], 1)

    def state(self, rows: slice) -> dict[str, Tensor]:
        """Return these rows' faults as a flat dict of tensors."""
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
        """Restore what `state` returned."""
        self.clear(rows)
        self._began[rows] = self._steps - state["age"].numpy()
        if self._masks:
            self._masks.latch.set_state(rows, state)
        faults = zip(
            range(rows.start, rows.stop),
            *(state[name].tolist() for name in ("fault_age", "fault_component", "fault_value")),
            strict=True,
        )
        self._found |= {
            row: _Fault(age, component, value) for row, age, component, value in faults if age >= 0
        }
