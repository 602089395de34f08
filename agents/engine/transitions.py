"""The transitions of a rollout or minibatch, in few tensors, so that gathering them is fast."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sweepd.agents.engine.bits import packed_size, unpack
from sweepd.agents.networks.distributions import distribution_of
from sweepd.agents.networks.recurrence import Memory, state_size
from sweepd.agents.networks.shape import Shape


@dataclass
class Transitions:
    """Transitions of G members, (G, rows) or (G, steps, num_envs) of them, written (G, …) here.

    Of recurrent shapes, the rows of a minibatch are whole sequences of `bptt` steps, step by step,
    the sequences next to each other.

    Attributes:
        shape: the program's shape.
        obs: (G, …, obs_dim), normalised; uint8 and not normalised where they are bytes.
        side: (G, …, columns + 3), the stored action, its log-probability, its normalised
            advantage, and its return.
        flags: (G, …, k) bool, first whether the transition is valid (`loses_transitions`), then
            whether an episode starts with it (`recurrent`).
        packed_masks: (G, …, bytes) uint8, the action masks in bits (`masked` shapes).
        memory: (2, G, sequences, state size), the recurrent states of actors and critics before
            each sequence.
    """

    shape: Shape
    obs: Tensor
    side: Tensor
    flags: Tensor
    packed_masks: Tensor
    memory: Tensor

    @classmethod
    def empty(
        cls, shape: Shape, size: tuple[int, ...], sequences: int, device: torch.device
    ) -> Transitions:
        """Allocate zeros for transitions of `size` (G, …) in `sequences` sequences."""
        columns = distribution_of(shape).columns(shape) + 3
        flags = shape.loses_transitions + bool(shape.recurrent)
        mask_bytes = packed_size(shape.action_dim) if shape.masked else 0
        return cls(
            shape,
            torch.zeros(*size, shape.obs_dim, dtype=shape.torch_dtype, device=device),
            torch.zeros(*size, columns, device=device),
            torch.zeros(*size, flags, dtype=torch.bool, device=device),
            torch.zeros(*size, mask_bytes, dtype=torch.uint8, device=device),
            torch.zeros(
                2, size[0], sequences, state_size(shape.recurrent, shape.net_width), device=device
            ),
        )

    @property
    def actions(self) -> Tensor:
        """(G, …, columns), as the distribution stores them."""
        return self.side[..., :-3]

    @property
    def log_probs(self) -> Tensor:
        """(G, …), of the actions under the policy that chose them."""
        return self.side[..., -3]

    @property
    def advantages(self) -> Tensor:
        """(G, …), normalised over the member's rollout."""
        return self.side[..., -2]

    @property
    def returns(self) -> Tensor:
        """(G, …), what the critic learns."""
        return self.side[..., -1]

    @property
    def masks(self) -> Tensor | None:
        """(G, …, action_dim), the options that were legal; None where all always are.

        They are unpacked by every read.
        """
        if not self.shape.masked:
            return None
        return unpack(self.packed_masks)[..., : self.shape.action_dim]

    @property
    def valid(self) -> Tensor | None:
        """(G, …), the transitions to learn from; None where all are."""
        if not self.shape.loses_transitions:
            return None
        return self.flags[..., 0]

    @property
    def starts(self) -> Tensor:
        """(G, …), where an episode starts (`recurrent` shapes)."""
        return self.flags[..., -1]

    def take(self, rows: Tensor, into: Transitions) -> None:
        """Copy the transitions `rows`, (n,) of all members', into others, n of them."""
        pairs = (
            (self.obs, into.obs),
            (self.side, into.side),
            (self.flags, into.flags),
            (self.packed_masks, into.packed_masks),
        )
        for source, target in pairs:
            columns = source.shape[-1]
            if columns:
                torch.index_select(source.view(-1, columns), 0, rows, out=target.view(-1, columns))

    def memories(self) -> tuple[Memory, Memory]:
        """Return what recurrent actors and critics start from at these transitions' sequences."""
        steps = (self.shape.slots, self.shape.bptt, -1)
        live = None if self.valid is None else self.valid.view(steps)
        actor, critic = (Memory(state, self.starts.view(steps), live) for state in self.memory)
        return actor, critic


class MinibatchIndex:
    """Which transitions of a rollout each minibatch holds.

    A rollout stores each member's transitions contiguously as (horizon + 1, num_envs); the last
    step holds the observation after the rollout, and is in no minibatch.

    Attributes:
        items: the number of items that an epoch permutes per member: sequences of `bptt` steps for
            recurrent shapes, else transitions.
    """

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.shape = shape
        self.items = shape.samples // shape.bptt if shape.recurrent else shape.samples
        stored = (shape.horizon + 1) * shape.num_envs
        self._first_row = torch.arange(shape.slots, device=device).view(-1, 1, 1) * stored

    def batches(self, order: Tensor) -> Tensor:
        """Return the rows of each gradient step, (steps, G * minibatch), for `gather`.

        The rest of a permutation that fills no minibatch is left out.

        Args:
            order: (G, epochs, items), a permutation per epoch.
        """
        shape = self.shape
        used = shape.samples // shape.minibatch * shape.minibatch
        if not shape.recurrent:
            rows = (order[:, :, :used] + self._first_row).reshape(shape.slots, -1, shape.minibatch)
            return rows.transpose(0, 1).reshape(-1, shape.slots * shape.minibatch)
        # Item k is the sequence of environment k % num_envs in block k // num_envs.
        order = order[:, :, : used // shape.bptt]
        block = order // shape.num_envs  # of bptt steps
        first = block * (shape.bptt * shape.num_envs) + order % shape.num_envs + self._first_row
        steps = torch.arange(shape.bptt, device=order.device).unsqueeze(1) * shape.num_envs
        # (G, steps, bptt, sequences): step by step, the sequences next to each other.
        sequences = first.reshape(shape.slots, -1, 1, shape.minibatch // shape.bptt)
        return (sequences + steps).transpose(0, 1).reshape(-1, shape.slots * shape.minibatch)

    def gather(self, rollout: Transitions, rows: Tensor, batch: Transitions) -> None:
        """Copy the transitions `rows` (G * minibatch,) of a rollout into `batch` (G, minibatch)."""
        rollout.take(rows, batch)
        if self.shape.recurrent:
            self._gather_memory(rollout.memory, rows, batch.memory)

    def _gather_memory(self, memory: Tensor, rows: Tensor, into: Tensor) -> None:
        """Copy the recurrent states before the sequences that start at the first step's rows."""
        shape = self.shape
        first = rows.view(shape.slots, shape.bptt, -1)[:, 0] - self._first_row[:, 0]
        sequence = first // (shape.num_envs * shape.bptt) * shape.num_envs + first % shape.num_envs
        # Actors and critics hold the states of the same sequences.
        sequences, columns = memory.shape[2:]
        network = torch.arange(2 * shape.slots, device=rows.device).view(2, -1, 1)
        index = (sequence + network * sequences).flatten()
        torch.index_select(memory.view(-1, columns), 0, index, out=into.view(-1, columns))
