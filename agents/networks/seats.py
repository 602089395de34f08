"""Policies per seat: two sets of weights per member, of which the seat to move uses one.

A column of the observations is 0 where the first set plays and 1 where the second does. Both sets
compute all rows of their member, and each row takes the outputs of its own set. Rows could be
sorted by seat instead, but how many belong to a seat is known on the device only, and no tensor's
shape may depend on it.

A row's gradient is that of its own set; for the other one, dL/d(output) is exactly 0 there, and so
is what follows from it. With S_k the rows of set k:

    z_i = f_k(x_i) for i in S_k,   dL/dθ_k = Σ_{i in S_k} dL/dz_i · dz_i/dθ_k
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from sweepd.agents.networks.shape import Shape

# Of an exported actor: a tensor with the seat's column.
SEAT_COLUMN = "seat_column"


def prefix_of(seat: int) -> str:
    """Return what the names of a seat's exported weights begin with."""
    return f"seat{seat}." if seat else ""


class Outputs(Protocol):
    """Where the outputs of a forward pass go, as in `sweepd.agents.networks.mlp.Activations`."""

    output: Tensor
    value: Tensor


class Seats:
    """What both sets of all members read and compute, for `rows` observations per member.

    The sets of a member follow each other: set k of member m is 2m + k.

    Attributes:
        obs: (2 * members, rows, obs_dim), the observations, once for each set.
        output: (2 * members, rows, action_dim), of the actors.
        value: (2 * members, rows, 1), of the critics.
    """

    def __init__(self, shape: Shape, rows: int, device: torch.device) -> None:
        assert shape.seat_column is not None  # `Shape` checks it
        self._column = shape.seat_column
        self.obs = torch.empty(shape.sets, rows, shape.obs_dim, device=device)
        self.output = torch.empty(shape.sets, rows, shape.action_dim, device=device)
        self.value = torch.empty(shape.sets, rows, 1, device=device)

    def read(self, obs: Tensor) -> Tensor:
        """Keep which set plays each row, and return the observations for each set.

        Args:
            obs: (members, rows, obs_dim), of which normalisers leave the seat's column as it is.
        """
        self._second = is_second(obs, self._column)
        _of_members(self.obs).copy_(obs.unsqueeze(1))
        return self.obs

    def choose(self, into: Outputs, *, actor: bool, critic: bool) -> None:
        """Write the outputs of each row's own set."""
        if actor:
            own_output(_of_members(self.output), self._second, into.output)
        if critic:
            own_output(_of_members(self.value), self._second, into.value)

    def divide(self, gradient: Tensor) -> Tensor:
        """Return the gradients of the sets' outputs, (2 * members, rows, n).

        Args:
            gradient: (members, rows, n), of the outputs that `choose` wrote.
        """
        second = self._second
        return torch.stack(
            (torch.where(second, 0.0, gradient), torch.where(second, gradient, 0.0)), 1
        ).flatten(0, 1)


def is_second(obs: Tensor, column: int) -> Tensor:
    """Return where the second set plays, (..., rows, 1) bool, for (..., rows, columns)."""
    return obs[..., column, None] > 0.5


def own_output(of_sets: Tensor, second: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the outputs of each row's own set, (members, ..., rows, n).

    Args:
        of_sets: (members, 2, ..., rows, n).
        second: as `is_second` returns it, broadcast.
        out: written, if given.
    """
    first, other = of_sets.unbind(1)
    return torch.where(second, other, first, out=out)


def _of_members(of_sets: Tensor) -> Tensor:
    """Return a view (members, 2, ...) of (2 * members, ...)."""
    return of_sets.view(-1, 2, *of_sets.shape[1:])
