"""Which columns of an observation describe several things of a kind, such as a market's assets.

Networks can then read each of them by one shared layer (`sweepd.agents.networks.entities`).
"""

from __future__ import annotations

from dataclasses import dataclass

from sweepd.envs.support.errors import InputError


@dataclass(frozen=True)
class Entities:
    """Blocks of columns, each of which has the same columns of every entity, one after the other.

    Attributes:
        count: Number of entities.
        blocks: First column and number of columns per entity of each block: `count` times as many.

    Raises:
        InputError: There is no column, or one is in two blocks.
    """

    count: int
    blocks: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        own = self._every()
        if not own or min(own) < 0 or len(set(own)) < len(own):
            raise InputError(
                f"entities need columns, each in one block; they are {self.count} with the blocks "
                f"{self.blocks}"
            )

    @property
    def width(self) -> int:
        """Columns of an entity."""
        return sum(width for _, width in self.blocks)

    def columns(self, entity: int) -> list[int]:
        """Return an entity's columns, in the order of the blocks."""
        return [
            first + entity * width + column
            for first, width in self.blocks
            for column in range(width)
        ]

    def order(self, columns: int) -> list[int]:
        """Return the columns of all entities, one entity after the other, then the other columns.

        Args:
            columns: Of an observation.

        Raises:
            InputError: Entities have columns that observations lack.
        """
        own = self._every()
        if max(own) >= columns:
            raise InputError(
                f"entities have a column {max(own)}, and observations have {columns} columns"
            )
        return own + sorted(set(range(columns)) - set(own))

    def _every(self) -> list[int]:
        """Return the columns of all entities, one entity after the other."""
        return [column for entity in range(self.count) for column in self.columns(entity)]
