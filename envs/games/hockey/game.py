"""Laser hockey for thousands of games at once: starts, time limits, rewards and observations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sweepd.envs.games.hockey.native import STEP, NativeHockey
from sweepd.envs.games.hockey.physics import Bodies, length, own_frames
from sweepd.envs.games.hockey.rules import DISCRETE_ACTIONS, SHOT_SPEED, GameState, play
from sweepd.envs.games.tensor_game import State, TensorGame
from sweepd.envs.support.errors import InputError

MODES = ("normal", "train_shooting", "train_defense")
TIME_LIMITS = {"normal": 250, "train_shooting": 80, "train_defense": 80}
GOAL_REWARD = 10.0
SHAPING = ("closeness", "touch", "direction")


@dataclass(frozen=True)
class HockeyParams:
    """Parameters of one member's games. All members have the same keep_mode and discrete.

    Attributes:
        mode: "normal", "train_shooting" (player 2 stands anywhere in its half, player 1 starts) or
            "train_defense" (the puck is shot at player 1's goal).
        keep_mode: whether players catch, hold and shoot the puck.
        discrete: whether actions are the eight of `DISCRETE_ACTIONS` instead of continuous ones.
        max_timesteps: an episode has one step more; 0: 250 in mode normal, else 80.
        closeness: weight of the penalty for a puck in one's own half that does not leave it.
        touch: reward for catching the puck.
        direction: weight of the reward for the puck's speed towards the other goal.

    Raises:
        InputError: a value is out of its range.
    """

    mode: str = "normal"
    keep_mode: bool = True
    discrete: bool = False
    max_timesteps: int = 0
    closeness: float = 1.0
    touch: float = 0.0
    direction: float = 0.0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InputError(f"hockey mode {self.mode!r} is not one of {', '.join(MODES)}")
        for name in ("keep_mode", "discrete"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"hockey parameter {name} is {getattr(self, name)!r}, not a bool")
        limit = self.max_timesteps
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise InputError(
                f"hockey parameter max_timesteps is {limit!r}; it must be a whole number, 0 or more"
            )
        for name in SHAPING:
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not math.isfinite(value):
                raise InputError(f"hockey parameter {name} is {value!r}; it must be a number")

    @property
    def time_limit(self) -> int:
        """Value of the game's clock at which an episode is truncated."""
        return self.max_timesteps or TIME_LIMITS[self.mode]


class Hockey(TensorGame):
    """Laser hockey between two players, who move at the same time.

    Rows 2 g and 2 g + 1 are players 1 and 2 of game g, each in its own frame: one's own goal is at
    negative x. Observations: x, y, angle, vx, vy and omega of oneself, then of the other; x, y, vx
    and vy of the puck; in keep mode the counters of oneself and of the other (above 0 while the
    puck is held).

    Actions: x force, y force, torque and, in keep mode, shoot; or one of `DISCRETE_ACTIONS`.
    """

    seats = 2
    uniforms_per_start = 6
    native_code = STEP.library, NativeHockey.of

    def prepare(self, params: Sequence[HockeyParams]) -> None:
        """See `TensorGame.prepare`."""
        forms = {(own.keep_mode, own.discrete) for own in params}
        if len(forms) > 1:
            raise InputError("all members' hockey games must have the same keep_mode and discrete")
        ((self.keep_mode, self.if_discrete),) = forms
        self.state_dim = 18 if self.keep_mode else 16
        self.max_step = max(own.time_limit + 1 for own in params)
        # Without keep mode there is no shooting, the last action in both forms.
        self.action_dim = (8 if self.if_discrete else 4) - (not self.keep_mode)
        self._table = torch.tensor(DISCRETE_ACTIONS, device=self.device)[:, : 3 + self.keep_mode]
        signs = torch.tensor([-1.0, -1.0, 1.0, -1.0, -1.0, 1.0], device=self.device)
        self._mirror = signs.unsqueeze(1)

    def configure_member(self, member: int, params: HockeyParams) -> None:
        """See `TensorGame.configure_member`."""
        if (params.keep_mode, params.discrete) != (self.keep_mode, self.if_discrete):
            raise InputError("a hockey member's keep_mode and discrete must be the environment's")
        super().configure_member(member, params)

    def numeric(self, params: HockeyParams) -> dict[str, float]:
        """See `TensorGame.numeric`."""
        own = super().numeric(params)
        return own | {
            "time_limit": float(params.time_limit),
            "mode": float(MODES.index(params.mode)),
        }

    def step_limit(self, params: HockeyParams) -> int:
        """See `TensorGame.step_limit`."""
        return params.time_limit + 1

    def start(self, uniforms: Tensor) -> State:
        """See `TensorGame.start`. Player 1 starts in half of the games of mode normal."""
        first, px, py, p2x, p2y, shot_y = uniforms.float().unbind(1)
        mode = self.numbers["mode"]
        training, defense = mode > 0, mode == 2
        sign = torch.where((first < 0.5) | training, -1.0, 1.0)
        puck_x = torch.where(defense, px * 3.333, sign * (1.0 + px))
        puck_y = torch.where(defense, 0.8 * (8.0 * py - 4.0), 2.0 * py - 1.0)
        aim_x, aim_y = -5.0 - puck_x, 0.6 * 1.25 * (2.0 * shot_y - 1.0) - puck_y
        speed = torch.where(defense, SHOT_SPEED / length(aim_x, aim_y), 0.0)
        zero = torch.zeros_like(puck_x)
        # Player 2's position is given in the world; its frame is turned by half a turn.
        x2 = torch.where(training, -(3.0 - 3.333 + 5.0 * p2x), -3.0)
        y2 = torch.where(training, -(4.0 * p2y - 2.0), zero)
        columns = [zero - 3.0, x2, zero, y2, *[zero] * 8]
        columns += [puck_x, puck_y, aim_x * speed, aim_y * speed, zero]
        games = len(uniforms)
        return {
            "bodies": torch.stack(columns).t(),
            "counters": torch.zeros(games, 2, dtype=torch.int64, device=uniforms.device),
            "touching": torch.zeros(games, 2, dtype=torch.bool, device=uniforms.device),
            "scored": zero,
        }

    def decode(self, action: Tensor) -> Tensor:
        """See `TensorGame.decode`. Controls are continuous actions."""
        return self._table[action] if self.if_discrete else action

    def outcome(self, state: State, returns: Tensor) -> Tensor:
        """See `TensorGame.outcome`. By goals."""
        del returns
        ahead = 0.5 * state["scored"].double()
        return 0.5 + torch.stack((ahead, -ahead), 1)

    def move(self, state: State, action: Tensor, uniforms: Tensor) -> tuple[State, Tensor, Tensor]:
        """See `TensorGame.move`."""
        del uniforms
        # Transposed as a matrix, which torch does in blocks.
        rows = action.to(self._table.dtype).flatten(1).t().contiguous()
        controls = rows.view(2, -1, rows.shape[1]).transpose(0, 1)
        game, played = play(_unpacked(state), controls, keep_mode=self.keep_mode)
        reward = self._reward(game, played.caught)
        return _packed(game), reward.t(), played.ended

    def _reward(self, game: GameState, caught: Tensor) -> Tensor:
        """Return (2, games): goals, closeness, touch and direction."""
        x, vx = own_frames(game.puck.x), own_frames(game.puck.vx)
        clock = self.numbers["time_limit"].to(x.dtype)
        far = length(x - game.players.x, own_frames(game.puck.y) - game.players.y)
        near = torch.where((x < 0) & (vx <= 0), far * (-30.0 / (250 / 60 * clock / 2)), 0.0)
        weights = {name: self.numbers[name].to(x.dtype) for name in SHAPING}
        return (
            GOAL_REWARD * own_frames(game.scored)
            + weights["closeness"] * near
            + weights["touch"] * caught
            + weights["direction"] * vx / (25.0 * clock)
        )

    def see(self, state: State) -> Tensor:
        """See `TensorGame.see`."""
        game = _unpacked(state)
        own = torch.stack(game.players, 1)  # (2, 6, games)
        # In the other's frame positions and velocities are negated, angles and spins are not.
        mirrored = own.flip(0) * self._mirror
        puck = torch.stack((game.puck.x, game.puck.y, game.puck.vx, game.puck.vy))
        seen = [own, mirrored, own_frames(puck)]
        if self.keep_mode:
            counters = game.counters.to(own.dtype)
            seen.append(torch.stack((counters, counters.flip(0)), 1))
        columns = torch.cat(seen, 1)
        # Transposed as a matrix, which torch does in blocks.
        rows = columns.flatten(0, 1).t().contiguous()
        return rows.view(-1, *columns.shape[:2])


def _unpacked(state: State) -> GameState:
    """Return a state with games last. Every coordinate is contiguous, as `_packed` leaves it."""
    columns = state["bodies"].t()
    players = Bodies(*(columns[2 * k : 2 * k + 2] for k in range(6)))
    x, y, vx, vy, omega = columns[12:]
    return GameState(
        players,
        Bodies(x, y, torch.zeros_like(x), vx, vy, omega),
        state["counters"].t(),
        state["touching"].t(),
        state["scored"],
    )


def _packed(game: GameState) -> State:
    puck = game.puck
    columns = torch.cat(
        (*game.players, torch.stack((puck.x, puck.y, puck.vx, puck.vy, puck.omega)))
    )
    return {
        "bodies": columns.t(),
        "counters": game.counters.t(),
        "touching": game.touching.t(),
        "scored": game.scored,
    }
