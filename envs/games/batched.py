"""The base class of games as tensors: everything of a vectorized environment except the rules.

A random stream per member, numbers drawn ahead, autoreset, final observations, faults, and slots for
changing members. `TensorGame` adds what games of two need: opponents, turns and masks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sweepd.envs.core.faults import Fault, FaultLatch, illegal_choice, illegal_number
from sweepd.envs.core.rows import put_rows, take_rows, where_rows
from sweepd.envs.core.streams import Streams
from sweepd.envs.core.vec_env import Step, on_cpu
from sweepd.envs.games.batched_rules import (
    BatchedRules,
    CodeFor,
    MakeNative,
    NativeStep,
    Rules,
    State,
)
from sweepd.envs.games.drawn_ahead import Numbers, StartsAhead, StepNumbers
from sweepd.envs.games.game import Game, MakeBatchedGame, NoParams
from sweepd.envs.games.opponents import ScriptedPlayer
from sweepd.envs.native.memory import takes_floats
from sweepd.envs.support.errors import InputError


class BatchedGame(BatchedRules):
    """Games that are played one after the other; `BatchedRules` says what a subclass implements."""

    _steps_ahead = 1  # for which numbers are drawn at once if `draw` was not called
    _faults: FaultLatch

    @classmethod
    def game(
        cls,
        params: Callable[..., Any] = NoParams,
        *,
        solved: float | None = None,
        scripted: Callable[[Any], Mapping[str, ScriptedPlayer]] = lambda _: {},
    ) -> Game:
        """Return the game for `sweepd train --env MODULE:NAME`.

        The module contains `NAME = ThisClass.game(Params)`.

        Args:
            params: A frozen dataclass of the game's parameters.
            solved: See `Game`.
            scripted: See `Game`.
        """
        make = MakeBatchedGame(cls, cls.seats, cls.in_turns)
        return make.game(cls.__name__, params, solved, scripted)

    def __init__(
        self,
        params: Any,
        envs_per_member: int,
        *,
        device: torch.device | str = "cpu",
        debug: bool = False,
        native: bool = True,
    ) -> None:
        """Make the environment. Call `reset` before the first step.

        Args:
            params: A list with the parameters of each member, or those of a single member.
            envs_per_member: Rows per member: its games times the number of `seats`.
            device: Device of the environment.
            debug: Whether to check for illegal actions after every step.
            native: Whether to use native code, if there is any. Results are the same.

        Raises:
            InputError: The arguments do not fit together, or the game's declaration is wrong.
        """
        every = list(params) if isinstance(params, Sequence) else [params]
        self.env_name = getattr(type(self), "env_name", type(self).__name__)
        self.device, self.debug = torch.device(device), debug
        self._set_rows(type(self).__name__, len(every), envs_per_member)
        self._set_seats(every)
        self.games_per_member = envs_per_member // self.rows_per_game
        self.num_games = games = self.num_members * self.games_per_member
        self.prepare(every)
        if self.action_dims:
            self.action_dim = sum(self.action_dims)
        self._declare()
        # As tensors, the parameters can differ between members.
        self.numbers = {
            name: torch.zeros(games, dtype=torch.float64, device=self.device)
            for name in self.numeric(every[0])
        }
        self.shortest = [self.shortest_episode(own) for own in every]
        self._limits = [self.step_limit(own) for own in every]
        self._limit = torch.zeros(games, dtype=torch.int64, device=self.device)
        self._started = False
        self._make_state()
        for member, own in enumerate(every):
            self.configure_member(member, own)
        if native and self.native_code is not None:
            self._use_native(*self.native_code)
        compiled = self.native_step is not None or self.native_rules is not None
        self.native = compiled and self.device.type == "cpu"
        needs_host = debug or self.native or self.spec.masked or self.uniforms_per_move
        if self.starts_ahead and self.seats == 1 and not needs_host:
            self.replayable = True

    def _set_seats(self, params: Sequence[Any]) -> None:  # noqa: ARG002
        """Set `rows_per_game`, from the members' parameters."""
        self._set_rows_per_game(self.seats)

    def _set_rows_per_game(self, rows: int) -> None:
        if self.envs_per_member % rows:
            raise InputError(
                f"{type(self).__name__} has {rows} seats, and {self.envs_per_member} envs are not a "
                "multiple of them"
            )
        self.rows_per_game = rows

    def _declare(self) -> None:
        """Check what the game declares, and set what follows from it."""

    def _make_state(self) -> None:
        """Make streams and state, as yet without episodes."""
        self._streams = Streams(self.num_members, self.device)
        self._numbers = StepNumbers(
            self.num_members,
            self.games_per_member,
            self.draw_steps,
            self.device,
            axis=self.axis,
            ahead=self._steps_ahead,
        )
        # The numbers of every step, where none needs any.
        none = torch.zeros(self.num_games, 0, dtype=torch.float64, device=self.device)
        self._none = None if sum(self._columns()) else self._split({"uniforms": none})
        self.age = torch.zeros(self.num_games, dtype=torch.int64, device=self.device)
        begun = self._any_start()
        self.state = {name: tensor.clone() for name, tensor in begun.items()}
        self.final = {name: tensor.clone() for name, tensor in begun.items()}
        self._starts = StartsAhead(self, begun) if self.starts_ahead else None
        several = len(self.spec.action_dims) if self.if_discrete else self.action_dim
        self._action_shape = (several,) if several else ()
        self._obs_shape = torch.Size((self.num_envs, self.spec.obs_dim))
        self._faults = self._make_faults()

    def _any_start(self) -> State:
        """Return any state in which episodes begin; checks its shapes."""
        if self.starts_ahead:
            shape = self.num_games, self.uniforms_per_start
            begun = self.start(torch.zeros(shape, dtype=torch.float64, device=self.device))
        else:
            first = self.draw_first(slice(0, 1))
            drawn = {name: torch.zeros_like(own) for name, own in first.items()}
            begun = self.start(self._split(self._numbers.alone(0, drawn))[0])
        for part, tensor in begun.items():
            if not tensor.shape or tensor.shape[self.axis] != self.num_games:
                raise InputError(
                    f"{self.env_name}.start: {part!r} has the shape {tuple(tensor.shape)}; its "
                    f"{'last' if self.axis else 'first'} dimension must be the games, "
                    f"{self.num_games} here"
                )
        return begun

    @property
    def active_rules(self) -> Rules:
        """What computes the rules: compiled code where it is used, else the game itself."""
        return self.native_rules or self

    def _use_native(self, code_for: CodeFor, make: MakeNative) -> None:
        """Let native code compute the rules, or make the steps in its memory, if it can be used."""
        code = code_for(self.device)
        if code is None or torch.get_default_dtype() != torch.float32:
            return
        native = make(code, self)
        if self._starts is None:
            self.native_rules = native
            return
        self.native_step = native
        self.state, self._starts.state, self.final = native.state, native.begun, native.final
        self.age = native.age
        native.configure()

    def configure_member(self, member: int, params: Any) -> None:
        """See `GameEnv.configure_member`."""
        if self._starts:
            self._starts.refill()
        games = self.games_of(member)
        for name, number in self.numeric(params).items():
            self.numbers[name][games] = number
        self.shortest[member] = self.shortest_episode(params)
        self._limits[member] = self._limit[games] = self.step_limit(params)
        self.bootstrap_interval, self.max_step = min(self.shortest), max(self._limits)
        self.score_range = self.score_limits()
        if self.native_step is not None:
            self.native_step.configure()

    def change_member(self, member: int, params: Any) -> bool:
        """See `GameEnv.change_member`. Starts that are ready are drawn again."""
        self.configure_member(member, params)
        if self._starts:
            self._starts.renew(member)
        return False

    def seeded(self, member: int) -> bool:
        """See `VecEnv.seeded`."""
        return self._streams.seeded(member)

    def reset_member(self, member: int, seed: int | None = None) -> None:
        """See `VecEnv.reset_member`."""
        if seed is not None:
            self._streams.seed(member, seed)
        numbers = self._none
        if numbers is None:
            self._numbers.discard(member)
            first = self.draw_first(slice(member, member + 1))
            numbers = self._split(self._numbers.alone(member, first))
        if self._starts:
            self._starts.renew(member)
        # `start` computes all games, of which only the member's are used.
        begun = self._starts.state if self._starts else self.start(numbers[0])
        games = self.games_of(member)
        put_rows(self.state, games, take_rows(begun, games, self.axis), self.axis)
        if self._starts:
            self._starts.renew(member)  # as each game can begin another one before the first refill
        own = torch.zeros(self.num_games, dtype=torch.bool, device=self.device)
        own[games] = True
        self.age.masked_fill_(own, 0)
        self._begun(own, numbers)
        self._faults.clear(self._checked_part(member))
        self._started = True

    def draw(self, horizon: int) -> None:
        """See `VecEnv.draw`."""
        if self._starts:
            self._starts.draw(horizon)
        if self._none is None:
            self._numbers.draw(horizon)

    def draw_steps(self, members: slice, steps: int) -> Numbers:
        """Draw what members' games need in the next steps: (steps, ...) by name, see `_split`."""
        columns = sum(self._columns())
        drawn = self._streams.uniform(
            steps, self.games_per_member * columns, dtype=torch.float64, members=members
        )
        return {"uniforms": drawn.view(steps, -1, columns)}

    def draw_first(self, members: slice) -> Numbers:
        """Draw what members' games need to begin at a reset, as `draw_steps` for one step."""
        return self.draw_steps(members, 1)

    def _columns(self) -> tuple[int, ...]:
        """Return the uniform numbers per game and step: for `start` and for `move`."""
        return 0 if self.starts_ahead else self.uniforms_per_start, self.uniforms_per_move

    def _split(self, numbers: Numbers) -> tuple[Any, ...]:
        """Return a step's numbers for `start` and for `move`."""
        return numbers["uniforms"].split_with_sizes(self._columns(), 1)

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        """See `VecEnv.step`."""
        return self._planned(action, out, *self._action_shape)

    def plan_step(self) -> Hashable:
        """See `VecEnv.plan_step`. All steps run the same operations."""
        if not self._started:
            raise RuntimeError("step was called before reset")
        self._faults.count()
        if self._starts:
            self._starts.count_step()
        return ()

    def planned_step(self, action: Tensor, out: Tensor | None = None) -> Step:
        """See `VecEnv.planned_step`."""
        native, device = self.native_step, self.age.device
        if (
            native is not None
            and action.dtype == torch.int64
            and action.device == device
            and takes_floats(out, self._obs_shape, device)
        ):
            step = self._native_step(native, action.contiguous(), out)
        else:
            step = self._torch_step(action, out)
        if self.follower is not None:
            self.follower.count(step)
        return step

    def _native_step(self, native: NativeStep, action: Tensor, out: Tensor | None) -> Step:
        """Make a step by native code; to the bit, it is `_torch_step`."""
        obs = torch.empty(self._obs_shape, device=self.device) if out is None else out
        return Step(obs, *native.step(action, obs, self._faults))

    def _torch_step(self, action: Tensor, out: Tensor | None) -> Step:
        numbers = self._none or self._split(self._numbers.next())
        state, reward, terminated = self._play(self._legal(action), numbers)
        if self._starts:
            state, reward, terminated = self._apart(state, reward, terminated)
        truncated = self.truncated(self.age >= self._limit, terminated)
        done = terminated | truncated
        rewards = self._ended(state, reward, done)
        self.state = self.active_rules.restart(state, done, numbers[0])
        self.age.masked_fill_(done, 0)
        self._begun(done, numbers)
        ends = self.of_game(terminated), self.of_game(truncated)
        return Step(self.observe(out), rewards, *ends)

    def restart(self, state: State, ended: Tensor, uniforms: Any) -> State:
        """See `BatchedRules.restart`.

        `start` is computed for all games and used where an episode ended: a step must not branch on
        the values of tensors.
        """
        self.final = self._chosen(self.final, ended, state, self.final)
        begun = self._starts.state if self._starts else self.start(uniforms)
        return self._chosen(self.state, ended, begun, state)

    def _play(self, action: Tensor, numbers: tuple[Any, ...]) -> tuple[State, Tensor, Tensor]:
        """Play a step and count it. Arguments and results as of `move`, for the rows' actions."""
        played = self.active_rules.move(self.state, self.by_seat(action), numbers[1])
        self.age += 1
        return played

    def _ended(self, state: State, reward: Tensor, done: Tensor) -> Tensor:  # noqa: ARG002
        """Return the rows' rewards, given the seats', before others begin in place of `done` games."""
        return self.by_row(reward.float())

    def _begun(self, games: Tensor, numbers: tuple[Any, ...]) -> None:
        """Do what else is to be done where episodes begin: in `games`, (G,) bool."""

    def _apart(
        self, state: State, reward: Tensor, terminated: Tensor
    ) -> tuple[State, Tensor, Tensor]:
        """Return what `_play` returned, with copies of what is in the memory of the state before.

        `_chosen` overwrites that memory. A part that is the same as before may stay.
        """
        memory = [tensor.untyped_storage() for tensor in self.state.values()]

        def own(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            return tensor.clone() if any(storage is other for other in memory) else tensor

        parts = {
            name: tensor if tensor is self.state[name] else own(tensor)
            for name, tensor in state.items()
        }
        return parts, own(reward), own(terminated)

    def _chosen(self, memory: State, where: Tensor, one: State, other: State) -> State:
        """Return `one` in the games of `where`, else `other`.

        With `starts_ahead`, it is written to `memory`, whose address native code and replays of a
        step have.
        """
        # What is always the same, such as a part of the state that no member's rules use, is kept.
        return {
            name: tensor
            if tensor is one[name]
            else where_rows(
                where, one[name], tensor, self.axis, memory[name] if self._starts else None
            )
            for name, tensor in other.items()
        }

    def by_seat(self, action: Tensor) -> Tensor:
        """Return the rows' actions as those of seats."""
        rows = self.rows_per_game
        return action if rows == 1 else action.view(-1, rows, *action.shape[1:])

    def by_row(self, tensor: Tensor) -> Tensor:
        """Return a tensor of seats as one of rows."""
        return tensor if self.rows_per_game == 1 else tensor.flatten(0, 1)

    def of_game(self, tensor: Tensor) -> Tensor:
        """Return every row's copy of a tensor of games (G,)."""
        rows = self.rows_per_game
        return tensor if rows == 1 else torch.stack((tensor,) * rows, 1).view(-1)

    def observe(self, out: Tensor | None = None) -> Tensor:
        """See `VecEnv.observe`."""
        return self._show(self.state, out)

    def final_obs(self) -> Tensor:
        """See `VecEnv.final_obs`."""
        return self._show(self.final, None)

    def _show(self, state: State, out: Tensor | None) -> Tensor:
        """Return the rows' observations of a state, or write them to `out`."""
        seen = self.active_rules.see(state)
        if self.spec.privileged_dim:
            seen = torch.cat((seen, self.privileged(state)), -1)
        seen = self.by_row(seen)
        return seen.to(self.spec.torch_dtype, copy=True) if out is None else out.copy_(seen)

    def _make_faults(self) -> FaultLatch:
        columns, kind = (1, torch.int64) if self.if_discrete else (self.action_dim, torch.float64)
        return FaultLatch(self.num_envs, columns, self._explain, self.device, kind)

    def _legal(self, action: Tensor) -> Tensor:
        """Record the rows' actions, and return legal ones in their place."""
        if not self.if_discrete:
            if self.active_rules.in_range(action):
                self._faults.all_legal()
                return action
            self._faults.record_sizes(action.t().double())
            # NaN becomes 0: the row is faulty, and its numbers must stay finite until `check`.
            return action.double().nan_to_num(0.0).clamp(-1.0, 1.0)
        made = action.clamp(0, self.action_dim - 1)
        self._faults.record(made == action, action.unsqueeze(0))
        return made

    def in_range(self, action: Tensor) -> bool:  # noqa: ARG002
        """See `BatchedRules.in_range`. Torch cannot tell without waiting for the device."""
        return False

    def _explain(self, fault: Fault) -> str:
        """Say what is wrong with an action."""
        if self.if_discrete:
            value = str(int(fault.values[0]))
            rows = self.envs_per_member
            return illegal_choice(fault.row, rows, fault.step, value, self.action_dim)
        return illegal_number(fault, self.envs_per_member, [*map(str, range(self.action_dim))])

    def _checked_part(self, member: int) -> slice:
        """Return the member's part of `_faults`."""
        return self._rows(member)

    def get_member(self, member: int) -> dict[str, Tensor]:
        """See `VecEnv.get_member`."""
        if self._starts:
            self._starts.refill()
        own = take_rows(self._of_games(), self.games_of(member), self.axis)
        own |= self._numbers.state(member) | {"stream": self._streams.state(member)}
        if self._starts:
            own |= self._starts.get_member(member)
        if self.follower is not None:
            own |= self.follower.get_member(member)
        return on_cpu(own | self._faults.state(self._checked_part(member)))

    def set_member(self, member: int, state: dict[str, Tensor]) -> None:
        """See `VecEnv.set_member`. The slot must be configured with the member's parameters."""
        if self.follower is not None:
            self.follower.set_member(member, state)
        if self._starts:
            self._starts.refill()
            self._starts.set_member(member, state)
        put_rows(self._of_games(), self.games_of(member), state, self.axis)
        self._streams.set_state(member, state["stream"])
        self._numbers.set_state(member, state)
        self._faults.set_state(self._checked_part(member), state)
        self._started = True

    def _of_games(self) -> dict[str, Tensor]:
        """Return the tensors of games that move with a member."""
        parts = {"state": self.state, "final": self.final}
        if self._starts:
            parts["start"] = self._starts.state
        own = {f"{part}_{name}": t for part, state in parts.items() for name, t in state.items()}
        return own | {"age": self.age}
