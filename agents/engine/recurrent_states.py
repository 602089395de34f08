"""Recurrent states of a rollout's rows, and the order in which gradient steps take its transitions.

Gradient steps take sequences of `bptt` transitions, each from the state before its first one. In
rows of one agent, these are the steps of the row. In rows of several players in turns, they are the
decisions of one player: each player has a state of its own, which its decisions alone advance, and
after the rollout the transitions are copied into another order, in which a player's decisions follow
each other. Networks, gradient steps and kernels are the same for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sweepd.agents.engine.transitions import Transitions
from sweepd.agents.networks.shape import Shape


class RecurrentStates:
    """The states of rows of one agent; without recurrent networks, they have no columns.

    Attributes:
        memory: (2, G, num_envs, players * state size), the states of actors and critics before the
            current observations.
        ending: (G, num_envs, state size), the states of critics at the ends of truncated episodes,
            and at last after the rollout.
        learned: the transitions from which minibatches are taken.
    """

    def __init__(self, shape: Shape, size: int, transitions: Transitions) -> None:
        """Set up states of zeros.

        Args:
            shape: the program's.
            size: the numbers of a state.
            transitions: of a rollout, (G, horizon + 1, num_envs).
        """
        self.shape, self.transitions = shape, transitions
        device = transitions.obs.device
        rows = shape.slots, shape.num_envs
        self.memory = torch.zeros(2, *rows, shape.players * size, device=device)
        self.ending = torch.zeros(*rows, size, device=device)
        self.learned = transitions

    def begin(self) -> None:
        """Begin a rollout."""

    def before(self, step: int, present: Tensor) -> Tensor:  # noqa: ARG002
        """Return the states before a step, (2, G, num_envs, size), of those who act in it.

        Args:
            step: its number.
            present: (G, num_envs), where there is an agent; (…, players), which player is to move.
        """
        shape = self.shape
        if step % shape.bptt == 0:  # a sequence starts: keep the state before it
            first = step // shape.bptt * shape.num_envs
            self.learned.memory[:, :, first : first + shape.num_envs] = self.memory
        return self.memory

    def after(self, states: Sequence[Tensor]) -> None:
        """Store the states after a step, (G, num_envs, size) of actors and of critics."""
        self.memory.copy_(torch.stack(list(states)))

    def end(self, step: int, terminated: Tensor, truncated: Tensor) -> None:
        """Zero the states of episodes that ended with a step, (G, num_envs) bool.

        The state of truncated episodes is first copied to `ending`, for the value of their end.
        """
        done = terminated | truncated
        self.transitions.starts[:, step + 1] = done
        torch.where(truncated.unsqueeze(-1), self.memory[1], self.ending, out=self.ending)
        self.memory.masked_fill_(done.unsqueeze(-1), 0.0)

    def finish(self, present: Tensor) -> None:  # noqa: ARG002
        """Copy the states of critics after the rollout to `ending`. present: of who acts next."""
        self.ending.copy_(self.memory[1])

    def order(self) -> None:
        """Bring the transitions, whose advantages are known, into the order of `learned`."""


class PlayerStates(RecurrentStates):
    """The states of rows of several players, which act in turns.

    A row's places in `learned` are divided into blocks of `bptt`, one for each sequence. A player
    takes the next free block when it decides first, and whenever its block is full. With d_p
    decisions of player p, these are Σ_p ceil(d_p / bptt) ≤ horizon / bptt + players - 1 blocks.
    Places that stay free hold a transition that is not valid.
    """

    def __init__(self, shape: Shape, size: int, transitions: Transitions) -> None:
        super().__init__(shape, size, transitions)
        device = transitions.obs.device
        slots, envs = shape.slots, shape.num_envs
        steps = learned_shape(shape).horizon
        stored = (slots, steps + 1, envs)  # one more step, as in a rollout
        self.learned = Transitions.empty(shape, stored, steps // shape.bptt * envs, device)
        self._size = size

        def numbers(*last: int) -> Tensor:
            return torch.zeros(slots, *last, dtype=torch.int64, device=device)

        self._mover = numbers(envs, 1)
        # By row: the place of each player's next decision (a multiple of `bptt`: it needs a block),
        # and the first block that is free.
        self._next, self._free = numbers(envs, shape.players), numbers(envs, 1)
        self._places = numbers(shape.horizon, envs)  # of the decisions so far
        # Players whose next decision is their first one in the episode.
        self._fresh = torch.zeros_like(self._next, dtype=torch.bool)
        self._env = torch.arange(envs, device=device)
        self._step = torch.arange(shape.horizon, device=device).view(1, -1, 1)
        first = torch.arange(slots, device=device) * (shape.horizon + 1) * envs
        self._first = first.view(-1, 1, 1)

    def begin(self) -> None:
        self._next.zero_()
        self._free.zero_()
        # Those that are in an episode's beginning have states of zeros.
        self._fresh.zero_()
        # Networks also run from the states of blocks that stay free, so these must be finite.
        self.learned.memory.zero_()

    def before(self, step: int, present: Tensor) -> Tensor:
        shape, mover = self.shape, present.long().argmax(-1, keepdim=True)
        self._mover = mover
        states = self._own(mover)
        place = self._next.gather(-1, mover)
        starts = place % shape.bptt == 0
        place = torch.where(starts, self._free * shape.bptt, place)
        self._free += starts
        self._next.scatter_(-1, mover, place + 1)
        self._places[:, step] = place.squeeze(-1)
        # Sequence b * num_envs + e is block b of row e.
        kept = self.learned.memory
        sequence = place // shape.bptt * shape.num_envs + self._env.unsqueeze(-1)
        index = sequence.expand(2, *sequence.shape[:-1], self._size)
        kept.scatter_(2, index, torch.where(starts, states, kept.gather(2, index)))
        self.transitions.starts[:, step] = self._fresh.gather(-1, mover).squeeze(-1)
        self._fresh.scatter_(-1, mover, False)
        return states

    def after(self, states: Sequence[Tensor]) -> None:
        own = torch.stack(list(states)).unsqueeze(3)
        self._by_player().scatter_(3, self._index(self._mover), own)

    def end(self, step: int, terminated: Tensor, truncated: Tensor) -> None:  # noqa: ARG002
        """See `RecurrentStates.end`. Such episodes are never truncated."""
        self._fresh |= terminated.unsqueeze(-1)
        self.memory.masked_fill_(terminated.unsqueeze(-1), 0.0)

    def finish(self, present: Tensor) -> None:
        self.ending.copy_(self._own(present.long().argmax(-1, keepdim=True))[1])

    def order(self) -> None:
        steps = self.learned.obs.shape[1]
        size = self._places.shape[0], steps, self._places.shape[2]
        taken = torch.zeros(size, dtype=torch.bool, device=self._places.device)
        taken.scatter_(1, self._places, True)
        # Free places get a row's first transition, which is no valid one there.
        step = torch.zeros(size, dtype=torch.int64, device=self._places.device)
        step.scatter_(1, self._places, self._step.expand_as(self._places))
        rows = self._first + step * self.shape.num_envs + self._env
        self.transitions.take(rows.flatten(), self.learned)
        valid = self.learned.valid
        assert valid is not None
        valid &= taken

    def _by_player(self) -> Tensor:
        """Return a view of all states, (2, G, num_envs, players, size)."""
        return self.memory.view(*self.memory.shape[:-1], self.shape.players, self._size)

    def _index(self, mover: Tensor) -> Tensor:
        """Return the index of players (G, num_envs, 1) among all states, for one of each row."""
        return mover.unsqueeze(-1).expand(2, *mover.shape, self._size)

    def _own(self, mover: Tensor) -> Tensor:
        """Return the states of players (G, num_envs, 1), (2, G, num_envs, size)."""
        return self._by_player().gather(3, self._index(mover)).squeeze(3)


def recurrent_states(shape: Shape, size: int, transitions: Transitions) -> RecurrentStates:
    """Return the recurrent states of a rollout. Arguments as of `RecurrentStates`."""
    several = shape.players > 1 and shape.recurrent
    return (PlayerStates if several else RecurrentStates)(shape, size, transitions)


def learned_shape(shape: Shape) -> Shape:
    """Return the shape of the transitions from which minibatches are taken.

    It differs where a rollout keeps them in another order: of players in turns with memory
    (`PlayerStates`), and of environments that are stepped as they are ready.
    """
    shape = replace(shape, num_envs=shape.learned_envs, async_envs=0)
    if not shape.recurrent:
        return shape
    return replace(shape, horizon=shape.horizon + (shape.players - 1) * shape.bptt)
