"""The arrays that environments write into, side by side in one block of memory that processes can share."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.external.actions import ActionLayout
from envs.external.observations import ObservationLayout

_LINE = 64  # bytes: no two arrays share a line of the processor's cache


@dataclass(frozen=True)
class Buffers:
    """One entry per row.

    obs, final: structured rows of the observation's layout; the present one, and the last of the episode that the row
    ended last. action: (rows, width) as the action's layout says. reward: float32. terminated, truncated,
    present: bool.
    """

    obs: NDArray[Any]
    final: NDArray[Any]
    action: NDArray[Any]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    present: NDArray[np.bool_]

    def part(self, first: int, last: int) -> Buffers:
        """Views of the rows `first` … `last` - 1."""
        return replace(self, **{field.name: getattr(self, field.name)[first:last] for field in fields(self)})


def plan(rows: int, observations: ObservationLayout, actions: ActionLayout) -> tuple[dict[str, Any], int]:
    """Where each array lies, as (offset, shape, dtype) by name, and how many bytes they take together."""
    kinds: dict[str, tuple[tuple[int, ...], Any]] = {
        "obs": ((rows,), observations.dtype),
        "final": ((rows,), observations.dtype),
        "action": ((rows, actions.width), actions.dtype),
        "reward": ((rows,), np.dtype(np.float32)),
        **{name: ((rows,), np.dtype(np.bool_)) for name in ("terminated", "truncated", "present")},
    }
    places, offset = {}, 0
    for name, (shape, dtype) in kinds.items():
        places[name] = (offset, shape, dtype)
        offset += -(-int(np.prod(shape)) * dtype.itemsize // _LINE) * _LINE
    return places, max(offset, _LINE)


def lay(
    memory: mmap.mmap, rows: int, observations: ObservationLayout, actions: ActionLayout, start: int = 0
) -> Buffers:
    """The arrays in a block of memory, from byte `start` on."""
    places, _ = plan(rows, observations, actions)
    return Buffers(
        **{
            name: np.ndarray(shape, dtype, buffer=memory, offset=start + offset)
            for name, (offset, shape, dtype) in places.items()
        }
    )
