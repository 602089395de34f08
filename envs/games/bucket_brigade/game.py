"""Bucket Brigade as a vectorized environment: agents put out fires in a ring of houses.

A row is a seat of a game. A member that plays alone has all seats of its games. Members that play
`together` share their games: every `draw` deals the seats of all their games to them at random.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sweepd.envs.core.faults import ChoiceLatch
from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.core.streams import Streams
from sweepd.envs.core.vec_env import Step, on_cpu
from sweepd.envs.games.bucket_brigade.events import EventBuffer
from sweepd.envs.games.bucket_brigade.observation import ObservationEncoder
from sweepd.envs.games.bucket_brigade.rules import GameBatch, blend_
from sweepd.envs.games.bucket_brigade.scenarios import BucketParams
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.upload import upload


class BucketBrigade(GameEnv):
    """`envs_per_member` rows per member, each a seat of a game; one game follows the other.

    Observations: see `sweepd.envs.games.bucket_brigade.observation`. Actions are (num_envs, 3)
    int64: a house, REST 0 or WORK 1, and a signal 0 or 1. The reward is the agent's own for the
    night, divided by `BucketParams.reward_scale` if observations are scaled.

    Attributes:
        rematches: Whether `draw` gives the rows other seats, also in `final_obs`. Faults stay with
            the row, since its member caused them.
    """

    env_name = "sweepd/BucketBrigade-v0"
    if_discrete = True
    _faults: ChoiceLatch

    def __init__(
        self,
        params: BucketParams | Sequence[BucketParams],
        envs_per_member: int,
        *,
        together: int = 1,
        scaled: bool = True,
        device: torch.device | str = "cpu",
        debug: bool = False,
    ) -> None:
        """Make the environment. Call `reset` before the first step.

        Args:
            params: One per member, or one for a single member; all with the same numbers of houses
                and agents.
            envs_per_member: Rows per member, a multiple of the number of agents.
            together: Number of consecutive members that share their games.
            scaled: Whether observations and rewards are encoded for learning, or the game's own.
            device: Device of the environment.
            debug: Whether to check for illegal actions after every step.

        Raises:
            InputError: The arguments do not fit together.
        """
        every = [params] if isinstance(params, BucketParams) else list(params)
        self._set_rows("Bucket Brigade", len(every), envs_per_member)
        self._set_games(every[0], together)
        self.device = torch.device(device)
        self.debug, self.scaled, self.prescaled = debug, scaled, scaled
        rows, houses, agents = self.num_envs, self.num_houses, self.num_agents

        self.games = GameBatch(houses, agents, self.num_games, self.device)
        self.encoder = ObservationEncoder(
            houses, agents, self.num_games, scaled=scaled, device=self.device
        )
        self.state_dim = self.encoder.size
        self._final_houses, self._final_acts = self.games.houses.clone(), self.games.acts.clone()
        self._scale = torch.ones(self.num_games, dtype=torch.float64, device=self.device)

        # A seat's number is game * agents + agent. `_seat_of` is by row, `_row_of` by seat.
        self._seat_of = torch.arange(rows, device=self.device)
        self._row_of = self._seat_of.clone()
        self._game_of, self._agent_of = self._seat_of // agents, self._seat_of % agents
        self._dealers = Streams(self.num_members // together)

        self._events = EventBuffer(every, self.games_per_member, self.device)
        self._started = False
        self._params = every
        self._faults = ChoiceLatch(rows, envs_per_member, self.action_dims, self.device)
        for member, own in enumerate(every):
            self.configure_member(member, own)

    def _set_games(self, params: BucketParams, together: int) -> None:
        """Set the numbers of games, houses, agents and actions; check that they fit the rows."""
        self.num_houses, self.num_agents = params.num_houses, params.num_agents
        if self.envs_per_member % self.num_agents:
            raise InputError(
                f"Bucket Brigade's envs per member are {self.envs_per_member}; they must be a "
                f"multiple of {self.num_agents}"
            )
        if together < 1 or self.num_members % together:
            raise InputError(
                f"{self.num_members} members of Bucket Brigade cannot play in groups of {together}"
            )
        self.together, self.rematches = together, together > 1
        self.games_per_member = self.envs_per_member // self.num_agents
        self.num_games = self.num_envs // self.num_agents
        self.action_dims = (self.num_houses, 2, 2)
        self.action_dim = sum(self.action_dims)

    def configure_member(self, member: int, params: BucketParams) -> None:
        """See `GameEnv.configure_member`."""
        if (params.num_houses, params.num_agents) != (self.num_houses, self.num_agents):
            raise InputError(
                "members of one batch of Bucket Brigade must have the same num_houses and "
                "num_agents"
            )
        games = self._games_of(member)
        self._params[member] = params
        self.games.configure(games, params)
        self.encoder.configure(games, params)
        self._events.configure(member, params)
        self._scale[games] = params.reward_scale if self.scaled else 1.0
        self.reward_unit = self._scale[self._game_of]
        self.bootstrap_interval = min(own.shortest_game for own in self._params)
        self.max_step = max(own.max_nights for own in self._params)

    def seeded(self, member: int) -> bool:
        """See `VecEnv.seeded`."""
        return self._events.seeded(member)

    def reset_member(self, member: int, seed: int | None = None) -> None:
        """See `VecEnv.reset_member`.

        Reset members that play together at the same time: each resets its part of the games, and
        the seed of the first also seeds the dealing of seats.
        """
        group, place = divmod(member, self.together)
        if seed is not None and place == 0 and self.rematches:
            self._dealers.seed(group, derive_seed("deal", seed))
        self.games.begin(self._games_of(member), self._events.restart(member, seed))
        rows = self._rows(member)
        self._deal(rows, torch.arange(rows.start, rows.stop, device=self.device))
        self._faults.clear(rows)
        self._started = True

    def draw(self, horizon: int) -> None:
        """See `VecEnv.draw`. Members that play together also get other seats."""
        if self.rematches:
            self._rematch()
        self._events.draw(horizon)

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        """See `VecEnv.step`."""
        self._check_shape(action, 3)
        if not self._started:
            raise RuntimeError("step was called before reset")
        noted = self._faults.record(action)
        events, starts = self._events.next()
        night = self.games.play(self._acts(noted), events)

        # Keep the final state of games that ended, then begin new ones in their place.
        done = night.terminated | night.truncated
        blend_(self._final_houses, self.games.houses, done)
        blend_(self._final_acts, self.games.acts, done)
        self.games.begin_where(done, starts)
        reward = night.rewards.div_(self._scale).t().float().reshape(-1)
        if self.rematches:  # rewards are in the order of seats; otherwise rows are, too
            reward = reward[self._seat_of]
        terminated = night.terminated.index_select(0, self._game_of)
        truncated = night.truncated.index_select(0, self._game_of)
        obs = self.observe(out)
        if self.debug:
            self.check()
        return Step(obs, reward, terminated, truncated)

    def observe(self, out: Tensor | None = None) -> Tensor:
        """See `VecEnv.observe`."""
        return self._encode(self.games.houses, self.games.acts, out)

    def final_obs(self) -> Tensor:
        """See `VecEnv.final_obs`. After a rematch, a row has that of its present seat."""
        return self._encode(self._final_houses, self._final_acts, None)

    def ended(self) -> tuple[Tensor, Tensor]:
        """Return houses (H, E) and acts (N, 3, E) at the end of each place's last ended game."""
        return self._final_houses, self._final_acts

    def get_member(self, member: int) -> dict[str, Tensor]:
        """See `VecEnv.get_member`. Includes its part of shared games, and the seats of its rows."""
        games, rows = self._games_of(member), self._rows(member)
        group, place = divmod(member, self.together)
        own = {name: tensor[..., games] for name, tensor in self._state().items()}
        own |= {
            "seats": self._seat_of[rows] - self._rows(member - place).start,
            "dealer": self._dealers.state(group),
        }
        own |= self._events.state(member)
        own |= self._faults.state(rows)
        return on_cpu(own)

    def set_member(self, member: int, state: dict[str, Tensor]) -> None:
        """See `VecEnv.set_member`. The slot must be configured with the member's parameters.

        The state of members that play together is exact once all of them are restored, in the same
        order, in any group.
        """
        games, rows = self._games_of(member), self._rows(member)
        group, place = divmod(member, self.together)
        for name, tensor in self._state().items():
            tensor[..., games] = state[name].to(self.device)
        self._deal(rows, state["seats"].to(self.device) + self._rows(member - place).start)
        self._dealers.set_state(group, state["dealer"])
        self._events.set_state(member, state)
        self._faults.set_state(rows, state)
        self._started = True

    def _games_of(self, member: int) -> slice:
        return slice(member * self.games_per_member, (member + 1) * self.games_per_member)

    def _state(self) -> dict[str, Tensor]:
        """Return the tensors that change with time, games last."""
        games = self.games
        return {
            "houses": games.houses,
            "acts": games.acts,
            "progress": games.progress,
            "night": games.night,
            "final_houses": self._final_houses,
            "final_acts": self._final_acts,
        }

    def _acts(self, noted: Tensor) -> Tensor:
        """Convert the rows' (num_envs, 3) actions to (N, 3, E) uint8, all legal."""
        if self.rematches:
            noted = noted[self._row_of]
        acts = noted.view(self.num_games, -1).t().clone(memory_format=torch.contiguous_format)
        acts = acts.view(self.num_agents, 3, self.num_games)
        for choice, options in enumerate(self.action_dims):
            acts[:, choice].clamp_max_(options - 1)
        return acts

    def _encode(self, houses: Tensor, acts: Tensor, out: Tensor | None) -> Tensor:
        obs = torch.empty(self.num_envs, self.state_dim, device=self.device) if out is None else out
        self.encoder.show(
            houses, acts, obs, self._game_of, self._agent_of if self.rematches else None
        )
        return obs

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
        self.reward_unit = self._scale[self._game_of]
        self._row_of[seats] = torch.arange(rows.start, rows.stop, device=self.device)
