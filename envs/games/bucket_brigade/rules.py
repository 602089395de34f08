"""The rules of Bucket Brigade: one night of E games of N agents around a ring of H houses.

A night follows from the agents' actions and from its random events (`NightEvents`). Tensors have
the games last: houses (H, E), agents (N, E). Counts are uint8, rewards float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sweepd.envs.core.rows import where_rows
from sweepd.envs.games.bucket_brigade.scenarios import BucketParams

SAFE, BURNING, RUINED = 0, 1, 2
REST, WORK = 0, 1
HOUSE, MODE, SIGNAL = 0, 1, 2  # components of an action
NEVER = 255  # more workers than possible


class NightEvents(NamedTuple):
    """The random events of one night or, with leading dimensions, of several.

    Attributes:
        needed: (…, H, E) uint8, number of workers that put out a fire in the house; `NEVER` in
            continuous mode, where that is not random.
        ignites: (…, H, E) bool, whether the house, if safe, begins to burn by itself.
        spreads: (…, H, 2, E) bool, whether a fire in the house spreads to its left and to its right
            neighbour, if safe; None if no game is in continuous mode.
    """

    needed: Tensor
    ignites: Tensor
    spreads: Tensor | None


class Night(NamedTuple):
    """Results of a night.

    Attributes:
        state: The state after it.
        rewards: (N, E) float64.
        terminated: (E,) bool.
    """

    state: dict[str, Tensor]
    rewards: Tensor
    terminated: Tensor


def workers_needed(params: BucketParams, uniform: Tensor) -> Tensor:
    """Return `NightEvents.needed` from one uniform number in [0, 1) per house.

    k workers succeed if it is below 1 - (1 - prob_solo_agent_extinguishes_fire)^k.
    """
    needed = torch.ones_like(uniform, dtype=torch.uint8)
    for chance in chances_of_success(params):
        failed = uniform >= chance
        needed += failed.view(torch.uint8)  # one worker more for each number that does not suffice
    return needed


def chances_of_success(params: BucketParams) -> list[float]:
    """Return the probabilities that 1, 2, … all agents put out a fire."""
    alone = params.prob_solo_agent_extinguishes_fire
    return [1.0 - (1.0 - alone) ** workers for workers in range(1, params.num_agents + 1)]


def night_events(
    params: BucketParams, ignite: Tensor, extinguish: Tensor | None, spread: Tensor | None
) -> NightEvents:
    """Return the events that follow from uniform numbers in [0, 1) under one game's rules.

    An event happens if its number is below its probability.

    Args:
        params: The rules.
        ignite: (…, H, E).
        extinguish: (…, H, E); needed in bernoulli mode.
        spread: (…, H, 2, E), to the left and to the right; needed in continuous mode.
    """
    ignites = ignite < params.prob_house_catches_fire
    if params.continuous:
        assert spread is not None
        never = torch.full_like(ignites, NEVER, dtype=torch.uint8)
        return NightEvents(never, ignites, spread < params.prob_fire_spreads_to_neighbor)
    assert extinguish is not None
    return NightEvents(workers_needed(params, extinguish), ignites, None)


class Rules:
    """The rules of E games.

    Their state has "houses" (H, E) uint8, `SAFE`, `BURNING` or `RUINED`; "acts" (N, 3, E) uint8,
    every agent's last house, mode and signal, 0 before its first; "progress" (H, E) float32, how far
    a fire has been put out, from 0 to 1 (continuous mode).

    Attributes:
        no_acts: "acts" before the first night.
        no_progress: "progress" before the first night.
        positional: Whether some game needs to know how far its agents go; such phases of a night
            are skipped where no game needs them.
        continuous: Whether some game is in continuous mode, and so needs `NightEvents.spreads`.
        shaped: Whether some game has rewards besides those of the original.
    """

    def __init__(self, num_houses: int, num_agents: int, games: int, device: torch.device) -> None:
        self.num_houses, self.num_agents, self.device = num_houses, num_agents, device
        rounds = -(-num_houses // num_agents)

        def new(*size: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(*size, games, dtype=dtype, device=device)

        self.no_acts = new(num_agents, 3, dtype=torch.uint8)
        self.no_progress = new(num_houses, dtype=torch.float32)

        self._team, self._loss, self._rest, self._work = new(), new(), new(), new()
        # Rewards for any house, and the additional ones for the agent's own.
        self._own_saved, self._any_saved = new(num_agents), new(num_agents)
        self._own_ruined, self._any_ruined = new(num_agents), new(num_agents)
        self._home = new(num_agents, dtype=torch.int16)
        self._reach = new(dtype=torch.int16)  # houses from home that an agent can go
        self._distance_cost = new()
        self._progress_coef, self._extinguish_bonus, self._presence_bonus = new(), new(), new()
        self._welfare, self._welfare_gamma = new(), new()
        self._suppression = new()
        self._min_nights = new(dtype=torch.int64)
        self._burns_out, self._lasts = new(dtype=torch.bool), new(dtype=torch.bool)
        self._quiet_ends, self._start_counts = new(dtype=torch.bool), new(dtype=torch.bool)
        self._rules: dict[int, list[BucketParams]] = {}  # by member
        self.positional = self.continuous = self.shaped = False

        # House h belongs to agent h mod N: viewed as rows of N houses, the last one padded, a sum
        # over rows counts by agent.
        self._tally = new(2, rounds, num_agents, dtype=torch.uint8)
        self._saved, self._ruined = self._tally.view(2, rounds * num_agents, games)[:, :num_houses]
        numbers = torch.arange(num_houses, dtype=torch.uint8, device=device)
        self._numbers = numbers.view(-1, 1).repeat(1, games)
        # Comparing bytes with a tensor of bytes is ten times as fast as with a number.
        self._states = (
            torch.arange(3, dtype=torch.uint8, device=device).view(-1, 1).repeat(1, games)
        )

    def configure(
        self, games: slice | Tensor, params: BucketParams, member: int = 0, part: int = 0
    ) -> None:
        """Set the rules of some games.

        Args:
            games: their places; part k of a member is configured after part 0.
            params: the rules.
            member: whose games they are.
            part: of the member's games, if they have different rules.
        """
        p = params

        def per_agent(name: str) -> Tensor:
            return torch.tensor(
                p.per_agent(name), dtype=torch.float64, device=self.device
            ).unsqueeze(1)

        for tensor, value in (
            (self._team, p.team_reward_house_survives),
            (self._loss, p.team_penalty_house_burns),
            (self._rest, p.reward_rest),
            (self._work, -p.cost_to_work_one_night - p.reward_rest),
            (self._reach, 1 if p.action_validity_mode == "adjacent_only" else p.num_houses),
            (self._distance_cost, p.distance_cost_alpha),
            (self._progress_coef, p.progress_shaping_coef),
            (self._extinguish_bonus, p.action_shaping_alpha),
            (self._presence_bonus, p.action_shaping_beta),
            (self._welfare, p.welfare_weight),
            (self._welfare_gamma, p.team_welfare_gamma),
            (self._suppression, p.suppression_per_worker if p.continuous else 0.0),
            (self._min_nights, p.min_nights),
            (self._burns_out, not p.continuous),
            (self._lasts, p.continuous),
            (self._quiet_ends, p.semantics == "default"),
            (self._start_counts, p.semantics == "persistent"),
        ):
            tensor[games] = value
        # An own house counts as any house, plus the difference.
        own, other = (
            per_agent("reward_own_house_survives"),
            per_agent("reward_other_house_survives"),
        )
        self._own_saved[:, games], self._any_saved[:, games] = own - other, other
        own, other = per_agent("penalty_own_house_burns"), per_agent("penalty_other_house_burns")
        self._own_ruined[:, games], self._any_ruined[:, games] = other - own, -other
        self._home[:, games] = torch.tensor(
            p.homes, dtype=torch.int16, device=self.device
        ).unsqueeze(1)

        if part == 0:
            self._rules[member] = []
        self._rules[member].append(p)
        every = [one for own in self._rules.values() for one in own]
        self.continuous = any(one.continuous for one in every)
        self.positional = any(
            one.action_validity_mode == "adjacent_only" or one.distance_cost_alpha for one in every
        )
        self.shaped = any(
            one.progress_shaping_coef
            or one.action_shaping_alpha
            or one.action_shaping_beta
            or one.welfare_weight
            for one in every
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return what `configure` sets, and other tensors, by name: for compiled code."""
        return {
            name.removeprefix("_"): own
            for name, own in vars(self).items()
            if isinstance(own, Tensor)
        }

    def play(
        self, state: dict[str, Tensor], acts: Tensor, night: Tensor, events: NightEvents
    ) -> Night:
        """Play one night of every game.

        Args:
            state: The state before it.
            acts: (N, 3, E) uint8, every agent's house, mode and signal, all legal; changed where
                agents are held back.
            night: (E,) int64, the nights played before it.
            events: The night's random events.
        """
        house, mode = acts[:, HOUSE], acts[:, MODE]
        distance = self._hold_back(house) if self.positional else None
        # Workers at each house. A resting agent counts as at house 255: mode - 1 is 255 there.
        at_work = torch.bitwise_or(house, mode - 1)
        workers = (at_work.unsqueeze(1) == self._numbers).sum(0, dtype=torch.uint8)

        safe, burning, ruined = (state["houses"] == one for one in self._states)
        # Houses that burned before the night. By the original's rules (semantics "default"), none
        # burned before a game's first night.
        was_burning = burning & ((night > 0) | self._start_counts)
        ruined_before = ruined.sum(0, dtype=torch.uint8) if self.shaped else None

        # Workers put out fires. Other fires ruin their houses, or burn on in continuous mode.
        put_out = burning & (workers >= events.needed)
        progress = self.no_progress
        if self.continuous:
            progress, out = self._suppress(state["progress"], workers, burning)
            put_out |= out
        safe |= put_out
        burning ^= put_out
        ruined |= burning & self._burns_out
        burning &= self._lasts
        # Then fires spread, and at last safe houses ignite by themselves.
        if events.spreads is not None:
            self._spread(safe, burning, events.spreads)
        ignited = safe & events.ignites
        burning |= ignited
        safe ^= ignited
        # The states SAFE, BURNING and RUINED are 0, 1 and 2.
        houses = torch.add(burning.view(torch.uint8), ruined.view(torch.uint8), alpha=RUINED)

        saved = torch.bitwise_and(safe, was_burning).view(torch.uint8)
        safe_now, ruined_now = safe.sum(0, dtype=torch.uint8), ruined.sum(0, dtype=torch.uint8)
        # A game may end once nothing burns; if "persistent", only if all are safe or all ruined.
        quiet = safe_now + ruined_now == self.num_houses
        alike = (safe_now == self.num_houses) | (ruined_now == self.num_houses)
        terminated = (night >= self._min_nights) & quiet & (self._quiet_ends | alike)

        rewards = self._rewards(mode, saved, ruined, safe_now, ruined_now)
        if distance is not None:
            rewards.sub_(distance.mul_(mode).double().mul_(self._distance_cost))
        if ruined_before is not None:
            burning_before = was_burning.sum(0, dtype=torch.uint8)
            before = (
                self.num_houses - burning_before - ruined_before,
                burning_before,
                ruined_before,
            )
            now = (safe_now, self.num_houses - safe_now - ruined_now, ruined_now)
            rewards.add_(self._shaping(before, now, terminated))
            rewards.add_(self._bonuses(house, mode, workers, saved, safe & ~was_burning))
        after = {"houses": houses, "acts": acts, "progress": progress}
        return Night(after, rewards, terminated)

    def _hold_back(self, house: Tensor) -> Tensor:
        """Send agents home that went too far; return their distances from home, (N, E) int16."""
        distance = house.to(torch.int16).sub_(self._home).abs_()
        distance = torch.minimum(distance, self.num_houses - distance)  # the shorter way round
        too_far = distance > self._reach
        house.copy_(where_rows(too_far, self._home.to(torch.uint8), house, axis=-1))
        return distance.masked_fill_(too_far, 0)

    def _suppress(
        self, progress: Tensor, workers: Tensor, burning: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Put fires out gradually; return the progress, and those that are out now (H, E) bool."""
        # In float32 as in the original, where three times a third is 1.
        progress = progress + workers.double().mul_(self._suppression).float().mul_(burning)
        out = progress >= 1.0
        return progress.masked_fill_(out, 0.0), out

    def _spread(self, safe: Tensor, burning: Tensor, spreads: Tensor) -> None:
        """Spread fires in place, house by house: a house lit before its turn spreads in it."""
        # One house after the other: a loop over houses, each step for all games at once.
        for house in range(self.num_houses):
            for side, neighbour in enumerate((house - 1, (house + 1) % self.num_houses)):
                lit = spreads[house, side] & burning[house]
                lit &= safe[neighbour]
                burning[neighbour] |= lit
                safe[neighbour] ^= lit

    def _rewards(
        self, mode: Tensor, saved: Tensor, ruined: Tensor, safe_now: Tensor, ruined_now: Tensor
    ) -> Tensor:
        """Return the agents' rewards (N, E).

        The sum of the following, where S of the H houses are safe and R are ruined:

        * for the team, team_reward_house_survives * S / H - team_penalty_house_burns * R / H;
        * reward_rest, or -cost_to_work_one_night;
        * for each house saved in the night, reward_own_house_survives for its owner and
          reward_other_house_survives for other agents;
        * for each ruined house, likewise the negative penalties.
        """
        self._saved.copy_(saved)
        self._ruined.copy_(ruined)
        own_saved, own_ruined = self._tally.sum(1, dtype=torch.uint8).double()
        safe_count, ruined_count = safe_now.double(), ruined_now.double()
        team = self._team * (safe_count / self.num_houses) - self._loss * (
            ruined_count / self.num_houses
        )
        # `_work` is the difference between working and resting.
        rewards = (team + self._rest) + mode * self._work
        rewards.addcmul_(own_saved, self._own_saved)
        rewards.addcmul_(saved.sum(0, dtype=torch.uint8).double(), self._any_saved)
        rewards.addcmul_(own_ruined, self._own_ruined)
        return rewards.addcmul_(ruined_count, self._any_ruined)

    def _shaping(
        self,
        before: tuple[Tensor, Tensor, Tensor],
        now: tuple[Tensor, Tensor, Tensor],
        terminated: Tensor,
    ) -> Tensor:
        """Return the reward shaping (E,), which is the same for all agents of a game.

        progress_shaping_coef times the gain in safe houses, plus the potential-based shaping
        welfare_weight * (team_welfare_gamma * Phi(s') - Phi(s)) with `_potential` Phi; see Ng,
        Harada and Russell, "Policy invariance under reward transformations", ICML 1999.

        Args:
            before: Numbers of safe, burning and ruined houses before the night.
            now: Likewise, after it.
            terminated: (E,) bool; the potential of a terminal state is 0.
        """
        gained = now[0].double() - before[0].double()
        potential = self._potential(now).mul_(terminated.logical_not())
        welfare = self._welfare * (self._welfare_gamma * potential - self._potential(before))
        return self._progress_coef * gained + welfare

    def _potential(self, counts: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Return Phi (E,), the team's reward in that state, a burning house as half ruined."""
        safe, burning, ruined = (count.double() / self.num_houses for count in counts)
        return self._team * safe - self._loss * ruined - 0.5 * self._loss * burning

    def _bonuses(
        self, house: Tensor, mode: Tensor, workers: Tensor, saved: Tensor, kept: Tensor
    ) -> Tensor:
        """Return the bonuses (N, E) of workers.

        For a house that was saved, divided among its workers, and for one that stayed safe.
        """
        bonus = self._extinguish_bonus * saved / workers.clamp_min(1) + self._presence_bonus * kept
        return bonus.gather(0, house.to(torch.int64)).mul_(mode)
