"""Recorded games of Bucket Brigade, and a scalar reference implementation of its rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sweepd.envs.games.bucket_brigade.scenarios import BucketParams, params_from
from tests.envs.games.recordings import reference_file


@dataclass(frozen=True)
class Recorded:
    """One recorded game, with the fields of the file."""

    case: str
    params: BucketParams
    fields: dict[str, np.ndarray]


def recorded_games() -> Iterator[Recorded]:
    """Return all recorded games."""
    with np.load(reference_file("bucket_brigade_golden.npz"), allow_pickle=False) as stored:
        everything = {name: stored[name] for name in stored.files}
    meta: dict[str, Any] = json.loads(str(everything.pop("meta_json")))
    games: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    for key, values in everything.items():
        case, episode, field = key.split("__")
        games.setdefault((case, episode), {})[field] = values
    for (case, _), fields in games.items():
        yield Recorded(case, params_from({**meta[case], "max_nights": 10**6}), fields)


class ScalarGame:
    """Scalar reference: one game in plain Python, house by house and agent by agent."""

    def __init__(self, params: BucketParams) -> None:
        self.params = params
        self.houses = [0] * params.num_houses
        self.prev = list(self.houses)
        self.progress = [np.float32(0.0)] * params.num_houses
        self.night = 0
        self.signals = [0] * params.num_agents
        self.locations = [0] * params.num_agents
        self.actions = [(0, 0)] * params.num_agents

    def reset(self, u_init: Any) -> None:
        p = self.params
        self.__init__(p)  # type: ignore[misc]
        self.houses = [
            1 if u_init[h] < p.prob_house_catches_fire else 0 for h in range(p.num_houses)
        ]
        if p.semantics == "persistent":
            self.prev = list(self.houses)

    def ring_distance(self, a: int, b: int) -> int:
        return min(abs(a - b), self.params.num_houses - abs(a - b))

    def potential(self, houses: list[int]) -> float:
        p, count = self.params, self.params.num_houses
        return (
            p.team_reward_house_survives * houses.count(0) / count
            - p.team_penalty_house_burns * houses.count(2) / count
            - 0.5 * p.team_penalty_house_burns * houses.count(1) / count
        )

    def step(
        self, actions: Any, u_ext: Any, u_spread: Any, u_ign: Any
    ) -> tuple[list[float], bool, bool]:
        """Return rewards, terminated, truncated.

        Args:
            actions: (N, 3).
            u_ext: (H,) uniform numbers that decide which fires are put out.
            u_ign: (H,) uniform numbers that decide which houses ignite.
            u_spread: (H, 2) uniform numbers that decide which fires spread to the left and right.
        """
        p, count = self.params, self.params.num_houses
        acts = [tuple(int(part) for part in action) for action in actions]
        if p.action_validity_mode == "adjacent_only":
            acts = [
                (house if self.ring_distance(p.homes[i], house) <= 1 else p.homes[i], mode, signal)
                for i, (house, mode, signal) in enumerate(acts)
            ]
        self.signals = [signal for _, _, signal in acts]
        self.locations = [house for house, _, _ in acts]
        self.actions = [(house, mode) for house, mode, _ in acts]

        houses = self.houses = list(self.houses)
        workers = [
            sum(1 for house, mode, _ in acts if house == h and mode == 1) for h in range(count)
        ]
        for h in range(count):
            if houses[h] != 1:
                continue
            if p.extinguish_mode == "bernoulli":
                if u_ext[h] < 1.0 - (1.0 - p.prob_solo_agent_extinguishes_fire) ** workers[h]:
                    houses[h] = 0
            elif workers[h] > 0:
                self.progress[h] += np.float32(workers[h] * p.suppression_per_worker)
                if self.progress[h] >= 1.0:
                    houses[h], self.progress[h] = 0, np.float32(0.0)
        if p.extinguish_mode == "bernoulli":
            houses[:] = [2 if state == 1 else state for state in houses]
        for h in range(count):
            if houses[h] == 1:
                for side, neighbour in enumerate(((h - 1) % count, (h + 1) % count)):
                    if (
                        houses[neighbour] == 0
                        and u_spread[h][side] < p.prob_fire_spreads_to_neighbor
                    ):
                        houses[neighbour] = 1
        for h in range(count):
            if houses[h] == 0 and u_ign[h] < p.prob_house_catches_fire:
                houses[h] = 1

        over = self.over()
        rewards = [self.reward(i, acts, workers, over) for i in range(p.num_agents)]
        self.prev = list(houses)
        self.night += 1
        return rewards, over, not over and self.night >= p.max_nights

    def over(self) -> bool:
        if self.night < self.params.min_nights:
            return False
        alike = all(state == 0 for state in self.houses) or all(state == 2 for state in self.houses)
        return alike or (self.params.semantics == "default" and 1 not in self.houses)

    def reward(self, i: int, acts: list[Any], workers: list[int], over: bool) -> float:
        p, count, now, prev = self.params, self.params.num_houses, self.houses, self.prev
        house, mode, _ = acts[i]
        total = (
            p.team_reward_house_survives * now.count(0) / count
            - p.team_penalty_house_burns * now.count(2) / count
        )
        total += p.progress_shaping_coef * (now.count(0) - prev.count(0))
        if mode == 1:
            total -= p.cost_to_work_one_night + p.distance_cost_alpha * self.ring_distance(
                p.homes[i], house
            )
        else:
            total += p.reward_rest
        for h in range(count):
            own = h % p.num_agents == i
            if prev[h] != 0 and now[h] == 0:
                total += p.per_agent(
                    "reward_own_house_survives" if own else "reward_other_house_survives"
                )[i]
            if now[h] == 2:
                total -= p.per_agent(
                    "penalty_own_house_burns" if own else "penalty_other_house_burns"
                )[i]
        if mode == 1 and prev[house] == 1 and now[house] == 0:
            total += p.action_shaping_alpha / workers[house]
        if mode == 1 and prev[house] == 0 and now[house] == 0:
            total += p.action_shaping_beta
        if p.team_welfare_kind != "none":
            after = 0.0 if over else self.potential(now)
            total += p.team_welfare_lambda * (p.team_welfare_gamma * after - self.potential(prev))
        return float(total)

    def observation(self) -> np.ndarray:
        """Return what all agents observe in common, float32."""
        last = [part for action in self.actions for part in action]
        seen = [*self.houses, *self.signals, *self.locations, *last, *self.params.observed()]
        return np.array(seen, dtype=np.float32)
