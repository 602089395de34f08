"""Mixtures of scenarios: every game is in one of several, drawn by their shares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sweepd.envs.games.bucket_brigade.scenarios import BucketParams, scenario
from sweepd.envs.support.errors import InputError

TOLERANCE = 2e-3  # shares such as three times 0.333 are meant to add up to 1


@dataclass(frozen=True)
class ScenarioMixture:
    """Rules of one member's games, which are in several scenarios.

    Attributes:
        scenarios: the scenarios' shares of the games by name; they add up to 1.
        changes: parameters that all scenarios have instead of their own.

    Raises:
        InputError: a scenario or parameter is unknown, or the scenarios differ in their numbers of
            houses or agents.
    """

    scenarios: Mapping[str, float]
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len({(part.num_houses, part.num_agents) for part in self.parts}) > 1:
            raise InputError(
                "the scenarios of a mixture must have the same num_houses and num_agents"
            )

    @cached_property
    def parts(self) -> tuple[BucketParams, ...]:
        """The scenarios' parameters, in the order of `scenarios`."""
        return tuple(scenario(name, **self.changes) for name in self.scenarios)

    @property
    def num_houses(self) -> int:
        """Houses of every game."""
        return self.parts[0].num_houses

    @property
    def num_agents(self) -> int:
        """Agents of every game."""
        return self.parts[0].num_agents

    @property
    def max_nights(self) -> int:
        """A game that lasts so long is truncated, whatever its scenario."""
        return max(part.max_nights for part in self.parts)

    @property
    def shortest_game(self) -> int:
        """A lower bound on the nights of every game."""
        return min(part.shortest_game for part in self.parts)

    def deal(self, games: int, seed: int) -> Tensor:
        """Return the scenario of each game, (games,) int64 on the CPU.

        The number of games of a scenario differs by less than one from its share, and a game's
        scenario is distributed by the shares (systematic sampling, W. G. and L. H. Madow 1944).

        Args:
            games: their number.
            seed: of the draw.
        """
        generator = torch.Generator().manual_seed(seed)
        first = torch.rand(1, generator=generator, dtype=torch.float64)
        points = (torch.arange(games) + first) / games
        ends = torch.tensor([*self.scenarios.values()], dtype=torch.float64).cumsum(0)
        # Without the last end, 1, which rounding may have made smaller than a point.
        dealt = torch.searchsorted(ends[:-1].contiguous(), points, right=True)
        return dealt[torch.randperm(games, generator=generator)]


Params = BucketParams | ScenarioMixture


def scenario_names(text: str) -> list[str]:
    """Return the names of the scenarios in `--scenario`."""
    return [entry.partition("=")[0].strip() for entry in text.split(",")]


def read_scenario(text: str, **changes: Any) -> Params:
    """Return the parameters of `--scenario`: a scenario, or a mixture of several.

    Args:
        text: `easy`, or `easy=0.5,hard=0.5`; without shares (`easy,hard`), these are equal.
        changes: of the scenarios' parameters.

    Raises:
        InputError: a scenario or a parameter is unknown, or the shares are not valid.
    """
    entries = [entry.strip() for entry in text.split(",")]
    if len(entries) == 1 and "=" not in text:
        return scenario(text, **changes)
    names = scenario_names(text)
    given = [entry.partition("=")[2] for entry in entries if "=" in entry]
    flag = f"--scenario {text!r}"
    if len(set(names)) < len(names):
        raise InputError(f"{flag}: name each scenario once")
    if given and len(given) < len(names):
        raise InputError(f"{flag}: give every scenario a share, like easy=0.5,hard=0.5, or none")
    try:
        shares = [float(share) for share in given] or [1.0 / len(names)] * len(names)
    except ValueError:
        raise InputError(f"{flag}: shares must be numbers, like easy=0.5,hard=0.5") from None
    total = math.fsum(shares)
    if min(shares) <= 0.0 or not math.isclose(total, 1.0, abs_tol=TOLERANCE):
        raise InputError(f"{flag}: shares must be above 0 and add up to 1, not to {total:g}")
    mixed = {name: share / total for name, share in zip(names, shares, strict=True)}
    return ScenarioMixture(mixed, changes)
