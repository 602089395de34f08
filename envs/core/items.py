"""How the bytes of an observation are laid out, for networks that look up items by id.

An item is a card, a piece or a unit: an id, and a few bytes of features such as its health. An
environment whose observations are groups of items (a hand, a row of the table) sets
`items` (`EnvSpec`); the networks then encode all items with one shared layer
(`sweepd.agents.networks.items`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain

from sweepd.envs.support.errors import InputError

LARGEST_VOCABULARY = 256  # ids are bytes


@dataclass(frozen=True)
class ItemGroup:
    """Places for items that belong together, such as a hand of ten cards.

    Attributes:
        name: Of the group, for messages.
        count: Places.
        features: Names of its items' features, some of `Items.features` in the same order.
    """

    name: str
    count: int
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class Items:
    """The columns of uint8 observations: groups of items, then plain columns.

    A group's items follow each other, each one as its id and then its features, a byte each. Id 0
    means that there is no item at that place; its features are ignored.

    Attributes:
        vocabulary: Number of ids, with 0: ids are 0 … vocabulary - 1.
        groups: The groups, in the order of their columns.
        features: Name and scale of each feature. Networks read a feature divided by its scale.
        plain: The scale of each plain column.
        facts: What is known of each id beforehand, such as a card's cost: (vocabulary, facts)
            numbers that networks read as they are, looked up by id. Row 0 is ignored.

    Raises:
        InputError: The layout is not valid.
    """

    vocabulary: int
    groups: tuple[ItemGroup, ...]
    features: tuple[tuple[str, float], ...] = ()
    plain: tuple[float, ...] = ()
    facts: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        if not 2 <= self.vocabulary <= LARGEST_VOCABULARY:
            raise InputError(
                f"items need a vocabulary of 2 to {LARGEST_VOCABULARY} ids, as ids are bytes and 0 "
                f"means no item; it is {self.vocabulary}"
            )
        names = [group.name for group in self.groups]
        if not names or len(set(names)) < len(names):
            raise InputError(f"items need groups of different names, and they are {names}")
        known = [name for name, _ in self.features]
        for group in self.groups:
            if group.count < 1:
                raise InputError(f"the items' group {group.name} has {group.count} places")
            if group.features != tuple(name for name in known if name in group.features):
                raise InputError(
                    f"the items' group {group.name} has the features {group.features}; they must "
                    f"be some of {known}, in that order"
                )
        if any(not scale > 0 or math.isinf(scale) for scale in self.scales()):
            raise InputError("the scales of items' features and of plain columns must be above 0")
        sizes = {len(row) for row in self.facts}
        if self.facts and (len(self.facts) != self.vocabulary or len(sizes) > 1):
            raise InputError(
                f"the items' facts must be one row for each of the {self.vocabulary} ids, of equal "
                f"lengths; there are {len(self.facts)} rows of lengths {sorted(sizes)}"
            )
        if not all(map(math.isfinite, chain.from_iterable(self.facts))):
            raise InputError("the items' facts must be finite")

    @property
    def places(self) -> int:
        """Places for items, in all groups."""
        return sum(group.count for group in self.groups)

    @property
    def columns(self) -> int:
        """Columns of an observation."""
        return len(self.scales())

    @property
    def fact_count(self) -> int:
        """Facts of each id."""
        return len(self.facts[0]) if self.facts else 0

    def scales(self) -> tuple[float, ...]:
        """Return what networks divide each column by; 1 for ids."""
        scale_of = dict(self.features)
        items = [
            (1.0, *(scale_of[name] for name in group.features)) * group.count
            for group in self.groups
        ]
        return (*chain.from_iterable(items), *self.plain)

    def id_columns(self) -> list[int]:
        """Return the column of each place's id."""
        widths = [
            width for group in self.groups for width in [1 + len(group.features)] * group.count
        ]
        return [sum(widths[:place]) for place in range(len(widths))]
