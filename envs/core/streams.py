"""Random streams, one per member: a member's numbers do not depend on the rest of the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from sweepd.envs.core.seeds import derive_seed
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
    """One `torch.Generator` per member. A member without a seed is an empty slot: it gets zeros.

    A member's numbers depend only on its own seed, its own earlier draws and the device type.
    """

    def __init__(self, members: int, device: torch.device | str = "cpu") -> None:
        self.members = members
        self.device = torch.device(device)
        self._generators: list[torch.Generator | None] = [None] * members

    def seed(self, member: int, seed: int | None) -> None:
        """Restart the member's stream from a seed; None makes it an empty slot."""
        if seed is None:
            self._generators[member] = None
            return
        generator = torch.Generator(device=self.device)
        generator.manual_seed(seed)
        self._generators[member] = generator

    def seeded(self, member: int) -> bool:
        """Whether the member has a stream."""
        return self._generators[member] is not None

    def member_uniform(
        self, member: int, *shape: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """Return `shape` numbers in [0, 1) from one member's stream; zeros for an empty slot."""
        generator = self._generators[member]
        if generator is None:
            return torch.zeros(shape, dtype=dtype, device=self.device)
        return torch.rand(shape, dtype=dtype, generator=generator, device=self.device)

    def uniform(self, horizon: int, n: int) -> Tensor:
        """Return (horizon, members * n) float32 in [0, 1): `n` columns per member, in order."""
        return self._side_by_side(
            (horizon, n), lambda g: torch.rand((horizon, n), generator=g, device=self.device)
        )

    def normal(self, horizon: int, n: int, d: int) -> Tensor:
        """Return (horizon, members * n, d) float32, standard normal: `n` rows per member."""
        shape = (horizon, n, d)
        return self._side_by_side(
            shape, lambda g: torch.randn(shape, generator=g, device=self.device)
        )

    def permutations(self, k: int, size: int) -> Tensor:
        """Return (members, k, size) int64: `k` permutations of 0 … size-1 per member.

        Zeros for an empty slot.
        """
        out = torch.zeros((self.members, k, size), dtype=torch.int64, device=self.device)
        if self.device.type != "cpu":
            return self._sorted_permutations(out)
        for member, generator in enumerate(self._generators):
            if generator is not None:
                for row in out[member]:
                    torch.randperm(size, generator=generator, out=row)
        return out

    def _sorted_permutations(self, keys: Tensor) -> Tensor:
        """Return permutations as the order of random 63-bit keys: one sort for all members.

        On a GPU, each call of `randperm` sorts too, in several launches. Two equal keys are
        practically impossible, and keep their order.

        Args:
            keys: (members, k, size) zeros, overwritten.
        """
        for member, generator in enumerate(self._generators):
            if generator is not None:
                keys[member].random_(generator=generator)
        order = keys.argsort(dim=-1, stable=True)
        for member, generator in enumerate(self._generators):
            if generator is None:
                order[member] = 0
        return order

    def state(self, member: int) -> Tensor:
        """Return the member's generator state (uint8, CPU); empty for an empty slot."""
        generator = self._generators[member]
        return (
            torch.empty(0, dtype=torch.uint8)
            if generator is None
            else generator.get_state().clone()
        )

    def set_state(self, member: int, state: Tensor) -> None:
        """Restore a stream from the state of any slot."""
        if state.numel() == 0:
            self._generators[member] = None
            return
        generator = torch.Generator(device=self.device)
        generator.set_state(state.cpu().contiguous())
        self._generators[member] = generator

    def _side_by_side(
        self, shape: tuple[int, ...], draw: Callable[[torch.Generator], Tensor]
    ) -> Tensor:
        """Concatenate each member's draw of `shape` along the second dimension."""
        # Each member draws into a tensor of its own, because the sequence of numbers depends on
        # the memory layout that the generator fills.
        parts = [
            torch.zeros(shape, device=self.device) if generator is None else draw(generator)
            for generator in self._generators
        ]
        return torch.cat(parts, dim=1)


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

    def put(self, rows: slice, numbers: Tensor) -> None:
        """Give rows other numbers, (rounds, *shape, those rows), from the first one on."""
        missing = len(numbers) - len(self.pool)
        if missing > 0:
            more = self.pool.new_zeros(missing, *self.pool.shape[1:])
            self.pool = torch.cat([self.pool, more])
        self.pool[: len(numbers), ..., rows] = upload(numbers, self.pool.device)
        self.turn[rows] = 0
        self._rounds[rows] = len(numbers)

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
