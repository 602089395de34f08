"""Which actions of environments on the CPU are legal: their masks, and a check of actions.

Unlike in tensor environments, values may be read here: the data is on the host anyway.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sweepd.envs.core.faults import Fault, FaultLatch
from sweepd.envs.external.actions import ActionLayout
from sweepd.envs.external.sharded import ShardedEnvs

_SHOWN = 8  # numbers of a row's observation that a message contains


class ActionMasks:
    """The action masks that are part of the observations in the shared buffers."""

    def __init__(self, envs: ShardedEnvs) -> None:
        self._buffers, self._observations = envs.buffers, envs.observations
        self._starts = [0, *accumulate(envs.actions.choices)]
        rows, numbers = len(self._buffers.obs), min(_SHOWN, self._observations.size)
        self._player = torch.arange(rows) % envs.rows
        self.names = ("player", *(f"observation[{at}]" for at in range(numbers)))

    def options(self) -> NDArray[np.bool_]:
        """Return which options are legal: (rows, options) bool, all choices' side by side.

        All options of a row without an agent are legal.
        """
        return self._observations.flags(self._buffers.obs) | ~self._buffers.present[:, None]

    def some(self, options: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which choices have a legal option: (rows, choices) bool."""
        # Per choice, the "or" over its part of the columns.
        return np.logical_or.reduceat(options, self._starts[:-1], axis=1)

    def seen(self) -> Tensor:
        """Return what a message shows of the rows, by `names`: (names, rows) float64."""
        raw = torch.from_numpy(self._buffers.obs.view(np.uint8).reshape(len(self._player), -1))
        seen = self._observations.unpack(raw)[:, :_SHOWN]
        return torch.cat((self._player.double().unsqueeze(0), seen.double().t()))

    def of_choice(self, choice: int) -> Tensor:
        """Return (rows, options of that choice) bool."""
        return torch.from_numpy(self.options()[:, self._starts[choice] : self._starts[choice + 1]])


def action_masks(envs: ShardedEnvs) -> ActionMasks | None:
    """Return the environments' masks; None if they have none, so that every option is legal."""
    return ActionMasks(envs) if envs.observations.masked else None


class ActionCheck:
    """Replaces illegal actions and remembers the first one of every row.

    Legal are numbers from -1 to 1, or choices from 0 to the number of options - 1 that are not
    masked. Rows in which a choice has no legal option are remembered, too, with the player and the
    first numbers of its observation.
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
        cpu = torch.device("cpu")
        # Of an illegal action, its first illegal component and the value.
        self._latches = {"": FaultLatch(rows, 2, self._illegal, cpu)}
        if masks:
            # Of an empty mask, the choice and the row's state.
            self._latches["mask_"] = FaultLatch(rows, 1 + len(masks.names), self._empty, cpu)

    def legal(self, action: NDArray[Any]) -> NDArray[Any]:
        """Check one step's actions, (rows, components); replace illegal components by legal ones.

        Raises:
            RunError: A row has no legal option.
        """
        if self._sizes is None:
            fine = np.abs(action) <= 1.0  # False for NaN
        else:
            # As unsigned numbers, negative ones are too large: one comparison finds both.
            fine = action.astype(np.int64, copy=False).view(np.uint64) < self._sizes
        options = None
        if self._masks:
            options = self._masks.options()
            self._check_some(self._masks, self._masks.some(options))
            # Components that are out of range look up option 0; they stay illegal.
            fine &= np.take_along_axis(options, np.where(fine, action, 0) + self._starts, 1)
        self._latches[""].count()
        if b"\0" not in fine.tobytes():  # faster than `fine.all()`
            self._latches[""].all_legal()
            return action
        component = fine.argmin(1)
        value = np.take_along_axis(action, component[:, None], 1)[:, 0]
        found = torch.from_numpy(np.stack((component, value)).astype(np.float64))
        self._latches[""].record(torch.from_numpy(fine.all(1)), found)
        replacement = self._low if options is None else self._first(options)
        return np.where(fine, action, replacement).astype(action.dtype)

    def _check_some(self, masks: ActionMasks, some: NDArray[np.bool_]) -> None:
        """Record the rows in which a choice has no legal option, and raise RunError if any has."""
        latch = self._latches["mask_"]
        latch.count()
        if some.all():
            latch.all_legal()
            return
        choice = torch.from_numpy(some.argmin(1)).double().unsqueeze(0)
        latch.record(torch.from_numpy(some.all(1)), torch.cat((choice, masks.seen())))
        latch.check()

    def clear(self, rows: slice) -> None:
        """Forget the faults of these rows."""
        for latch in self._latches.values():
            latch.clear(rows)

    def latched(self) -> Tensor:
        """Return (rows,) bool: rows that had an illegal action, or no legal option."""
        return torch.stack([latch.latched() for latch in self._latches.values()]).any(0)

    def check(self) -> None:
        """Raise RunError naming the earliest empty mask or else illegal action, if there is any."""
        for latch in reversed(self._latches.values()):
            latch.check()

    def _illegal(self, fault: Fault) -> str:
        component, value = int(fault.values[0]), fault.values[1]
        return (
            f"row {fault.row} (member {fault.row // self._rows_per_member}) got an illegal action in "
            f"step {fault.step}: component {component} was {value:g}; it must be from "
            f"{self._low[component]:g} to {self._high[component]:g}"
            + (", and not masked" if self._masks else "")
        )

    def _empty(self, fault: Fault) -> str:
        assert self._masks is not None
        choice, *seen = fault.values
        shown = zip(self._masks.names, seen, strict=True)
        state = ", ".join(f"{name} {value:g}" for name, value in shown)
        return (
            f"row {fault.row} (member {fault.row // self._rows_per_member}) had no legal option for "
            f"choice {int(choice)} in step {fault.step}, its state: {state}; an environment must "
            "leave at least one"
        )

    def _first(self, options: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return (rows, components): the first legal option of each choice."""
        return np.stack([part.argmax(1) for part in np.split(options, self._starts[1:], axis=1)], 1)

    def state(self, rows: slice) -> dict[str, Tensor]:
        """Return these rows' faults as a flat dict of tensors."""
        return {
            f"{kind}{name}": tensor
            for kind, latch in self._latches.items()
            for name, tensor in latch.state(rows).items()
        }

    def set_state(self, rows: slice, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for kind, latch in self._latches.items():
            names = latch.state(rows)
            latch.set_state(rows, {name: state[f"{kind}{name}"] for name in names})
