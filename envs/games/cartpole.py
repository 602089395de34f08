"""CartPole (Barto, Sutton and Anderson, 1983) as a vectorized environment.

The equations are those of Gymnasium's `CartPole-v1`, integrated by the Euler method in float64 as
there, so that whole episodes agree; only the rounding of single operations differs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from sweepd.envs.core.faults import ChoiceLatch
from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.core.streams import Streams
from sweepd.envs.core.vec_env import Step, on_cpu
from sweepd.envs.games.native.cartpole import STEP, NativeStep
from sweepd.envs.native.memory import per_row, takes_floats
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.upload import upload

_AHEAD = 64  # steps for which starts are drawn ahead if `draw` was not called


@dataclass(frozen=True)
class CartPoleParams:
    """Parameters of one member's cart and pole, in SI units; members of a batch may differ in all.

    Attributes:
        gravity: m/s².
        masscart: kg.
        masspole: kg.
        length: Half the length of the pole, m.
        force_mag: Force that pushes the cart to the left or right, N.
        tau: Time between steps, s.
        x_threshold: Distance of the cart from the centre that terminates an episode, m.
        theta_threshold: Angle of the pole that terminates an episode, rad.
        max_steps: Steps after which an episode is truncated.
        start_range: Episodes start with all four state variables uniform between -start_range and
            start_range.

    Raises:
        InputError: A value is out of its range.
    """

    gravity: float = 9.8
    masscart: float = 1.0
    masspole: float = 0.1
    length: float = 0.5
    force_mag: float = 10.0
    tau: float = 0.02
    x_threshold: float = 2.4
    theta_threshold: float = 12 * 2 * math.pi / 360
    max_steps: int = 500
    start_range: float = 0.05

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            kind = "a whole number" if field.type == "int" else "a number"
            right_type = isinstance(value, int if field.type == "int" else int | float)
            if isinstance(value, bool) or not right_type or not math.isfinite(value):
                raise InputError(f"CartPole parameter {field.name} is {value!r}; it must be {kind}")
            may_be_zero = field.name in ("gravity", "force_mag", "start_range")
            if value < 0 or (value == 0 and not may_be_zero):
                least = "at least 0" if may_be_zero else "above 0"
                raise InputError(
                    f"CartPole parameter {field.name} is {value!r}; it must be {least}"
                )
        nearest = min(self.x_threshold, self.theta_threshold)
        if self.start_range > nearest:
            raise InputError(
                f"CartPole parameter start_range is {self.start_range!r}; it must be at most "
                f"{nearest!r}"
            )


def shortest_episode(params: CartPoleParams) -> int:
    """Return a lower bound on the length of every episode, for any start and actions.

    Interval arithmetic: the bounds of position, angle and their speeds grow in every step by the
    largest accelerations that the bounds allow.
    """
    p, total = params, params.masscart + params.masspole
    coupling = p.masspole * p.length / total
    x = theta = speed = turning = p.start_range
    steps = 0
    while steps < p.max_steps and x <= p.x_threshold and theta <= p.theta_threshold:
        sine = math.sin(min(theta, math.pi / 2))
        push = p.force_mag / total + coupling * turning**2 * sine
        angular = (p.gravity * sine + push) / (4 / 3 * p.length - coupling)
        x, theta = x + p.tau * speed, theta + p.tau * turning
        speed, turning = speed + p.tau * (push + coupling * angular), turning + p.tau * angular
        steps += 1
    return steps


class CartPole(GameEnv):
    """`envs_per_member` rows per member, each balancing a pole in one episode after the other.

    Observations are (num_envs, 4) float32: position and speed of the cart (m, m/s), angle and
    angular speed of the pole (rad, rad/s). Actions are (num_envs,) int64: 0 pushes the cart to the
    left, 1 to the right. The reward is 1 in every step.
    """

    env_name = "sweepd/CartPole-v1"
    state_dim = 4
    action_dim = 2
    if_discrete = True
    _faults: ChoiceLatch

    def __init__(
        self,
        params: CartPoleParams | Sequence[CartPoleParams],
        envs_per_member: int,
        *,
        device: torch.device | str = "cpu",
        debug: bool = False,
        native: bool = True,
    ) -> None:
        """Make the environment. Call `reset` before the first step.

        Args:
            params: One per member, or one for a single member.
            envs_per_member: Rows per member.
            device: Device of the environment.
            debug: Whether to check for illegal actions after every step.
            native: Whether to use the native step where it can be used. Results are the same.
        """
        every = [params] if isinstance(params, CartPoleParams) else list(params)
        self._set_rows("CartPole", len(every), envs_per_member)
        rows = self.num_envs
        self.device = torch.device(device)
        self.debug = debug
        self._make_state()
        self._make_terms()
        library = STEP.library(self.device) if native else None
        self._native = NativeStep(library, self._native_state()) if library else None
        self.native = library is not None
        self.replayable = not debug and not self.native
        self._reward = torch.ones(rows, device=self.device)
        self._obs_shape = torch.Size((rows, self.state_dim))

        self._streams = Streams(self.num_members)
        # `_start` has the next start of every row. A row cannot use two starts within
        # `bootstrap_interval` steps, so used ones are replaced at that interval (`_refill`), by
        # entry `turn` of the row's column in `_pool`, the starts drawn ahead.
        self._pool = torch.zeros(1, 4, rows, dtype=torch.float64, device=self.device)
        self._turn = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self._rounds = np.zeros(self.num_members, dtype=np.int64)  # entries drawn by each member
        # Steps for which they suffice, counted from the last refill.
        self._drawn = np.zeros(self.num_members, dtype=np.int64)
        # Steps since the last refill, and until the next refill or draw.
        self._since = self._until = 0
        self._shortest = np.ones(self.num_members, dtype=np.int64)
        self._started = False
        self._params = every
        self._faults = ChoiceLatch(rows, envs_per_member, self.action_dim, self.device)
        for member, own in enumerate(every):
            self.configure_member(member, own)

    def _per_row(self, *shape: int) -> Tensor:
        return per_row(*shape, rows=self.num_envs, device=self.device)

    def _make_state(self) -> None:
        """Allocate the state and the limits of its variables."""
        # The rows of the state are pairs of a variable and its rate of change: position and speed,
        # angle and angular speed, the episode's age and 1.
        self._state, self._start = self._per_row(6), self._per_row(6)
        self._final = self._per_row(4)
        self._state[5] = self._start[5] = 1.0
        self._moving, self._rates = self._state[0::2], self._state[1::2]
        self._speeds, self._body = self._rates[:2], self._state[:4]
        self._angle, self._turning, self._age = self._state[2], self._state[3], self._state[4]
        self._time = self._per_row(3)  # change of each variable per step at rate 1: tau, tau, 1
        self._tau = self._time[:2]
        self._limits, self._over = self._per_row(3), self._per_row(3)
        self._outside, self._fallen, self._too_old = self._over

    def _make_terms(self) -> None:
        """Allocate the terms of the equations of motion, named as in `_move`."""
        # The cart's acceleration by a push to the left, and its change for a push to the right.
        self._left, self._from_left_to_right = self._per_row(), self._per_row()
        # With p = masspole * length / total mass (`_coupling`): sine and cosine; p sin, p cos, g
        # sin and 4/3 length; numerator and denominator of the pole's angular acceleration. They are
        # adjacent so that one operation computes several: starting an operation costs more than
        # computing a thousand rows.
        self._sine, self._cosine = self._trigonometry = self._per_row(2)
        self._coupling, self._gravity = self._per_row(), self._per_row()
        terms = self._per_row(4)
        self._swing, self._base = terms[:2], terms[2:]
        self._unbraked, self._reaction, self._fall, self._inertia = terms
        self._numerator, self._denominator = self._fraction = self._per_row(2)
        self._linear, self._angular = self._acceleration = self._per_row(2)
        self._push, self._square = self._per_row(), self._per_row()

    def configure_member(self, member: int, params: CartPoleParams) -> None:
        """See `GameEnv.configure_member`."""
        self._refill()
        rows = self._rows(member)
        total = params.masscart + params.masspole
        coupling = params.masspole * params.length / total
        push = params.force_mag / total
        self._left[rows], self._from_left_to_right[rows] = -push, 2.0 * push
        self._coupling[rows], self._gravity[rows] = coupling, params.gravity
        self._inertia[rows] = params.length * 4.0 / 3.0
        self._tau[:, rows], self._time[2, rows] = params.tau, 1.0
        # Ages are whole numbers, so `age > max_steps - 0.5` is exact for `age >= max_steps`.
        limits = (params.x_threshold, params.theta_threshold, params.max_steps - 0.5)
        for row, limit in zip(self._limits, limits, strict=True):
            row[rows] = limit
        self._params[member] = params
        self._shortest[member] = shortest_episode(params)
        self.bootstrap_interval = int(self._shortest.min())
        self.max_step = max(own.max_steps for own in self._params)
        self.score_range = (0.0, float(self.max_step))  # a point per step

    def seeded(self, member: int) -> bool:
        """See `VecEnv.seeded`."""
        return self._streams.seeded(member)

    def reset_member(self, member: int, seed: int | None = None) -> None:
        """See `VecEnv.reset_member`."""
        if seed is not None:
            self._streams.seed(member, seed)
        self._refill()
        rows = self._rows(member)
        self._start[:4, rows] = self._new_starts(member, 1)[0]
        self._state[:, rows] = self._start[:, rows]
        # The next start, so that each row can begin another episode before the first refill.
        self._start[:4, rows] = self._new_starts(member, 1)[0]
        self._drawn[member] = 0
        self._faults.clear(rows)
        self._started = True

    def draw(self, horizon: int) -> None:
        """See `VecEnv.draw`. Draws the starts of episodes that begin within `horizon` steps."""
        self._refill()
        for member in range(self.num_members):
            self._draw(member, horizon)

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        """See `VecEnv.step`. Do not write to the returned reward: every step returns the same."""
        self._check_shape(action)
        self.plan_step()
        step = self.planned_step(action, out)
        if self.debug:
            self.check()
        return step

    def plan_step(self) -> int:
        """See `VecEnv.plan_step`. Steps differ in the place where the actions are recorded."""
        if not self._until:
            self._prepare()
        self._until -= 1
        self._since += 1
        return self._faults.take_place()

    def planned_step(self, action: Tensor, out: Tensor | None = None) -> Step:
        """See `VecEnv.planned_step`."""
        native = self._native if action.dtype == torch.int64 and action.is_cpu else None
        if native is not None and takes_floats(out, self._obs_shape):
            return self._native_step(native, action, out)
        return self._torch_step(action, out)

    def _native_step(self, native: NativeStep, action: Tensor, out: Tensor | None) -> Step:
        """Make a step by `sweepd.envs.games.native`; to the bit, it is `_torch_step`."""
        torch.sin(self._angle, out=self._sine)
        torch.cos(self._angle, out=self._cosine)
        obs = torch.empty(self.num_envs, 4) if out is None else out
        terminated, truncated, illegal = native(action.contiguous(), self._faults.taken(), obs)
        if not illegal:
            self._faults.confirm()
        return Step(obs, self._reward, terminated, truncated)

    def _native_state(self) -> dict[str, Tensor]:
        """Return the tensors of `NativeStep`."""
        return {
            "state": self._state,
            "start": self._start,
            "final_state": self._final,
            "trigonometry": self._trigonometry,
            "left": self._left,
            "from_left_to_right": self._from_left_to_right,
            "coupling": self._coupling,
            "gravity": self._gravity,
            "inertia": self._inertia,
            "time": self._time,
            "limits": self._limits,
        }

    def _torch_step(self, action: Tensor, out: Tensor | None) -> Step:
        self._move(self._faults.put(action))
        # 1.0 where a limit is exceeded, else 0.0. With such weights `lerp` selects exactly, and is
        # faster than `where`.
        torch.abs(self._moving, out=self._over).gt_(self._limits)
        terminated = torch.maximum(self._outside, self._fallen)
        done = torch.maximum(terminated, self._too_old)
        self._final.lerp_(self._body, done)
        self._state.lerp_(self._start, done)
        return Step(self.observe(out), self._reward, terminated.bool(), self._too_old.bool())

    def _move(self, action: Tensor) -> None:
        """Integrate the equations of motion over one step, for (num_envs,) float64 actions.

        With force F, total mass M, half length l and p = masspole * l / M:

            u       = F / M + p * theta'^2 * sin(theta)
            theta'' = (g * sin(theta) - u * cos(theta)) / (4/3 * l - p * cos(theta)^2)
            x''     = u - p * cos(theta) * theta''

        R. Florian, "Correct equations for the dynamics of the cart-pole system", 2007, without
        friction; as in Gymnasium.
        """
        # Every operation writes into a buffer that exists: allocating would take longer.
        torch.sin(self._angle, out=self._sine)
        torch.cos(self._angle, out=self._cosine)
        torch.mul(self._trigonometry, self._coupling, out=self._swing)
        torch.mul(self._sine, self._gravity, out=self._fall)
        # u, in place of p sin.
        torch.addcmul(self._left, self._from_left_to_right, action, out=self._push)
        torch.mul(self._turning, self._turning, out=self._square)
        torch.addcmul(self._push, self._unbraked, self._square, out=self._unbraked)
        # Numerator and denominator of theta''.
        torch.addcmul(self._base, self._swing, self._cosine, value=-1.0, out=self._fraction)
        torch.div(self._numerator, self._denominator, out=self._angular)
        torch.addcmul(self._unbraked, self._reaction, self._angular, value=-1.0, out=self._linear)
        # Euler's method: first the variables, by the rates before the step, then the rates.
        self._moving.addcmul_(self._rates, self._time)
        self._speeds.addcmul_(self._acceleration, self._tau)

    def observe(self, out: Tensor | None = None) -> Tensor:
        """See `VecEnv.observe`."""
        obs = torch.empty(self.num_envs, 4, device=self.device) if out is None else out
        return obs.copy_(self._body.t())

    def final_obs(self) -> Tensor:
        """See `VecEnv.final_obs`."""
        return self._final.t().float()

    def get_member(self, member: int) -> dict[str, Tensor]:
        """See `VecEnv.get_member`."""
        self._refill()
        rows = self._rows(member)
        own = {
            "state": self._state[:, rows],
            "final": self._final[:, rows],
            "start": self._start[:, rows],
            "pool": self._pool[: self._rounds[member], :, rows],
            "turn": self._turn[rows],
            "drawn": torch.tensor(self._drawn[member]),
            "stream": self._streams.state(member),
        }
        own |= self._faults.state(rows)
        return on_cpu(own)

    def set_member(self, member: int, state: dict[str, Tensor]) -> None:
        """See `VecEnv.set_member`. The slot must be configured with the member's parameters."""
        self._refill()
        rows = self._rows(member)
        self._state[:, rows] = state["state"].to(self.device)
        self._final[:, rows] = state["final"].to(self.device)
        self._start[:, rows] = state["start"].to(self.device)
        self._put(member, state["pool"])
        self._turn[rows] = state["turn"].to(self.device)
        self._drawn[member] = int(state["drawn"])
        self._streams.set_state(member, state["stream"])
        self._faults.set_state(rows, state)
        self._started = True

    def _refill(self) -> None:
        """Replace the starts used since the last refill: of rows whose episode is younger."""
        if self._since and self._native is not None:
            self._native.refill(self._pool, self._turn, self._since)
            self._drawn -= self._since
        elif self._since:
            used = self._age < self._since
            # `turn` may be past the last entry in rows that need no other start.
            turn = self._turn.clamp_max(len(self._pool) - 1).expand(1, 4, -1)
            torch.where(used, self._pool.gather(0, turn)[0], self._start[:4], out=self._start[:4])
            self._turn += used
            self._drawn -= self._since
        self._since = self._until = 0

    def _prepare(self) -> None:
        """Have a start ready for every row, and draw more for members that have none left."""
        self._refill()
        if not self._started:
            raise RuntimeError("step was called before reset")
        for member in np.flatnonzero(self._drawn == 0):
            self._draw(int(member), _AHEAD)
        self._until = min(self.bootstrap_interval, int(self._drawn.min()))

    def _draw(self, member: int, steps: int) -> None:
        """Draw the starts that a member's next `steps` steps may need.

        No episode is shorter than `shortest_episode`, which limits the number per row.
        """
        rounds = -(-steps // int(self._shortest[member]))
        self._put(member, self._new_starts(member, rounds))
        self._turn[self._rows(member)] = 0
        self._drawn[member] = steps

    def _new_starts(self, member: int, rounds: int) -> Tensor:
        """Draw (rounds, 4, envs_per_member) float64 from the member's stream."""
        uniform = self._streams.member_uniform(member, rounds, 4, self.envs_per_member)
        return uniform.mul_(2.0).sub_(1.0).mul_(self._params[member].start_range)

    def _put(self, member: int, starts: Tensor) -> None:
        missing = len(starts) - len(self._pool)
        if missing > 0:
            self._pool = torch.cat([self._pool, self._pool.new_zeros(missing, 4, self.num_envs)])
        self._pool[: len(starts), :, self._rows(member)] = upload(starts, self.device)
        self._rounds[member] = len(starts)
