"""Bucket Brigade as a vectorized environment: agents put out fires in a ring of houses.

A row is a seat of a game. A member that plays alone has all seats of its games. Members that play
`together` share their games: every `draw` deals the seats of all their games to them at random.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sweepd.envs.core.faults import Fault, FaultLatch, illegal_choice
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.core.streams import Streams
from sweepd.envs.core.vec_env import on_cpu
from sweepd.envs.games.batched import BatchedGame
from sweepd.envs.games.batched_rules import State
from sweepd.envs.games.bucket_brigade.events import (
    Uniform,
    draw_events,
    draw_starts,
    evaluate,
    side_by_side,
)
from sweepd.envs.games.bucket_brigade.mixture import Params
from sweepd.envs.games.bucket_brigade.native import STEP, NativeBrigade
from sweepd.envs.games.bucket_brigade.observation import ObservationEncoder
from sweepd.envs.games.bucket_brigade.rules import NightEvents, Rules
from sweepd.envs.games.bucket_brigade.scenarios import BucketParams
from sweepd.envs.games.drawn_ahead import Numbers
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.upload import upload

# Draws numbers of so many games of these parameters.
Draw = Callable[[BucketParams, int, Uniform], Numbers]
_MOST = 254  # largest number of a choice that is recorded as it is, in a byte; 255 is below 0


class BucketBrigade(BatchedGame):
    """`envs_per_member` rows per member, each a seat of a game; one game follows the other.

    Observations: see `sweepd.envs.games.bucket_brigade.observation`. Actions are (num_envs, 3)
    int64: a house, REST 0 or WORK 1, and a signal 0 or 1. The reward is the agent's own for the
    night, divided by `BucketParams.reward_scale` if observations are scaled.

    Attributes:
        scale: (E,) float64, by which rewards are divided.
        rematches: Whether `draw` gives the rows other seats, also in `final_obs`. Faults stay with
            the row, since its member caused them.
    """

    env_name = "sweepd/BucketBrigade-v0"
    if_discrete = True
    axis = -1
    _steps_ahead = 64
    native_code = STEP.library, NativeBrigade.of
    native_rules: NativeBrigade | None = None

    def __init__(
        self,
        params: Params | Sequence[Params],
        envs_per_member: int,
        *,
        together: int = 1,
        scaled: bool = True,
        device: torch.device | str = "cpu",
        debug: bool = False,
        native: bool = True,
    ) -> None:
        """Make the environment. Call `reset` before the first step.

        Args:
            params: One per member, or one for a single member: parameters or a mixture of
                scenarios, all with the same numbers of houses and agents.
            envs_per_member: Rows per member, a multiple of the number of agents.
            together: Number of consecutive members that share their games.
            scaled: Whether observations and rewards are encoded for learning, or the game's own.
            device: Device of the environment.
            debug: Whether to check for illegal actions after every step.
            native: See `BatchedGame`.

        Raises:
            InputError: The arguments do not fit together.
        """
        self.together, self.rematches = together, together > 1
        self.scaled = self.prescaled = scaled
        super().__init__(params, envs_per_member, device=device, debug=debug, native=native)

    def _set_seats(self, params: Sequence[Params]) -> None:
        """See `BatchedGame._set_seats`."""
        self.num_houses, self.num_agents = params[0].num_houses, params[0].num_agents
        if self.together < 1 or self.num_members % self.together:
            raise InputError(
                f"{self.num_members} members of Bucket Brigade cannot play in groups of "
                f"{self.together}"
            )
        self._set_rows_per_game(self.num_agents)

    def prepare(self, params: Sequence[Params]) -> None:
        """See `BatchedRules.prepare`."""
        self._params = list(params)
        # Of members with a mixture of scenarios: the scenario of each game.
        self._dealt = [self._deal_scenarios(own, 0) for own in params]
        houses, agents, games, device = (
            self.num_houses,
            self.num_agents,
            self.num_games,
            self.device,
        )
        self.action_dims = (houses, 2, 2)
        self.rules = Rules(houses, agents, games, device)
        self.encoder = ObservationEncoder(houses, agents, games, scaled=self.scaled, device=device)
        self.state_dim = self.encoder.size
        self.scale = torch.ones(games, dtype=torch.float64, device=device)
        # A seat's number is game * agents + agent. `_seat_of` is by row, `_row_of` by seat.
        self._seat_of = torch.arange(self.num_envs, device=device)
        self._row_of = self._seat_of.clone()
        self._game_of, self._agent_of = self._seat_of // agents, self._seat_of % agents
        self._dealers = Streams(self.num_members // self.together)
        # Repeated for all rows, because broadcasting a few numbers is slower.
        most = torch.tensor(self.action_dims, dtype=torch.uint8, device=device) - 1
        self._most = most.repeat(self.num_envs)

    def _make_state(self) -> None:
        """See `BatchedGame._make_state`. Nobody sees the progress of games that ended."""
        super()._make_state()
        del self.final["progress"]

    def configure_member(self, member: int, params: Params) -> None:
        """See `GameEnv.configure_member`. A mixture's scenarios are dealt at the next reset."""
        if (params.num_houses, params.num_agents) != (self.num_houses, self.num_agents):
            raise InputError(
                "members of one batch of Bucket Brigade must have the same num_houses and "
                "num_agents"
            )
        super().configure_member(member, params)
        self._params[member] = params
        self._configure_games(member, self._deal_scenarios(params, 0))

    def _deal_scenarios(self, params: Params, seed: int) -> Tensor | None:
        """Return the scenario of each of a member's games; None if there is one."""
        if isinstance(params, BucketParams):
            return None
        return params.deal(self.games_per_member, seed)

    def _configure_games(self, member: int, dealt: Tensor | None) -> None:
        """Set the rules of a member's games. dealt: as `_deal_scenarios` returns it."""
        params, games = self._params[member], self.games_of(member)
        self._dealt[member] = dealt
        if isinstance(params, BucketParams):
            self._configure_part(games, params, member, 0)
        else:
            assert dealt is not None
            for place, part in enumerate(sorted(set(dealt.tolist()))):
                here = upload(games.start + (dealt == part).nonzero().view(-1), self.device)
                self._configure_part(here, params.parts[part], member, place)
        # Where no game is in continuous mode, it is the rules' own.
        self.state["progress"] = self.state["progress"].clone()
        self.reward_unit = self.scale[self._game_of]

    def _configure_part(
        self, games: slice | Tensor, params: BucketParams, member: int, part: int
    ) -> None:
        self.rules.configure(games, params, member, part)
        self.encoder.configure(games, params)
        self._limit[games] = params.max_nights
        self.scale[games] = params.reward_scale if self.scaled else 1.0

    def numeric(self, params: Params) -> dict[str, float]:
        """See `BatchedRules.numeric`. `Rules` has them."""
        del params
        return {}

    def step_limit(self, params: Params) -> int:
        """See `BatchedRules.step_limit`."""
        return params.max_nights

    def shortest_episode(self, params: Params) -> int:
        """See `BatchedRules.shortest_episode`."""
        return params.shortest_game

    def draw_steps(self, members: slice, steps: int) -> Numbers:
        """See `BatchedGame.draw_steps`."""
        native = self.native_rules
        by = evaluate if native is None else native.evaluate

        def events(params: BucketParams, games: int, uniform: Uniform) -> Numbers:
            return draw_events(params, steps, games, uniform, by)

        return self._of_each(members, events)

    def draw_first(self, members: slice) -> Numbers:
        """See `BatchedGame.draw_first`."""

        def starts(params: BucketParams, games: int, uniform: Uniform) -> Numbers:  # noqa: ARG001
            return {"starts": draw_starts(params, 1, uniform)}

        return self._of_each(members, starts)

    def _of_each(self, members: slice, draw: Draw) -> Numbers:
        """Return side by side what is drawn for each member from its own stream."""
        return side_by_side(
            [self._drawn(member, draw) for member in range(members.start, members.stop)]
        )

    def _drawn(self, member: int, draw: Draw) -> Numbers:
        """Return what is drawn for a member; scenario by scenario for the games of a mixture."""
        params, dealt, each = self._params[member], self._dealt[member], self.games_per_member
        if isinstance(params, BucketParams):
            return draw(params, each, self._uniform_of(member, each))
        assert dealt is not None
        counts = torch.bincount(dealt, minlength=len(params.parts)).tolist()
        made = [
            draw(part, count, self._uniform_of(member, count))
            for part, count in zip(params.parts, counts, strict=True)
            if count
        ]
        # From the order of scenarios to that of games.
        places = upload(dealt.argsort(stable=True).argsort(), self.device)
        return {name: own[..., places] for name, own in side_by_side(made).items()}

    def _uniform_of(self, member: int, games: int) -> Uniform:
        def uniform(nights: int) -> Tensor:
            shape = nights, self.num_houses, games
            return self._streams.member_uniform(member, *shape, dtype=torch.float32)

        return uniform

    def _split(self, numbers: Numbers) -> tuple[Any, ...]:
        """See `BatchedGame._split`: the houses that burn at first, and the night's events."""
        needed = numbers.get("needed")  # at a reset, there is no night
        spreads = numbers.get("spreads") if self.rules.continuous else None
        events = None if needed is None else NightEvents(needed, numbers["ignites"], spreads)
        return numbers["starts"], events

    def start(self, uniforms: Tensor) -> State:
        """See `BatchedRules.start`; uniforms: (H, E) bool, the houses that burn."""
        return {
            "houses": uniforms.view(torch.uint8),
            "acts": self.rules.no_acts,
            "progress": self.rules.no_progress,
        }

    def move(
        self, state: State, action: Tensor, uniforms: NightEvents
    ) -> tuple[State, Tensor, Tensor]:
        """See `BatchedRules.move`; action: (N, 3, E) uint8."""
        night = self.rules.play(state, action, self.age, uniforms)
        return night.state, night.rewards.div_(self.scale).t(), night.terminated

    def see(self, state: State) -> Tensor:
        """See `BatchedRules.see`."""
        return self._show(state, None).view(self.num_games, self.num_agents, -1)

    def _show(self, state: State, out: Tensor | None) -> Tensor:
        """See `BatchedGame._show`. After a rematch, a row has what its present seat sees."""
        obs = torch.empty(self._obs_shape, device=self.device) if out is None else out
        if self.native_rules is not None:
            self.native_rules.show(state, self._rows_of_seats(), obs)
            return obs
        agents = self._agent_of if self.rematches else None
        self.encoder.show(state["houses"], state["acts"], obs, self._game_of, agents)
        return obs

    def by_row(self, tensor: Tensor) -> Tensor:
        """See `BatchedGame.by_row`."""
        by_seat = tensor.flatten(0, 1)
        return by_seat[self._seat_of] if self.rematches else by_seat

    def by_game(self, rows: Tensor) -> Tensor:
        """See `GameEnv.by_game`: by the seats that rows have at present."""
        return super().by_game(rows[self._row_of] if self.rematches else rows)

    def of_game(self, tensor: Tensor) -> Tensor:
        """See `BatchedGame.of_game`."""
        return tensor.index_select(0, self._game_of)

    def _rows_of_seats(self) -> Tensor | None:
        """Return the row of every seat, (num_envs,) int64; None: seats are rows."""
        return self._row_of if self.rematches else None

    def by_seat(self, action: Tensor) -> Tensor:
        """See `BatchedGame.by_seat`; action: as of `_legal`; returns (N, 3, E)."""
        if self.native_rules is not None:
            return action
        if self.rematches:
            action = action.view(-1, 3)[self._row_of]
        acts = action.view(self.num_games, -1).t().clone(memory_format=torch.contiguous_format)
        return acts.view(self.num_agents, 3, self.num_games)

    def _make_faults(self) -> FaultLatch:
        """See `BatchedGame._make_faults`. A latch of the single choices: a row has three of them."""
        # Bytes, because there are many of them.
        return FaultLatch(3 * self.num_envs, 1, self._explain, self.device, torch.uint8)

    def _legal(self, action: Tensor) -> Tensor:
        """See `BatchedGame._legal`; returns (3 num_envs,) uint8, natively as `by_seat` does."""
        if self.native_rules is not None:
            acts, legal = self.native_rules.seat(action, self._rows_of_seats())
            if legal:
                self._faults.all_legal()
            else:
                self._record(action)
            return acts
        return self._record(action)

    def _record(self, action: Tensor) -> Tensor:
        """Record the rows' actions, and return legal ones in their place, (3 num_envs,) uint8."""
        given = action.clamp(-1, _MOST).to(torch.uint8).view(-1)
        made = torch.minimum(given, self._most)
        self._faults.record(given == made, given.unsqueeze(0))
        return made

    def faults(self) -> Tensor:
        """See `VecEnv.faults`."""
        return self._faults.latched().view(-1, 3).any(1)

    def _explain(self, fault: Fault) -> str:
        """See `BatchedGame._explain`."""
        row, choice = divmod(fault.row, 3)
        value = int(fault.values[0])
        named = {_MOST: f"{_MOST} or more", _MOST + 1: "less than 0"}.get(value, str(value))
        return illegal_choice(
            row, self.envs_per_member, fault.step, named, self.action_dims[choice], choice
        )

    def _checked_part(self, member: int) -> slice:
        """See `BatchedGame._checked_part`."""
        rows = self._rows(member)
        return slice(3 * rows.start, 3 * rows.stop)

    def reset_member(self, member: int, seed: int | None = None) -> None:
        """See `VecEnv.reset_member`.

        Reset members that play together at the same time: each resets its part of the games, and
        the seed of the first also seeds the dealing of seats.
        """
        group, place = divmod(member, self.together)
        if seed is not None and place == 0 and self.rematches:
            self._dealers.seed(group, derive_seed("deal", seed))
        if seed is not None and self._dealt[member] is not None:
            dealt = self._deal_scenarios(self._params[member], derive_seed("scenarios", seed))
            self._configure_games(member, dealt)
        super().reset_member(member, seed)
        rows = self._rows(member)
        self._deal(rows, torch.arange(rows.start, rows.stop, device=self.device))

    def draw(self, horizon: int) -> None:
        """See `VecEnv.draw`. Members that play together also get other seats."""
        if self.rematches:
            self._rematch()
        super().draw(horizon)

    def get_member(self, member: int) -> dict[str, Tensor]:
        """See `VecEnv.get_member`. Includes its part of shared games, and the seats of its rows."""
        group, place = divmod(member, self.together)
        seats = self._seat_of[self._rows(member)] - self._rows(member - place).start
        own = {"seats": seats, "dealer": self._dealers.state(group)}
        dealt = self._dealt[member]
        own |= {} if dealt is None else {"scenarios": dealt}
        return super().get_member(member) | on_cpu(own)

    def set_member(self, member: int, state: dict[str, Tensor]) -> None:
        """See `VecEnv.set_member`. The slot must be configured with the member's parameters.

        The state of members that play together is exact once all of them are restored, in the same
        order, in any group.
        """
        super().set_member(member, state)
        if "scenarios" in state:
            self._configure_games(member, state["scenarios"])
        group, place = divmod(member, self.together)
        seats = state["seats"].to(self.device) + self._rows(member - place).start
        self._deal(self._rows(member), seats)
        self._dealers.set_state(group, state["dealer"])

    def _rematch(self) -> None:
        """Deal the seats of every group's games to its members, as many to each as before."""
        rows = self.together * self.envs_per_member
        seats = self._dealers.permutations(1, rows)[:, 0]
        for group in range(self.num_members // self.together):
            if self._dealers.seeded(group):  # other groups are not in use
                first = group * rows
                self._deal(slice(first, first + rows), upload(seats[group], self.device) + first)

    def _deal(self, rows: slice, seats: Tensor) -> None:
        """Assign seats to these rows."""
        self._seat_of[rows] = seats
        self._game_of[rows] = seats // self.num_agents
        self._agent_of[rows] = seats % self.num_agents
        self.reward_unit = self.scale[self._game_of]
        self._row_of[seats] = torch.arange(rows.start, rows.stop, device=self.device)
