"""Bucket Brigade's parameters, and a table of its scenarios.

The names are those of the original game (R. Walters, github.com/rjwalters/bucket-brigade), so that
its scenario files can be read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sweepd.envs.support.errors import InputError

MAX_HOUSES, MAX_AGENTS = 100, 100  # counts must fit into uint8

PerAgent = float | tuple[float, ...]

_PROBABILITIES = (
    "prob_fire_spreads_to_neighbor",
    "prob_solo_agent_extinguishes_fire",
    "prob_house_catches_fire",
)
PER_AGENT = (
    "reward_own_house_survives",
    "reward_other_house_survives",
    "penalty_own_house_burns",
    "penalty_other_house_burns",
)
_WHOLE = {
    "num_houses": (1, MAX_HOUSES),
    "num_agents": (1, MAX_AGENTS),
    "min_nights": (0, 10**6),
    "max_nights": (1, 10**6),
}
_CHOICES = {
    "semantics": ("default", "persistent"),
    "extinguish_mode": ("bernoulli", "continuous"),
    "action_validity_mode": ("always_valid", "adjacent_only"),
    "team_welfare_kind": ("none", "team_welfare_closed_form"),
}
_AT_LEAST_ZERO = ("suppression_per_worker",)
# Parameters of the original of which only one value is supported.
_FIXED = {"distance_metric": "ring_arc", "commitment_mode": "simultaneous"}


@dataclass(frozen=True)
class BucketParams:
    """Rules of one member's games; members of a batch may differ in all but the first two.

    Fields of type `PerAgent` are one number for all agents, or one for each.

    Attributes:
        agent_home_positions: One house per agent; empty: agent i lives at i mod num_houses.
        distance_cost_alpha: Additional cost of work per house between home and the place of work.
        action_validity_mode: "adjacent_only": agents go at most one house from home.
        extinguish_mode: "bernoulli": a fire is put out or ruins the house within the night;
            "continuous": it burns until it is put out gradually, and spreads.
        suppression_per_worker: Continuous mode: fraction of a fire that one worker puts out in a
            night.
        semantics: "default": a game ends when nothing burns, and no house counts as burning before
            the first night. "persistent": it ends only when all houses are safe or all are ruined,
            and houses that burn at reset count.
        min_nights: A game lasts at least one night more.
        max_nights: A game that lasts so long is truncated.

    Raises:
        InputError: A value is out of its range.
    """

    num_houses: int = 10
    num_agents: int = 4
    prob_fire_spreads_to_neighbor: float = 0.25
    prob_solo_agent_extinguishes_fire: float = 0.5
    prob_house_catches_fire: float = 0.02
    team_reward_house_survives: float = 100.0
    team_penalty_house_burns: float = 100.0
    reward_own_house_survives: PerAgent = 20.0
    reward_other_house_survives: PerAgent = 0.0
    penalty_own_house_burns: PerAgent = 40.0
    penalty_other_house_burns: PerAgent = 0.0
    cost_to_work_one_night: float = 0.5
    reward_rest: float = 0.5
    agent_home_positions: tuple[int, ...] = ()
    distance_cost_alpha: float = 0.0
    progress_shaping_coef: float = 0.0
    action_shaping_alpha: float = 0.0
    action_shaping_beta: float = 0.0
    team_welfare_kind: str = "none"
    team_welfare_lambda: float = 0.0
    team_welfare_gamma: float = 1.0
    action_validity_mode: str = "always_valid"
    extinguish_mode: str = "bernoulli"
    suppression_per_worker: float = 0.0
    semantics: str = "default"
    min_nights: int = 12
    max_nights: int = 100

    def __post_init__(self) -> None:
        for field in fields(self):
            self._check(field.name, getattr(self, field.name))

    def _check(self, name: str, value: Any) -> None:
        if name in _CHOICES:
            if value not in _CHOICES[name]:
                raise _refused(name, value, " or ".join(repr(choice) for choice in _CHOICES[name]))
        elif name in _WHOLE:
            low, high = _WHOLE[name]
            if not _is_whole(value) or not low <= value <= high:
                raise _refused(name, value, f"a whole number from {low} to {high}")
        elif name == "agent_home_positions":
            homes = _as_tuple(value)
            if (
                homes is None
                or len(homes) not in (0, self.num_agents)
                or not all(_is_whole(home) and 0 <= home < self.num_houses for home in homes)
            ):
                right = f"{self.num_agents} houses from 0 to {self.num_houses - 1}, or none"
                raise _refused(name, value, right)
            object.__setattr__(self, name, homes)
        elif name in PER_AGENT and not _is_number(value):
            numbers = _as_tuple(value)
            if (
                numbers is None
                or len(numbers) != self.num_agents
                or not all(_is_number(one) for one in numbers)
            ):
                raise _refused(name, value, f"a number, or {self.num_agents} of them")
            object.__setattr__(self, name, tuple(float(one) for one in numbers))
        elif not _is_number(value):
            raise _refused(name, value, "a number")
        elif name in _PROBABILITIES and not 0 <= value <= 1:
            raise _refused(name, value, "a probability from 0 to 1")
        elif name in _AT_LEAST_ZERO and value < 0:
            raise _refused(name, value, "at least 0")

    def per_agent(self, name: str) -> tuple[float, ...]:
        """Return a field in `PER_AGENT` as one number per agent."""
        value = getattr(self, name)
        return value if isinstance(value, tuple) else (float(value),) * self.num_agents

    @property
    def homes(self) -> tuple[int, ...]:
        """Every agent's home."""
        return self.agent_home_positions or tuple(
            agent % self.num_houses for agent in range(self.num_agents)
        )

    @property
    def continuous(self) -> bool:
        """Whether fires burn until they are put out gradually."""
        return self.extinguish_mode == "continuous"

    @property
    def welfare_weight(self) -> float:
        """team_welfare_lambda, or 0 if `team_welfare_kind` disables that shaping."""
        return 0.0 if self.team_welfare_kind == "none" else self.team_welfare_lambda

    @property
    def reward_scale(self) -> float:
        """The largest reward or penalty for a house, or 1: rewards divided by it are about 1."""
        largest = max(abs(value) for name in PER_AGENT for value in self.per_agent(name))
        return (
            max(largest, abs(self.team_reward_house_survives), abs(self.team_penalty_house_burns))
            or 1.0
        )

    @property
    def shortest_game(self) -> int:
        """A lower bound on the nights of every game."""
        return min(self.min_nights + 1, self.max_nights)

    def observed(self) -> tuple[float, ...]:
        """Return the 12 numbers of the scenario that agents observe; per-agent fields as means."""
        means = [math.fsum(self.per_agent(name)) / self.num_agents for name in PER_AGENT]
        return (
            self.prob_fire_spreads_to_neighbor,
            self.prob_solo_agent_extinguishes_fire,
            self.prob_house_catches_fire,
            self.team_reward_house_survives,
            self.team_penalty_house_burns,
            *means,
            self.cost_to_work_one_night,
            float(self.min_nights),
            float(self.num_agents),
        )


def params_from(scenario: Mapping[str, Any]) -> BucketParams:
    """Return the parameters of an original scenario file.

    Raises:
        InputError: A parameter or its value is not supported.
    """
    known = {field.name for field in fields(BucketParams)}
    own: dict[str, Any] = {}
    for name, value in scenario.items():
        if name in _FIXED:
            if value != _FIXED[name]:
                raise _refused(name, value, repr(_FIXED[name]))
        elif name in known:
            own[name] = value
        else:
            raise InputError(
                f"Bucket Brigade has no parameter {name!r}; it has {', '.join(sorted(known))}"
            )
    return BucketParams(**own)


def scenario(name: str, **changes: Any) -> BucketParams:
    """Return the parameters of a scenario in `SCENARIOS`, with changes.

    Raises:
        InputError: The name or a parameter is unknown, or a value is out of its range.
    """
    if name not in SCENARIOS:
        raise InputError(
            f"the scenario {name!r} is not known; choose one of {', '.join(SCENARIOS)}"
        )
    return params_from({**SCENARIOS[name], **changes})


def _row(
    spread: float,
    extinguish: float,
    ignite: float,
    team: float,
    penalty: float,
    work: float,
    min_nights: int,
    own_reward: float = 1.0,
    own_penalty: float = 2.0,
) -> dict[str, Any]:
    return {
        "prob_fire_spreads_to_neighbor": spread,
        "prob_solo_agent_extinguishes_fire": extinguish,
        "prob_house_catches_fire": ignite,
        "team_reward_house_survives": team,
        "team_penalty_house_burns": penalty,
        "cost_to_work_one_night": work,
        "min_nights": min_nights,
        "reward_own_house_survives": own_reward,
        "penalty_own_house_burns": own_penalty,
    }


# Arguments in the order of `_row`.
_DEFAULT = _row(0.25, 0.5, 0.02, 100, 100, 0.5, 12, 20, 40)
SCENARIOS: dict[str, dict[str, Any]] = {
    "default": _DEFAULT,
    "easy": _row(0.1, 0.8, 0.01, 100, 100, 0.5, 10),
    "hard": _row(0.4, 0.3, 0.05, 100, 100, 0.5, 15),
    "trivial_cooperation": _row(0.15, 0.9, 0.0, 100, 100, 0.5, 12),
    "early_containment": _row(0.35, 0.6, 0.02, 100, 100, 0.5, 12),
    "greedy_neighbor": _row(0.15, 0.4, 0.02, 100, 100, 1.0, 12),
    "sparse_heroics": _row(0.1, 0.5, 0.02, 100, 100, 0.8, 20),
    "rest_trap": _row(0.05, 0.95, 0.02, 100, 100, 0.2, 12),
    "chain_reaction": _row(0.45, 0.6, 0.03, 100, 100, 0.7, 15),
    "deceptive_calm": _row(0.25, 0.6, 0.05, 100, 100, 0.4, 20),
    "overcrowding": _row(0.2, 0.3, 0.02, 50, 100, 0.6, 12),
    "mixed_motivation": _row(0.3, 0.5, 0.03, 100, 100, 0.6, 15),
    "minimal_specialization": _row(0.25, 0.5, 0.02, 10, 10, 0.5, 12, 50, 100),
    "positional_default": {
        **_DEFAULT,
        "agent_home_positions": (0, 3, 5, 8),
        "distance_cost_alpha": 0.1,
    },
    "v2_minimal": {**_row(0.25, 0.5, 0.05, 10, 10, 0.5, 8, 50, 100), "num_houses": 2},
    "default_continuous": {
        **_DEFAULT,
        "extinguish_mode": "continuous",
        "suppression_per_worker": 0.5,
    },
    "asym_b05_k09_c05": _row(0.5, 0.9, 0.02, 10, 10, 0.5, 12, 50, 100),
    "asym_b09_k09_c05": _row(0.9, 0.9, 0.02, 10, 10, 0.5, 12, 50, 100),
}


def _refused(name: str, value: Any, right: str) -> InputError:
    return InputError(f"Bucket Brigade's parameter {name} is {value!r}; it must be {right}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _as_tuple(value: Any) -> tuple[Any, ...] | None:
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else None
