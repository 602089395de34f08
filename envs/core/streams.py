"""Random numbers: one stream per member, so that a member's numbers do not depend on other members in the batch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor


def derive_seed(*parts: int | str) -> int:
    """A seed of 63 bits from numbers and names: the first 8 bytes of a SHA-256 over them, without the sign bit.

    The parts are joined with their types and lengths, so ("a", "b") and ("ab",), or 1 and "1", give different seeds.
    """
    digest = hashlib.sha256()
    for part in parts:
        text = str(part)
        digest.update(f"{type(part).__name__}:{len(text)}:{text};".encode())
    return int.from_bytes(digest.digest()[:8], "big") >> 1


def member_seeds(
    seed: int | Sequence[int | None] | None, members: int, *, seeded: bool
) -> list[int | None]:
    """One seed per member, as `VecEnv.reset` is given them: from one seed, or as they stand. None keeps a stream.

    seeded: whether any stream had a seed before. Where none was ever given at all, they come from the operating system.
    """
    if isinstance(seed, int):
        return [derive_seed("env", seed, member) for member in range(members)]
    if seed is not None:
        return list(seed)
    if seeded:
        return [None] * members
    return [int(np.random.SeedSequence().generate_state(1)[0]) for _ in range(members)]


class Streams:
    """One `torch.Generator` per member. A member without a seed is an empty slot: it draws nothing and gets zeros.

    What a member draws depends on its own seed and its own earlier draws (and on the device's type), on nothing else.
    """

    def __init__(self, members: int, device: torch.device | str = "cpu") -> None:
        self.members = members
        self.device = torch.device(device)
        self._generators: list[torch.Generator | None] = [None] * members

    def seed(self, member: int, seed: int | None) -> None:
        """Start the member's stream anew; None makes it an empty slot."""
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
        """`shape` numbers in [0, 1) from that member's stream alone; zeros for an empty slot."""
        generator = self._generators[member]
        if generator is None:
            return torch.zeros(shape, dtype=dtype, device=self.device)
        return torch.rand(shape, dtype=dtype, generator=generator, device=self.device)

    def uniform(self, horizon: int, n: int) -> Tensor:
        """(horizon, members * n) float32 in [0, 1), `n` columns per member, member after member."""
        return self._side_by_side(
            (horizon, n), lambda g: torch.rand((horizon, n), generator=g, device=self.device)
        )

    def normal(self, horizon: int, n: int, d: int) -> Tensor:
        """(horizon, members * n, d) float32, standard normal, `n` rows per member, member after member."""
        shape = (horizon, n, d)
        return self._side_by_side(
            shape, lambda g: torch.randn(shape, generator=g, device=self.device)
        )

    def permutations(self, k: int, size: int) -> Tensor:
        """(members, k, size) int64: `k` random orders of 0 … size-1 per member (all zeros in an empty slot)."""
        out = torch.zeros((self.members, k, size), dtype=torch.int64, device=self.device)
        for member, generator in enumerate(self._generators):
            if generator is not None:
                for row in out[member]:
                    torch.randperm(size, generator=generator, out=row)
        return out

    def state(self, member: int) -> Tensor:
        """The member's stream as bytes (uint8, CPU); no bytes for an empty slot."""
        generator = self._generators[member]
        return (
            torch.empty(0, dtype=torch.uint8)
            if generator is None
            else generator.get_state().clone()
        )

    def set_state(self, member: int, state: Tensor) -> None:
        """Go on where `state` was taken, whichever slot it came from."""
        if state.numel() == 0:
            self._generators[member] = None
            return
        generator = torch.Generator(device=self.device)
        generator.set_state(state.cpu().contiguous())
        self._generators[member] = generator

    def _side_by_side(
        self, shape: tuple[int, ...], draw: Callable[[torch.Generator], Tensor]
    ) -> Tensor:
        """Each member's draw of `shape`, put side by side along the second dimension."""
        # Drawn into a tensor of the member's own: the generator's path depends on the layout that it fills.
        parts = [
            torch.zeros(shape, device=self.device) if generator is None else draw(generator)
            for generator in self._generators
        ]
        return torch.cat(parts, dim=1)
