"""The random numbers of games, drawn ahead from their members' streams."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sweepd.envs.core.streams import Streams


class DrawnAhead:
    """Uniform random numbers for the next steps of all games, in a few parts per step.

    A member's numbers come from its own stream, so they do not depend on the other members. G is
    the number of games.

    Attributes:
        numbers: (steps, G, columns of all parts) float64 in [0, 1).
    """

    def __init__(
        self, members: int, games_per_member: int, parts: Sequence[int], device: torch.device
    ) -> None:
        """Make empty slots, whose numbers are zeros.

        Args:
            members: Number of members.
            games_per_member: Games of each.
            parts: The columns of each part.
            device: Device of the streams and the numbers.
        """
        self._members, self._games_per_member, self._parts = members, games_per_member, [*parts]
        self._streams = Streams(members, device)
        self.numbers = torch.zeros(
            0, members * games_per_member, sum(parts), dtype=torch.float64, device=device
        )
        self._at = 0  # index of the next step

    @property
    def left(self) -> int:
        """Steps that are drawn and not used."""
        return len(self.numbers) - self._at

    def draw(self, steps: int) -> None:
        """Draw the numbers of the next steps, in place of those that are left."""
        self.numbers = torch.cat([self._drawn(own, steps) for own in range(self._members)], 1)
        self._at = 0

    def next(self) -> tuple[Tensor, ...]:
        """Return the parts of the next step, (G, columns) each."""
        if not self.left:
            self.draw(1)
        self._at += 1
        return self._split(self.numbers[self._at - 1])

    def once(self, member: int) -> tuple[Tensor, ...]:
        """Return the parts of a step for one member; zeros in the games of others."""
        numbers = self.numbers.new_zeros(self.numbers.shape[1:])
        numbers[self._games(member)] = self._drawn(member, 1)[0]
        return self._split(numbers)

    def replace(self, member: int) -> None:
        """Draw again what is left of a member, after a change of its stream."""
        self.numbers[self._at :, self._games(member)] = self._drawn(member, self.left)

    def seed(self, member: int, seed: int) -> None:
        """Restart a member's stream. What was drawn ahead stays."""
        self._streams.seed(member, seed)

    def seeded(self, member: int) -> bool:
        """Whether the member has a stream."""
        return self._streams.seeded(member)

    def state(self, member: int) -> Tensor:
        """Return a member's stream, see `Streams.state`."""
        return self._streams.state(member)

    def set_state(self, member: int, state: Tensor) -> None:
        """Restore a stream, and draw again what is left of the member."""
        self._streams.set_state(member, state)
        self.replace(member)

    def _drawn(self, member: int, steps: int) -> Tensor:
        size = steps, self._games_per_member, sum(self._parts)
        return self._streams.member_uniform(member, *size)

    def _games(self, member: int) -> slice:
        own = self._games_per_member
        return slice(member * own, (member + 1) * own)

    def _split(self, numbers: Tensor) -> tuple[Tensor, ...]:
        return numbers.split_with_sizes(self._parts, 1)
