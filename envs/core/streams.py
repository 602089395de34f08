"""Random streams, one per member: a member's numbers do not depend on the rest of the batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from sweepd.envs.core import philox
from sweepd.envs.core.gpu import numbers_on
from sweepd.envs.core.native import RANDOM, STREAM
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.upload import upload


def member_seeds(
    seed: int | Sequence[int | None] | None, members: int, *, seeded: bool
) -> list[int | None]:
    """Return one seed per member for `VecEnv.reset`; None keeps a member's stream.

    Args:
        seed: a seed from which all are derived, one seed per member, or None.
        members: number of members.
        seeded: whether any stream has had a seed. If not, and `seed` is None, seeds come from the
            operating system.
    """
    if isinstance(seed, int):
        return [derive_seed("env", seed, member) for member in range(members)]
    if seed is not None:
        return list(seed)
    if seeded:
        return [None] * members
    return [int(np.random.SeedSequence().generate_state(1)[0]) for _ in range(members)]


class Streams:
    """Random numbers of several members. A member without a seed is an empty slot: it gets zeros.

    A member's numbers depend only on its own seed and its own earlier draws, and are the same on all
    devices. A draw begins with the next group of words (`sweepd.envs.core.philox`).
    """

    def __init__(self, members: int, device: torch.device | str = "cpu") -> None:
        self.members = members
        self.device = torch.device(device)
        # On the host; see `philox`.
        self._streams = np.zeros((members, len(STREAM.kinds)), dtype=np.int64)

    def seed(self, member: int, seed: int | None) -> None:
        """Restart the member's stream from a seed of 64 bits; None makes it an empty slot."""
        key = 0 if seed is None else (seed + 2**63) % 2**64 - 2**63
        self._streams[member] = key, 0, seed is not None

    def seeded(self, member: int) -> bool:
        """Whether the member has a stream."""
        return bool(self._streams[member, 2])

    def uniform(
        self,
        steps: int,
        n: int,
        *,
        dtype: torch.dtype | None = None,
        members: slice = slice(None),
        used: Sequence[int] | None = None,
    ) -> Tensor:
        """Return (steps, members, n) numbers in [0, 1).

        Args:
            steps: number of steps.
            n: numbers of each member and step.
            dtype: float32, float64, or None: float32 numbers, in torch's default type.
            members: those that draw.
            used: of each of them, how many of the steps it takes; None: all. The others must not be
                used, since its next draw begins after those that it takes.
        """
        drawn = dtype or torch.float32
        out = torch.empty(steps, self._count(members), n, dtype=drawn, device=self.device)
        taken = [steps] * out.shape[1] if used is None else used
        self._numbers().uniform(self._next(members, [n * own for own in taken], drawn), out)
        return out.to(dtype or torch.get_default_dtype())

    def normal(self, steps: int, n: int) -> Tensor:
        """Return (steps, members, n) standard normal numbers: float32, in torch's default type."""
        out = torch.empty(steps, self.members, n, dtype=torch.float32, device=self.device)
        taken = [steps * n] * self.members
        self._numbers().normal(self._next(slice(None), taken, out.dtype), out)
        return out.to(torch.get_default_dtype())

    def permutations(self, k: int, size: int) -> Tensor:
        """Return (members, k, size) int64: `k` permutations of 0 … size-1 per member.

        Zeros for an empty slot.
        """
        out = torch.empty(self.members, k, size, dtype=torch.int64, device=self.device)
        taken = [k * size] * self.members
        self._numbers().permutations(self._next(slice(None), taken, out.dtype), out)
        return out

    def member_uniform(
        self, member: int, *shape: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """Return `shape` numbers in [0, 1) from one member's stream; zeros for an empty slot."""
        own = slice(member, member + 1)
        return self.uniform(1, math.prod(shape), dtype=dtype, members=own).view(shape)

    def state(self, member: int) -> Tensor:
        """Return the member's key and next group, (2,) int64; empty for an empty slot."""
        return torch.from_numpy(self._streams[member, : 2 if self.seeded(member) else 0].copy())

    def set_state(self, member: int, state: Tensor) -> None:
        """Restore a stream from the state of any slot.

        Raises:
            InputError: an earlier version of sweepd, with other random numbers, made the state.
        """
        if state.dtype != torch.int64 or state.numel() not in (0, 2):
            raise InputError(
                "The random numbers of a member are those of an earlier version of sweepd, which "
                "this one cannot continue."
            )
        self._streams[member] = (*state.tolist(), 1) if state.numel() else 0

    def _count(self, members: slice) -> int:
        return len(range(self.members)[members])

    def _next(self, members: slice, taken: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return the streams of a draw on the device, after which they go on behind it.

        Args:
            members: those that draw.
            taken: how many numbers each of them takes.
            dtype: of the numbers.
        """
        streams = self._streams[members]
        drawn = torch.from_numpy(streams.copy())
        streams[:, 1] += [philox.groups_of(count, dtype) for count in taken]
        return upload(drawn, self.device)

    def _numbers(self) -> philox.Numbers:
        return RANDOM.library(self.device) or numbers_on(self.device) or philox


class NextNumbers:
    """Numbers drawn ahead, of which every row takes its next ones when it needs them.

    Attributes:
        pool: (rounds, *shape, rows), the numbers drawn ahead.
        turn: (rows,) int64, the round of each row's next ones. It may be past the last round in rows
            that need no others.
    """

    def __init__(
        self,
        *shape: int,
        rows: int,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        self.pool = torch.zeros(1, *shape, rows, dtype=dtype, device=device)
        self.turn = torch.zeros(rows, dtype=torch.int64, device=device)
        self._rounds = np.zeros(rows, dtype=np.int64)  # drawn, of each row

    def put(self, rows: slice, numbers: Tensor, rounds: np.ndarray | None = None) -> None:
        """Give rows other numbers, from the first one on.

        Args:
            rows: whose numbers.
            numbers: (rounds, *shape, those rows).
            rounds: how many of the rounds are each row's; None: all.
        """
        missing = len(numbers) - len(self.pool)
        if missing > 0:
            more = self.pool.new_zeros(missing, *self.pool.shape[1:])
            self.pool = torch.cat([self.pool, more])
        self.pool[: len(numbers), ..., rows] = upload(numbers, self.pool.device)
        self.turn[rows] = 0
        self._rounds[rows] = len(numbers) if rounds is None else rounds

    def next(self) -> Tensor:
        """Return each row's next numbers, (*shape, rows); undefined where none are left."""
        turn = self.turn.clamp_max(len(self.pool) - 1)
        return self.pool.gather(0, turn.expand(1, *self.pool.shape[1:]))[0]

    def state(self, rows: slice) -> dict[str, Tensor]:
        """Return the numbers and turns of a member's rows as a flat dict of tensors."""
        rounds = int(self._rounds[rows].max())
        return {"pool": self.pool[:rounds, ..., rows], "turn": self.turn[rows]}

    def set_state(self, rows: slice, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.put(rows, state["pool"])
        self.turn[rows] = state["turn"].to(self.turn.device)
