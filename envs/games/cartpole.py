"""CartPole (Barto, Sutton and Anderson, 1983) as a vectorized environment.

The equations are those of Gymnasium's `CartPole-v1`, integrated by the Euler method in float64 as
there, so that whole episodes agree; only the rounding of single operations differs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, addcmul

from sweepd.envs.games.batched import BatchedGame
from sweepd.envs.games.batched_rules import State
from sweepd.envs.games.native.cartpole import CartPoleStep, code_for
from sweepd.envs.support.validation import check_numbers


@dataclass(frozen=True)
class CartPoleParams:
    """Parameters of one member's cart and pole, in SI units; members of a batch may differ in all.

    Raises InputError for a value out of its range.
    """

    gravity: float = 9.8  # m/s²
    masscart: float = 1.0  # kg
    masspole: float = 0.1  # kg
    length: float = 0.5  # half the length of the pole, m
    force_mag: float = 10.0  # force that pushes the cart to the left or right, N
    tau: float = 0.02  # time between steps, s
    x_threshold: float = 2.4  # distance of the cart from the centre that terminates an episode, m
    theta_threshold: float = 12 * 2 * math.pi / 360  # angle of the pole that does so, rad
    max_steps: int = 500  # after which an episode is truncated
    start_range: float = 0.05  # all four variables start uniform between -start_range and this

    def __post_init__(self) -> None:
        most = min(self.x_threshold, self.theta_threshold)
        zeros = ("gravity", "force_mag", "start_range")
        check_numbers(self, "CartPole", may_be_zero=zeros, start_range=most)


class CartPole(BatchedGame):
    """Balance a pole on a cart. The reward is 1 in every step.

    Observations are (num_envs, 4) float32: position and speed of the cart (m, m/s), angle and
    angular speed of the pole (rad, rad/s). Actions are (num_envs,) int64: 0 pushes the cart to the
    left, 1 to the right.
    """

    env_name = "sweepd/CartPole-v1"
    state_dim, action_dim, if_discrete = 4, 2, True
    uniforms_per_start, starts_ahead = 4, True
    native_code = code_for, CartPoleStep.of

    def numeric(self, params: CartPoleParams) -> dict[str, float]:
        """See `BatchedRules.numeric`. Besides, the terms of the equations of motion."""
        total = params.masscart + params.masspole
        push, coupling = params.force_mag / total, params.masspole * params.length / total
        terms = {"left": -push, "from_left_to_right": 2.0 * push, "coupling": coupling}
        return super().numeric(params) | terms | {"inertia": params.length * 4.0 / 3.0}

    def step_limit(self, params: CartPoleParams) -> int:
        """See `BatchedRules.step_limit`."""
        return params.max_steps

    def score_limits(self) -> tuple[float, float]:
        """See `BatchedRules.score_limits`: a point per step."""
        return 0.0, float(self.max_step)

    def truncated(self, late: Tensor, terminated: Tensor) -> Tensor:  # noqa: ARG002
        """See `BatchedRules.truncated`. As in Gymnasium, also where the pole falls in that step."""
        return late

    def shortest_episode(self, params: CartPoleParams) -> int:
        """See `BatchedRules.shortest_episode`.

        Interval arithmetic: the bounds of the variables grow in every step by the largest
        accelerations that they allow.
        """
        n, tau, steps = self.numeric(params), params.tau, 0
        x = theta = speed = turning = params.start_range
        while steps < params.max_steps and x <= n["x_threshold"] and theta <= n["theta_threshold"]:
            sine = math.sin(min(theta, math.pi / 2))
            push = n["coupling"] * turning**2 * sine - n["left"]
            angular = (params.gravity * sine + push) / (n["inertia"] - n["coupling"])
            x, theta = x + tau * speed, theta + tau * turning
            speed, turning = speed + tau * (push + n["coupling"] * angular), turning + tau * angular
            steps += 1
        return steps

    def draw_starts(self, members: slice, rounds: Sequence[int]) -> Tensor:
        """See `BatchedRules.draw_starts`."""
        reach = self.numbers["start_range"][self.games_of(members)]
        return (2.0 * super().draw_starts(members, rounds) - 1.0) * reach

    def start(self, uniforms: Tensor) -> State:
        """See `BatchedRules.start`."""
        return dict(zip(("x", "speed", "angle", "turning"), uniforms.unbind(1), strict=True))

    def move(self, state: State, action: Tensor, uniforms: Tensor) -> tuple[State, Tensor, Tensor]:  # noqa: ARG002
        """See `BatchedRules.move`. With force F, total mass M, half length l, p = masspole * l / M:

            u       = F / M + p * theta'^2 * sin(theta)
            theta'' = (g * sin(theta) - u * cos(theta)) / (4/3 * l - p * cos(theta)^2)
            x''     = u - p * cos(theta) * theta''

        R. Florian, "Correct equations for the dynamics of the cart-pole system", 2007, without
        friction; as in Gymnasium.
        """
        x, speed, angle, turning = state.values()
        n, sine, cosine = self.numbers, angle.sin(), angle.cos()
        # `addcmul(a, b, c)` is a + b * c, rounded once.
        push = addcmul(n["left"], n["from_left_to_right"], action.double())
        u, reaction = addcmul(push, sine * n["coupling"], turning * turning), cosine * n["coupling"]
        torque = addcmul(sine * n["gravity"], u, cosine, value=-1.0)
        angular = torque / addcmul(n["inertia"], reaction, cosine, value=-1.0)
        linear = addcmul(u, reaction, angular, value=-1.0)
        # Euler's method: every variable by its rate before the step.
        rates = {"x": speed, "speed": linear, "angle": turning, "turning": angular}
        moved = {name: addcmul(state[name], rate, n["tau"]) for name, rate in rates.items()}
        over = moved["x"].abs() > n["x_threshold"]
        return moved, torch.ones_like(x), over | (moved["angle"].abs() > n["theta_threshold"])

    def see(self, state: State) -> Tensor:
        """See `BatchedRules.see`."""
        return torch.stack([*state.values()], 1)
