"""The rules of laser hockey: actions, holding and shooting the puck, goals, rewards, observations.

Two players with rotating rackets and one puck. Player 1 defends the left goal, player 2 the right
one. Every function sees both players in frames of their own (`sweepd.envs.games.hockey.physics`),
so one formula serves both.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sweepd.envs.games.hockey.physics import (
    DT,
    GOAL_REACHED_X,
    GOAL_Y,
    MASS,
    Bodies,
    Controls,
    Turn,
    find_contact,
    length,
    own_frames,
    step_physics,
)

FORCE, TORQUE = 6000.0, 400.0  # N and N m at full action
SHOT_SPEED = 60.0  # m/s
HOLD_STEPS = 15  # the counter's value when a puck is caught


# Continuous actions of the discrete ones: x force, y force, torque, shoot.
DISCRETE_ACTIONS = (
    (0.0, 0.0, 0.0, 0.0),
    (-1.0, 0.0, 0.0, 0.0),
    (1.0, 0.0, 0.0, 0.0),
    (0.0, -1.0, 0.0, 0.0),
    (0.0, 1.0, 0.0, 0.0),
    (0.0, 0.0, -1.0, 0.0),
    (0.0, 0.0, 1.0, 0.0),
    (0.0, 0.0, 0.0, 1.0),
)


class GameState(NamedTuple):
    """The state of games, one per column.

    Attributes:
        players: (2, games) each, in the players' own frames.
        puck: (games,) each, in the world.
        counters: (2, games) int64; above 1 while a player holds the puck.
        touching: (2, games) bool, whether the puck touched the racket at the last step's start.
        scored: (games,), 1 where player 1 has scored, -1 where player 2 has, else 0.
    """

    players: Bodies
    puck: Bodies
    counters: Tensor
    touching: Tensor
    scored: Tensor


class Played(NamedTuple):
    """What happened in a step.

    Attributes:
        ended: (games,) bool, whether a goal ended the game.
        caught: (2, games) bool, whether the player caught the puck.
    """

    ended: Tensor
    caught: Tensor


def play(game: GameState, action: Tensor, *, keep_mode: bool) -> tuple[GameState, Played]:
    """Play one step.

    Args:
        game: the state before it.
        action: (4, 2, games) in [-1, 1]: x force, y force, torque, and shoot, which only keep mode
            reads. The forces are in the player's own frame.
        keep_mode: whether players catch, hold and shoot the puck.

    Returns:
        The state after it, and what happened.
    """
    players, fx, fy, keep = _translate(game.players, FORCE * action[0], FORCE * action[1])
    torque, keep_spin = _rotate(players, action[2])
    turn, puck = Turn.of(players), game.puck
    # Decided before a shot, so that the step of a shot still has the damping of the held puck.
    fast = length(puck.vx, puck.vy) > 25.0
    puck_keep = torch.where(fast, _kept(10.0), _kept(0.05)).to(puck.vx.dtype)
    counters = game.counters
    if keep_mode:
        puck, counters = _hold_and_shoot(players, turn, puck, counters, action[3])

    # What physics sees at its start: goals and contacts.
    goal = (puck.x.abs() > GOAL_REACHED_X) & (puck.y.abs() <= GOAL_Y)
    scored = torch.where(goal, torch.sign(puck.x), torch.zeros_like(puck.x))
    contact = find_contact(players, turn, puck)
    caught = torch.zeros_like(contact.touching)
    if keep_mode:
        caught = contact.touching & ~game.touching & (counters == 0)
        caught &= own_frames(puck.vx) < 0.1
        counters = torch.where(caught, HOLD_STEPS, counters)
    players, puck = step_physics(
        players, turn, puck, contact, Controls(fx, fy, torque, keep, keep_spin, puck_keep)
    )
    return GameState(players, puck, counters, contact.touching, scored), Played(goal, caught)


def _kept(damping: float) -> float:
    """Return the share of a velocity that damping leaves after a step."""
    return max(0.0, 1.0 - DT * damping)


def _translate(players: Bodies, fx: Tensor, fy: Tensor) -> tuple[Bodies, Tensor, Tensor, Tensor]:
    """Return the players with the velocity that borders stop, the forces, and the damping."""
    x, vx, vy = players.x, players.vx, players.vy
    centre = x > -0.5
    speed = length(vx, vy)
    fast = ~centre & (speed >= 10.0)
    speeds_up = fast & (length(vx + DT / MASS * fx, vy + DT / MASS * fy) >= speed)
    # In the centre zone the x force does not push: it brakes, and the more so the farther.
    brake = torch.where(vx > 0, -2.0, 0.0) - x
    fx = torch.where(centre, brake * vx * (MASS / DT), fx)
    out_x = ((x < -3.5) & (fx < 0)) | ((x > 0) & (fx > 0))
    out_y = ((players.y > 2.8) & (fy > 0)) | ((players.y < -2.8) & (fy < 0))
    # A force that would speed a fast player up does not act, and meets no border.
    out_x, out_y = out_x & ~speeds_up, out_y & ~speeds_up
    keep = torch.where(centre | fast, _kept(20.0), _kept(5.0)).to(x.dtype)
    return (
        players._replace(vx=vx.masked_fill(out_x, 0.0), vy=vy.masked_fill(out_y, 0.0)),
        fx.masked_fill(out_x | speeds_up, 0.0),
        fy.masked_fill(out_y | speeds_up, 0.0),
        keep,
    )


def _rotate(players: Bodies, action: Tensor) -> tuple[Tensor, Tensor]:
    """Return torque and the share of angular velocity that damping leaves.

    Beyond 60 degrees a spring turns the racket back.
    """
    angle, omega = players.angle, players.omega
    beyond = angle.abs() > math.pi / 3
    away = torch.where(angle * omega > 0, omega, 0.0)
    torque = torch.where(beyond, (away + angle) * (-0.1 * MASS / DT), TORQUE * action)
    return torque, torch.where(beyond, _kept(10.0), _kept(2.0)).to(angle.dtype)


def _hold_and_shoot(
    players: Bodies, turn: Turn, puck: Bodies, counters: Tensor, shoot: Tensor
) -> tuple[Bodies, Tensor]:
    """Carry the puck in the rackets that hold it, and shoot it on command or in the end."""
    holds = counters > 1
    counters = counters - holds.long()
    shoots = holds & ((counters == 1) | (shoot > 0.5))
    counters = counters.masked_fill(shoots, 0)
    vx = players.vx + torch.where(shoots, SHOT_SPEED * turn.cos, 0.0)
    vy = players.vy + torch.where(shoots, SHOT_SPEED * turn.sin, 0.0)

    def carried(own: Tensor, free: Tensor) -> Tensor:
        # If both hold it, player 2's grip counts, as it is applied last.
        first = torch.where(holds[0], own[0], free)
        return torch.where(holds[1], -own[1], first)

    puck = puck._replace(
        x=carried(players.x, puck.x),
        y=carried(players.y, puck.y),
        vx=carried(vx, puck.vx),
        vy=carried(vy, puck.vy),
    )
    return puck, counters
