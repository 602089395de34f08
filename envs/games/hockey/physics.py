"""The physics of laser hockey: players, puck, walls and contacts, as tensors over games.

Units are metres, seconds, kilograms and radians. The two players obey the same rules in frames of
their own: player 1's is the world, player 2's is the world turned by half a turn, so each defends
the goal at negative x. Tensors of players are (2, games) in their own frames; the puck's are
(games,) in the world. Contacts follow Box2D's solver (Catto, 2014), with closed forms instead of
its iterations.

Reading order: `step_physics`.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

DT = 0.02  # s per step

# The field, from its centre.
WALL_Y = 3.3333  # inner face of the top and bottom walls
GOAL_X, GOAL_Y = 4.0833, 1.25  # goal line, half the goal's height
GOAL_BACK_X = 4.4167
POST_X, POST_Y = 3.9167, 1.3667  # inner corner of the goal posts
LIP_X, LIP_Y = 4.25, 1.25  # where the sloping side of a post ends
GOAL_REACHED_X = 3.8567  # the puck overlaps the goal beyond this

# Bodies. The racket's outline and its centre of mass are relative to the player's origin.
PUCK_RADIUS, PUCK_MASS, PUCK_INERTIA = 0.216667, 1.03236, 0.024232
MASS, INERTIA, CENTRE = 58.0, 3.7095, -0.12238
OUTLINE = (
    (0.1, -0.4),
    (0.1, 0.4),
    (-0.2, 0.4),
    (-0.36, 0.2),
    (-0.42, 0.0),
    (-0.36, -0.2),
    (-0.2, -0.4),
)

# Contacts. Polygons have a skin; bodies may overlap by the slop, which keeps contacts stable.
SKIN, SLOP = 0.01, 0.005
RESTITUTION, SLOWEST_BOUNCE = 0.95, 1.0  # slower contacts (m/s) do not bounce
RACKET_FRICTION, WALL_FRICTION = math.sqrt(0.1 * 1.0), 0.1
REACH = PUCK_RADIUS + SKIN  # distance of the puck's centre at which a contact begins
# A moving puck meets a wall where it overlaps it by 3 slops. Two position corrections, which leave
# a quarter of the overlap beyond the slop each, then push it back by 15/16 of 2 slops.
WALL_REACH = REACH - 3 * SLOP
WALL_PUSH = 15 / 16 * 2 * SLOP
PLAYER_GAP = 2 * SKIN - SLOP  # distance at which walls stop a racket
MAX_SPEED = 2.0 / DT  # bodies move at most 2 m per step

# The racket is symmetric, so contacts are sought with its upper half: the whole front face, the top
# and both faces of the back.
_FACES = [(OUTLINE[k], OUTLINE[k + 1]) for k in range(4)]
_LENGTHS = [math.dist(a, b) for a, b in _FACES]
# Columns of a face of the racket: both ends, then the outward normal.
FACE_TABLE = [
    (ax, ay, bx, by, (by - ay) / length, (ax - bx) / length)
    for ((ax, ay), (bx, by)), length in zip(_FACES, _LENGTHS, strict=True)
]
_LOG_LEFT = math.log(0.8)  # of the share of an overlap that a position correction leaves
MOST_CORRECTIONS = 32  # enough for an overlap of 10 m
SLOPE = math.dist((POST_X, POST_Y), (LIP_X, LIP_Y))
SLOPE_X, SLOPE_Y = (LIP_X - POST_X) / SLOPE, (LIP_Y - POST_Y) / SLOPE


class Bodies(NamedTuple):
    """Moving bodies; positions are those of the origin, velocities of the centre of mass.

    Attributes:
        x: position, m.
        y: position, m.
        angle: rad; of the puck it is not tracked and is 0.
        vx: velocity, m/s.
        vy: velocity, m/s.
        omega: angular velocity, rad/s.
    """

    x: Tensor
    y: Tensor
    angle: Tensor
    vx: Tensor
    vy: Tensor
    omega: Tensor


class Turn(NamedTuple):
    """Cosine and sine of the players' angles, (2, games) each: they are needed several times."""

    cos: Tensor
    sin: Tensor

    @staticmethod
    def of(players: Bodies) -> Turn:
        """Return those of the players' present angles."""
        return Turn(torch.cos(players.angle), torch.sin(players.angle))


class Contact(NamedTuple):
    """Contact of the puck with each player's racket, (2, games) each, in the racket's frame.

    Attributes:
        touching: bool.
        x: a point on the racket's face, or the vertex that the puck touches.
        y: likewise.
        nx: the normal, from the racket to the puck.
        ny: likewise.
    """

    touching: Tensor
    x: Tensor
    y: Tensor
    nx: Tensor
    ny: Tensor


class Controls(NamedTuple):
    """What acts on the bodies during a step.

    Attributes:
        fx: force on the players, (2, games), N, in their frames.
        fy: likewise.
        torque: torque on the players, (2, games), N m.
        keep: share of the players' velocity that damping leaves, (2, games).
        keep_spin: share of their angular velocity.
        puck_keep: share of the puck's velocity, (games,).
    """

    fx: Tensor
    fy: Tensor
    torque: Tensor
    keep: Tensor
    keep_spin: Tensor
    puck_keep: Tensor


@functools.cache
def _face_table(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return `FACE_TABLE`, made once: copying it in every step would wait for the device."""
    return torch.tensor(FACE_TABLE, dtype=dtype, device=device)


@functools.cache
def _corners(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return x and y of the racket's corners, (7, 1, 1) each."""
    x, y = torch.tensor(OUTLINE, dtype=dtype, device=device).view(-1, 2, 1, 1).unbind(1)
    return x, y


@functools.cache
def corrections(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return how often an overlap beyond the slop is corrected.

    Corrections are repeated until it is below 2 slops, and once more.

    Returns:
        (most,), the overlaps above which there is one correction more; and (most + 1,), the share
        of an overlap that as many corrections leave.
    """
    limits = [2 * SLOP * 0.8**-repeats for repeats in range(MOST_CORRECTIONS)]
    exponents = _LOG_LEFT * torch.arange(1.0, MOST_CORRECTIONS + 2, dtype=dtype)
    left = exponents.double().exp()  # in float64, since float32 depends on the kind of processor
    return torch.tensor(limits, dtype=dtype, device=device), left.to(device, dtype)


def root(value: Tensor) -> Tensor:
    """Return the square root, rounded alike on all processors.

    Torch's own of float32 is not: it depends on the kind of processor.
    """
    return value.double().sqrt().to(value.dtype)


def length(x: Tensor, y: Tensor) -> Tensor:
    """Return the length of vectors, rounded alike on all processors.

    `torch.hypot` is not: it computes the last elements of a tensor in another way.
    """
    wide_x, wide_y = x.double(), y.double()
    return torch.addcmul(wide_x * wide_x, wide_y, wide_y).sqrt().to(x.dtype)


def own_frames(value: Tensor) -> Tensor:
    """Return (2, games): a coordinate of the world in both players' frames."""
    return torch.stack((value, -value))


def step_physics(
    players: Bodies, turn: Turn, puck: Bodies, contact: Contact, controls: Controls
) -> tuple[Bodies, Bodies]:
    """Advance players and puck by one step.

    Args:
        players: (2, games) each.
        turn: of their angles.
        puck: (games,) each.
        contact: the contacts at the step's start.
        controls: forces and damping.

    Returns:
        Players and puck after it.
    """
    players = players._replace(
        vx=(players.vx + DT / MASS * controls.fx) * controls.keep,
        vy=(players.vy + DT / MASS * controls.fy) * controls.keep,
        omega=(players.omega + DT / INERTIA * controls.torque) * controls.keep_spin,
    )
    puck = puck._replace(vx=puck.vx * controls.puck_keep, vy=puck.vy * controls.puck_keep)
    players, puck = _bounce(players, turn, puck, contact)
    players, turn = _advance(players, turn)
    players, turn, puck = _separate(players, turn, _fly(puck), contact)
    return _stop_at_walls(players, turn), _inside(puck)


def find_contact(players: Bodies, turn: Turn, puck: Bodies) -> Contact:
    """Find where the puck touches the rackets: at the face of least penetration or at its ends."""
    dx, dy = own_frames(puck.x) - players.x, own_frames(puck.y) - players.y
    cx, cy = _rotate(turn.cos, -turn.sin, dx, dy)
    below, cy = torch.where(cy < 0, -1.0, 1.0).to(cy.dtype), cy.abs()
    table = _face_table(cx.dtype, cx.device)
    ax, ay, bx, by, nx, ny = (table[:, k].view(-1, 1, 1) for k in range(6))
    depth, face = (nx * (cx - ax) + ny * (cy - ay)).max(0)
    ax, ay, bx, by, nx, ny = table[face].unbind(-1)
    before = (cx - ax) * (bx - ax) + (cy - ay) * (by - ay) <= 0
    after = (cx - bx) * (ax - bx) + (cy - by) * (ay - by) <= 0
    vertex = (before | after) & (depth > 0)
    vx, vy = torch.where(before, ax, bx), torch.where(before, ay, by)
    far = length(cx - vx, cy - vy)
    distance = torch.where(vertex, far, depth)
    far = far.clamp_min(1e-6)
    return Contact(
        distance <= REACH,
        torch.where(vertex, vx, 0.5 * (ax + bx)),
        below * torch.where(vertex, vy, 0.5 * (ay + by)),
        torch.where(vertex, (cx - vx) / far, nx),
        below * torch.where(vertex, (cy - vy) / far, ny),
    )


class _Arms(NamedTuple):
    """A contact in the frames of the players, (2, games) each.

    Attributes:
        nx: normal, from the racket to the puck.
        ny: likewise.
        rx: contact point from the player's centre of mass.
        ry: likewise.
        gap: distance of the puck's centre from the racket along the normal, m.
        arm: distance of the puck's centre from the contact point, m.
    """

    nx: Tensor
    ny: Tensor
    rx: Tensor
    ry: Tensor
    gap: Tensor
    arm: Tensor


def _arms(players: Bodies, turn: Turn, puck: Bodies, contact: Contact) -> _Arms:
    """Place a contact at the present positions. Its point lies midway between the surfaces."""
    dx, dy = own_frames(puck.x) - players.x, own_frames(puck.y) - players.y
    cos, sin = turn
    nx, ny = _rotate(cos, sin, contact.nx, contact.ny)
    px, py = _rotate(cos, sin, contact.x, contact.y)
    gap = (dx - px) * nx + (dy - py) * ny
    arm = _puck_arm(gap)
    return _Arms(nx, ny, dx - arm * nx - cos * CENTRE, dy - arm * ny - sin * CENTRE, gap, arm)


def _puck_arm(gap: Tensor | float) -> Any:
    return 0.5 * (gap + PUCK_RADIUS - SKIN)


def _bounce(players: Bodies, turn: Turn, puck: Bodies, contact: Contact) -> tuple[Bodies, Bodies]:
    """Apply the impulses of the rackets on the puck.

    With j the impulse along normal and tangent, w the puck's velocity against the racket at the
    contact and K the matrix with w' = w + K j: K j = (rebound, 0) - w if the contact sticks. If
    that exceeds the friction cone |jt| <= mu jn, it slides: jt = ± mu jn.
    """
    nx, ny, rx, ry, _, arm = _arms(players, turn, puck, contact)
    wx = own_frames(puck.vx) - players.vx + players.omega * ry
    wy = own_frames(puck.vy) - players.vy - players.omega * rx
    wn = wx * nx + wy * ny
    wt = wy * nx - wx * ny - puck.omega * arm
    rn, rt = rx * ny - ry * nx, rx * nx + ry * ny  # moments of unit impulses on the player
    knn = 1 / PUCK_MASS + 1 / MASS + rn * rn / INERTIA
    knt = rn * rt / INERTIA
    ktt = 1 / PUCK_MASS + 1 / MASS + rt * rt / INERTIA + arm * arm / PUCK_INERTIA
    target = torch.where(wn < -SLOWEST_BOUNCE, -RESTITUTION * wn, 0.0) - wn
    determinant = knn * ktt - knt * knt
    jn = (ktt * target + knt * wt) / determinant
    jt = -(knn * wt + knt * target) / determinant
    slide = RACKET_FRICTION * torch.sign(jt)
    slides = jt.abs() > RACKET_FRICTION * jn
    jn = torch.where(slides, target / (knn + slide * knt), jn)
    jn = torch.where(contact.touching, jn.clamp_min(0.0), 0.0)
    jt = torch.where(slides, slide * jn, jt)
    jt = torch.where(jn > 0, jt, 0.0)
    jx, jy = jn * nx - jt * ny, jn * ny + jt * nx
    players = players._replace(
        vx=players.vx - jx / MASS,
        vy=players.vy - jy / MASS,
        omega=players.omega - (rn * jn + rt * jt) / INERTIA,
    )
    puck = puck._replace(
        vx=puck.vx + (jx[0] - jx[1]) / PUCK_MASS,
        vy=puck.vy + (jy[0] - jy[1]) / PUCK_MASS,
        omega=puck.omega - (arm * jt).sum(0) / PUCK_INERTIA,
    )
    return players, puck


def _separate(
    players: Bodies, turn: Turn, puck: Bodies, contact: Contact
) -> tuple[Bodies, Turn, Bodies]:
    """Push overlapping rackets and puck apart, in proportion to their inverse masses.

    A position correction removes a fifth of the overlap beyond the slop; see `corrections`.
    """
    nx, ny, rx, ry, gap, _ = _arms(players, turn, puck, contact)
    excess = REACH - SLOP - gap
    limits, left = corrections(excess.dtype, excess.device)
    corrected = excess * (1.0 - left[torch.bucketize(excess, limits)])
    rn = rx * ny - ry * nx
    push = corrected / (1 / PUCK_MASS + 1 / MASS + rn * rn / INERTIA)
    push = torch.where(contact.touching & (excess > 0), push, 0.0)
    dx, dy = push * nx, push * ny
    puck = puck._replace(
        x=puck.x + (dx[0] - dx[1]) / PUCK_MASS, y=puck.y + (dy[0] - dy[1]) / PUCK_MASS
    )
    return *_move(players, turn, -dx / MASS, -dy / MASS, -push * rn / INERTIA), puck


def _advance(players: Bodies, turn: Turn) -> tuple[Bodies, Turn]:
    vx, vy = _limited(players.vx, players.vy)
    players = players._replace(vx=vx, vy=vy)
    return _move(players, turn, DT * vx, DT * vy, DT * players.omega)


def _move(
    players: Bodies, turn: Turn, dx: Tensor, dy: Tensor, angle: Tensor
) -> tuple[Bodies, Turn]:
    """Move the centres of mass and turn about them by `angle`, which moves the origins."""
    players = players._replace(angle=players.angle + angle)
    turned = Turn.of(players)
    players = players._replace(
        x=players.x + dx + CENTRE * (turn.cos - turned.cos),
        y=players.y + dy + CENTRE * (turn.sin - turned.sin),
    )
    return players, turned


def _limited(vx: Tensor, vy: Tensor) -> tuple[Tensor, Tensor]:
    slower = (MAX_SPEED / length(vx, vy).clamp_min(1e-9)).clamp_max(1.0)
    return vx * slower, vy * slower


def _stop_at_walls(players: Bodies, turn: Turn) -> Bodies:
    """Clamp the rackets to the field: contacts with walls, posts and goals are inelastic."""
    x, y = _rotate(*turn, *_corners(turn.cos.dtype, turn.cos.device))
    limit = WALL_Y - PLAYER_GAP
    over = (players.y + y.amax(0) - limit).clamp_min(0.0)
    under = (players.y + y.amin(0) + limit).clamp_max(0.0)
    # How far a corner may go depends on its height: to the goal line, the slope or the post.
    high = (players.y + y).abs()
    slope = LIP_X + (high - LIP_Y) * ((POST_X - LIP_X) / (POST_Y - LIP_Y))
    behind = (slope.clamp(POST_X, GOAL_X) - PLAYER_GAP + players.x + x).amin(0).clamp_max(0.0)
    # Goals are solid for players: one that training places beyond the goal stays there.
    beyond = (players.x + x).amax(0) + GOAL_BACK_X + PLAYER_GAP
    outside = players.x < -GOAL_BACK_X
    behind = torch.where(outside, beyond.clamp_min(0.0), behind)
    return players._replace(
        x=players.x - behind,
        y=players.y - over - under,
        vx=torch.where(
            behind < 0,
            players.vx.clamp_min(0.0),
            torch.where(behind > 0, players.vx.clamp_max(0.0), players.vx),
        ),
        vy=torch.where(
            over > 0,
            players.vy.clamp_max(0.0),
            torch.where(under < 0, players.vy.clamp_min(0.0), players.vy),
        ),
    )


def _inside(puck: Bodies) -> Bodies:
    """Return the puck inside the field, where a racket has pushed it into a wall."""
    limit = WALL_Y - WALL_REACH
    y = puck.y.clamp(-limit, limit)
    limit = POST_X - WALL_REACH
    x = torch.where(y.abs() > POST_Y, puck.x.clamp(-limit, limit), puck.x)
    return puck._replace(x=x, y=y)


def _fly(puck: Bodies) -> Bodies:
    """Move the puck for one step; it bounces off at most two walls."""
    vx, vy = _limited(puck.vx, puck.vy)
    puck, left = puck._replace(vx=vx, vy=vy), torch.full_like(vx, DT)
    for _ in range(2):
        puck, left = _bounce_off_wall(puck, left)
    return puck._replace(x=puck.x + left * puck.vx, y=puck.y + left * puck.vy)


def _bounce_off_wall(puck: Bodies, left: Tensor) -> tuple[Bodies, Tensor]:
    """Move the puck to the first wall that it meets in the time that is left, and bounce.

    The field is symmetric, so walls are searched for in the quadrant of the puck's destination.
    """
    sx = torch.where(puck.x + left * puck.vx >= 0, 1.0, -1.0).to(left.dtype)
    sy = torch.where(puck.y + left * puck.vy >= 0, 1.0, -1.0).to(left.dtype)
    x, y, vx, vy = sx * puck.x, sy * puck.y, sx * puck.vx, sy * puck.vy
    never = torch.full_like(left, math.inf)

    # The top wall and the face of the post.
    time = _time_to(WALL_Y - y, vy)
    nx, ny = torch.zeros_like(left), torch.full_like(left, -1.0)
    at_post = _time_to(POST_X - x, vx)
    hits = (x < POST_X) & (y + at_post * vy > POST_Y)
    time, nx, ny = _first(time, nx, ny, torch.where(hits, at_post, never), -1.0, 0.0)

    # The sloping side of the post, from its corner to the lip's end.
    px, py = x - POST_X, y - POST_Y
    gap = px * SLOPE_Y - py * SLOPE_X
    at_slope = _time_to(gap, vy * SLOPE_X - vx * SLOPE_Y)
    along = (px + at_slope * vx) * SLOPE_X + (py + at_slope * vy) * SLOPE_Y
    hits = (gap > 0) & (along > 0) & (along < SLOPE)
    time, nx, ny = _first(time, nx, ny, torch.where(hits, at_slope, never), SLOPE_Y, -SLOPE_X)

    # The corner: |p + t v| = WALL_REACH.
    square, product, far = vx * vx + vy * vy, px * vx + py * vy, length(px, py)
    inside = product * product - square * (far * far - WALL_REACH**2)
    at_corner = (-product - root(inside.clamp_min(0.0))) / square.clamp_min(1e-12)
    at_corner = torch.where(far < REACH, 0.0, at_corner)
    qx, qy = px + at_corner * vx, py + at_corner * vy
    hits = (product < 0) & ((inside > 0) | (far < REACH))
    hits &= (qy <= 0) & (qx * SLOPE_X + qy * SLOPE_Y <= 0)
    reached = length(qx, qy).clamp_min(1e-6)
    time, nx, ny = _first(
        time, nx, ny, torch.where(hits, at_corner, never), qx / reached, qy / reached
    )

    hit = time < left
    time = torch.where(hit, time, 0.0)
    nx, ny = sx * nx, sy * ny
    out = torch.where(time > 0, WALL_PUSH, 0.0)
    vx, vy, omega = _reflected(puck, nx, ny)
    return (
        puck._replace(
            x=puck.x + time * puck.vx + out * nx,
            y=puck.y + time * puck.vy + out * ny,
            vx=torch.where(hit, vx, puck.vx),
            vy=torch.where(hit, vy, puck.vy),
            omega=torch.where(hit, omega, puck.omega),
        ),
        left - time,
    )


def _time_to(gap: Tensor, closing: Tensor) -> Tensor:
    """Return the time until a puck at a distance from a flat wall bounces; inf if it recedes."""
    time = torch.where(gap < REACH, 0.0, (gap - WALL_REACH) / closing)
    return torch.where(closing > 0, time, math.inf)


def _first(
    time: Tensor, nx: Tensor, ny: Tensor, other: Tensor, other_nx: Any, other_ny: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the earlier of two hits, and its normal."""
    earlier = other < time
    return (
        torch.minimum(time, other),
        torch.where(earlier, other_nx, nx),
        torch.where(earlier, other_ny, ny),
    )


def _reflected(puck: Bodies, nx: Tensor, ny: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return velocity and spin of the puck after a contact with a wall of normal (nx, ny)."""
    vn, vt = puck.vx * nx + puck.vy * ny, puck.vy * nx - puck.vx * ny
    new_vn = torch.where(vn < -SLOWEST_BOUNCE, -RESTITUTION * vn, 0.0)
    limit = WALL_FRICTION * PUCK_MASS * (new_vn - vn).clamp_min(0.0)
    arm = _puck_arm(WALL_REACH + WALL_PUSH)
    sticking = (vt - puck.omega * arm) / (1 / PUCK_MASS + arm * arm / PUCK_INERTIA)
    impulse = torch.minimum(torch.maximum(sticking, -limit), limit)
    vt = vt - impulse / PUCK_MASS
    omega = puck.omega + impulse * (arm / PUCK_INERTIA)
    return new_vn * nx - vt * ny, new_vn * ny + vt * nx, omega


def _rotate(
    cos: Tensor, sin: Tensor, x: Tensor | float, y: Tensor | float
) -> tuple[Tensor, Tensor]:
    return cos * x - sin * y, sin * x + cos * y
