"""The scripted hockey players, weak and strong, for any number of games at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

DERIVATIVE = 0.5  # gain on velocities
HIGHEST_PHASE_STEP = 0.2  # rad per step
GAINS = {"weak": 0.5, "strong": 10.0}


class BasicPlayer:
    """A PD controller that stands in front of its goal and hits the puck when it comes near.

    Its racket swings with a random phase, which is the player's memory.

    Attributes:
        uniforms: uniform random numbers that it needs per game and step.
        memory: columns of its memory.
        gain: proportional gain.
    """

    uniforms = 1
    memory = 1

    def __init__(self, gain: float) -> None:
        self.gain = gain

    def start(self, uniforms: Tensor) -> Tensor:
        """Return the memory at the start of an episode, (games, 1), from (games, 1) uniforms."""
        return math.pi * uniforms

    def act(self, obs: Tensor, memory: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the actions of a step.

        Args:
            obs: (games, 18 or 16), as `Hockey` gives them to a seat.
            memory: (games, 1).
            uniforms: (games, 1) in [0, 1).

        Returns:
            (games, 4 or 3) actions in [-1, 1], and the new memory.
        """
        keep_mode = obs.shape[1] == 18
        memory = memory + HIGHEST_PHASE_STEP * uniforms
        columns = obs.unbind(1)
        x, y, angle, vx, vy, omega = columns[:6]
        puck_x, puck_y, puck_vx, puck_vy = columns[12:16]
        approaches = puck_vx < 0.5
        attacks = approaches & (x < puck_x) & ((y - puck_y).abs() < 0.5)
        distance = torch.hypot(x - puck_x, y - puck_y)
        target_x = torch.where(attacks, puck_x + 0.2, -3.5)
        target_y = torch.where(
            attacks,
            puck_y + 0.1 * puck_vy * distance,
            torch.where(approaches, puck_y, torch.zeros_like(y)),
        )
        target_angle = math.pi / 3 * torch.sin(memory[:, 0].to(obs.dtype))

        def control(error: Tensor, velocity: Tensor, gain: float, near: float) -> Tensor:
            # The brake acts if the target would be reached within `near` seconds.
            brakes = (error / (velocity + 0.01)).abs() < near
            return error * gain - torch.where(brakes, velocity * DERIVATIVE, 0.0)

        actions = [
            control(target_x - x, vx, self.gain, 0.1),
            control(target_y - y, vy, self.gain / 5, 0.1),
            control(target_angle - angle, omega, self.gain / 2, 1.0),
        ]
        if keep_mode:
            held = columns[16]
            actions.append(((held > 0) & (held < 7)).to(obs.dtype))
        return torch.stack(actions, 1).clamp(-1.0, 1.0), memory


PLAYERS = {name: BasicPlayer(gain) for name, gain in GAINS.items()}
