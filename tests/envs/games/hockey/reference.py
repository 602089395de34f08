"""One game of laser hockey in plain Python, one number at a time, in world coordinates.

It is written from the rules alone and shares no code with `sweepd.envs.games.hockey`: tests compare
the two step by step, and this module with recorded games.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

DT = 0.02
FIELD = {"half_height": 3.3333, "goal_line": 4.0833, "goal_half": 1.25}
POST_X, POST_Y = 3.9167, 1.3667
LIP_X, LIP_Y = 4.25, 1.25
GOAL_BACK = 4.4167
RADIUS, SKIN, SLOP = 0.216667, 0.01, 0.005
# Distances of the puck's centre from walls: in contact; where a bounce begins; and how far the
# bounce pushes the puck back: two position corrections of 3/4 each leave 1/16 of 2 * SLOP.
REACH = RADIUS + SKIN
DEEPEST = REACH - 3 * SLOP
PUSHED_OUT = 15 / 16 * 2 * SLOP
PUCK_MASS, PUCK_INERTIA = 1.03236, 0.024232
MASS, INERTIA, CENTRE = 58.0, 3.7095, -0.12238
SHAPE = [
    (0.1, -0.4),
    (0.1, 0.4),
    (-0.2, 0.4),
    (-0.36, 0.2),
    (-0.42, 0.0),
    (-0.36, -0.2),
    (-0.2, -0.4),
]
MU_PLAYER = math.sqrt(0.1 * 1.0)
MU_WALL = 0.1


def turned(angle: float, x: float, y: float) -> tuple[float, float]:
    """Rotate a vector."""
    c, s = math.cos(angle), math.sin(angle)
    return c * x - s * y, s * x + c * y


def puck_lever(gap: float) -> float:
    """Return the distance from the puck's centre to the contact point, midway between surfaces."""
    return 0.5 * (gap + RADIUS - SKIN)


@dataclass
class Body:
    """Position of the origin, angle, velocity of the centre of mass, angular velocity."""

    x: float
    y: float
    angle: float = 0.0
    vx: float = 0.0
    vy: float = 0.0
    omega: float = 0.0


def limit_speed(body: Body) -> None:
    """Slow a body down that would move more than 2 m in a step."""
    speed = math.hypot(body.vx, body.vy)
    if speed > 2.0 / DT:
        body.vx *= 2.0 / DT / speed
        body.vy *= 2.0 / DT / speed


@dataclass
class Hockey:
    """The state of a game; `step` plays one step of it.

    Attributes:
        side: 1 for player 1, who defends the left goal, and -1 for player 2.
    """

    players: list[Body]
    puck: Body
    keep_mode: bool = True
    max_timesteps: int = 250
    counters: list[int] = field(default_factory=lambda: [0, 0])
    touching: list[bool] = field(default_factory=lambda: [False, False])
    time: int = 0
    done: bool = False
    winner: int = 0

    def step(self, action: list[float]) -> tuple[float, float, list[int], float]:
        """Play one step; return both rewards, both players' touch, and the direction."""
        action = [min(max(a, -1.0), 1.0) for a in action]
        each = 4 if self.keep_mode else 3
        forces, damping, turning = [], [], []
        for i, side in enumerate((1, -1)):
            own = action[i * each : (i + 1) * each]
            force, damp = self.translate(i, side, own[0], own[1])
            forces.append(force)
            damping.append(damp)
            turning.append(self.rotate(i, own[2]))
        puck_damping = 10.0 if math.hypot(self.puck.vx, self.puck.vy) > 25 else 0.05
        if self.keep_mode:
            for i, side in enumerate((1, -1)):
                self.hold(i, side, action[i * each + 3])
        caught = self.physics(forces, damping, turning, puck_damping)
        if self.time >= self.max_timesteps:
            self.done = True
        rewards = [self.reward(i, side) for i, side in enumerate((1, -1))]
        self.time += 1
        direction = self.puck.vx / (25.0 * self.length)
        return rewards[0], rewards[1], caught, direction

    @property
    def length(self) -> int:
        return self.max_timesteps

    def translate(
        self, i: int, side: int, ax: float, ay: float
    ) -> tuple[tuple[float, float], float]:
        """Return force and damping of a player; the boundary rule may stop it."""
        body = self.players[i]
        fx, fy = 6000.0 * side * ax, 6000.0 * side * ay
        speed = math.hypot(body.vx, body.vy)
        if side * body.x > -0.5:
            fx = -2.0 * body.vx * MASS / DT if side * body.vx > 0 else 0.0
            fx += -side * body.x * body.vx * MASS / DT
            return self.boundary(body, side, fx, fy), 20.0
        if speed < 10.0:
            return self.boundary(body, side, fx, fy), 5.0
        faster = math.hypot(body.vx + DT * fx / MASS, body.vy + DT * fy / MASS)
        if faster < speed:
            return self.boundary(body, side, fx, fy), 20.0
        return (0.0, 0.0), 20.0

    @staticmethod
    def boundary(body: Body, side: int, fx: float, fy: float) -> tuple[float, float]:
        x, push = side * body.x, side * fx
        if (x < -3.5 and push < 0) or (x > 0 and push > 0):
            body.vx = fx = 0.0
        if (body.y > 2.8 and fy > 0) or (body.y < -2.8 and fy < 0):
            body.vy = fy = 0.0
        return fx, fy

    def rotate(self, i: int, a: float) -> tuple[float, float]:
        """Return torque and angular damping."""
        body = self.players[i]
        if abs(body.angle) > math.pi / 3:
            torque = -0.1 * body.omega * MASS / DT if body.angle * body.omega > 0 else 0.0
            return torque - 0.1 * body.angle * MASS / DT, 10.0
        return 400.0 * a, 2.0

    def hold(self, i: int, side: int, shoot: float) -> None:
        if self.counters[i] <= 1:
            return
        body, puck = self.players[i], self.puck
        puck.x, puck.y, puck.vx, puck.vy = body.x, body.y, body.vx, body.vy
        self.counters[i] -= 1
        if self.counters[i] == 1 or shoot > 0.5:
            puck.vx += 60.0 * side * math.cos(body.angle)
            puck.vy += 60.0 * side * math.sin(body.angle)
            self.counters[i] = 0

    def physics(
        self,
        forces: list[tuple[float, float]],
        damping: list[float],
        turning: list[tuple[float, float]],
        puck_damping: float,
    ) -> list[int]:
        puck = self.puck
        if abs(puck.x) > 3.8567 and abs(puck.y) <= 1.25:
            self.done, self.winner = True, 1 if puck.x > 0 else -1
        caught = [0, 0]
        contacts = []
        for i, side in enumerate((1, -1)):
            contact = self.overlap(i, side)
            begins = contact is not None and not self.touching[i]
            if self.keep_mode and begins and side * puck.vx < 0.1 and self.counters[i] == 0:
                self.counters[i] = 15
                caught[i] = 1
            self.touching[i] = contact is not None
            contacts.append(contact)
        for i in (0, 1):
            body = self.players[i]
            keep = max(0.0, 1 - DT * damping[i])
            body.vx = (body.vx + DT * forces[i][0] / MASS) * keep
            body.vy = (body.vy + DT * forces[i][1] / MASS) * keep
            torque, angular = turning[i]
            body.omega = (body.omega + DT * torque / INERTIA) * max(0.0, 1 - DT * angular)
        keep = max(0.0, 1 - DT * puck_damping)
        puck.vx *= keep
        puck.vy *= keep
        for i, side in enumerate((1, -1)):
            if contacts[i] is not None:
                self.bounce(i, side, *contacts[i])
        for body in self.players:
            self.advance(body)
        self.fly()
        for i, side in enumerate((1, -1)):
            if contacts[i] is not None:
                self.separate(i, side, *contacts[i])
        for i, side in enumerate((1, -1)):
            self.clamp(i, side)
        # A racket cannot push the puck into a wall.
        high, wide = FIELD["half_height"] - DEEPEST, POST_X - DEEPEST
        puck.y = min(max(puck.y, -high), high)
        if abs(puck.y) > POST_Y:
            puck.x = min(max(puck.x, -wide), wide)
        return caught

    # Puck and player.

    def overlap(self, i: int, side: int) -> tuple[float, float, float, float] | None:
        """Return the contact: point of the racket and normal, both in the racket's frame."""
        body, puck = self.players[i], self.puck
        cx, cy = turned(-body.angle, side * (puck.x - body.x), side * (puck.y - body.y))
        best, at, normal = -math.inf, 0, (0.0, 0.0)
        for k, (x1, y1) in enumerate(SHAPE):
            x2, y2 = SHAPE[(k + 1) % 7]
            long = math.hypot(x2 - x1, y2 - y1)
            n = ((y2 - y1) / long, -(x2 - x1) / long)
            gap = n[0] * (cx - x1) + n[1] * (cy - y1)
            if gap > best:
                best, at, normal = gap, k, n
        reach = RADIUS + SKIN
        if best > reach:
            return None
        (x1, y1), (x2, y2) = SHAPE[at], SHAPE[(at + 1) % 7]
        if best >= 1e-9:
            for (x, y), (ox, oy) in (((x1, y1), (x2, y2)), ((x2, y2), (x1, y1))):
                if (cx - x) * (ox - x) + (cy - y) * (oy - y) <= 0:
                    gap = math.hypot(cx - x, cy - y)
                    if gap > reach:
                        return None
                    return x, y, (cx - x) / gap, (cy - y) / gap
        return (x1 + x2) / 2, (y1 + y2) / 2, normal[0], normal[1]

    def levers(
        self, i: int, side: int, px: float, py: float, nx: float, ny: float
    ) -> tuple[float, float, float, float, float]:
        """Return the normal, the contact's lever arm about the player, and the gap."""
        body, puck = self.players[i], self.puck
        n = turned(body.angle, side * nx, side * ny)
        p = turned(body.angle, side * px, side * py)
        gap = (puck.x - body.x - p[0]) * n[0] + (puck.y - body.y - p[1]) * n[1]
        arm = puck_lever(gap)
        centre = turned(body.angle, side * CENTRE, 0.0)
        rx = puck.x - n[0] * arm - body.x - centre[0]
        ry = puck.y - n[1] * arm - body.y - centre[1]
        return n[0], n[1], rx, ry, gap

    def bounce(self, i: int, side: int, *contact: float) -> None:
        body, puck = self.players[i], self.puck
        nx, ny, rx, ry, gap = self.levers(i, side, *contact)
        arm = puck_lever(gap)
        tx, ty = -ny, nx

        def relative() -> tuple[float, float]:
            vx = puck.vx - body.vx + body.omega * ry + puck.omega * arm * ny
            vy = puck.vy - body.vy - body.omega * rx - puck.omega * arm * nx
            return vx, vy

        def push(jx: float, jy: float) -> None:
            puck.vx += jx / PUCK_MASS
            puck.vy += jy / PUCK_MASS
            puck.omega += arm * (ny * jx - nx * jy) / PUCK_INERTIA
            body.vx -= jx / MASS
            body.vy -= jy / MASS
            body.omega -= (rx * jy - ry * jx) / INERTIA

        def mass(ax: float, ay: float, spin: float) -> float:
            lever = rx * ay - ry * ax
            return 1 / (1 / PUCK_MASS + 1 / MASS + lever**2 / INERTIA + spin**2 / PUCK_INERTIA)

        normal_mass, tangent_mass = mass(nx, ny, 0.0), mass(tx, ty, arm)
        vx, vy = relative()
        closing = vx * nx + vy * ny
        rebound = -0.95 * closing if closing < -1.0 else 0.0
        normal = tangent = 0.0
        for _ in range(10):
            vx, vy = relative()
            new = tangent - tangent_mass * (vx * tx + vy * ty)
            new = min(max(new, -MU_PLAYER * normal), MU_PLAYER * normal)
            push((new - tangent) * tx, (new - tangent) * ty)
            tangent = new
            vx, vy = relative()
            new = max(normal - normal_mass * (vx * nx + vy * ny - rebound), 0.0)
            push((new - normal) * nx, (new - normal) * ny)
            normal = new

    def separate(self, i: int, side: int, *contact: float) -> None:
        body, puck = self.players[i], self.puck
        nx, ny, rx, ry, gap = self.levers(i, side, *contact)
        excess = RADIUS + SKIN - gap - SLOP
        if excess <= 0:
            return
        passes = 1 + max(0, math.ceil(math.log(0.01 / excess) / math.log(0.8)))
        lever = rx * ny - ry * nx
        inverse = 1 / PUCK_MASS + 1 / MASS + lever**2 / INERTIA
        impulse = excess * (1 - 0.8**passes) / inverse
        puck.x += impulse * nx / PUCK_MASS
        puck.y += impulse * ny / PUCK_MASS
        centre = turned(body.angle, side * CENTRE, 0.0)
        cx = body.x + centre[0] - impulse * nx / MASS
        cy = body.y + centre[1] - impulse * ny / MASS
        body.angle -= impulse * lever / INERTIA
        centre = turned(body.angle, side * CENTRE, 0.0)
        body.x, body.y = cx - centre[0], cy - centre[1]

    # Motion.

    def advance(self, body: Body) -> None:
        side = 1 if body is self.players[0] else -1
        before = turned(body.angle, side * CENTRE, 0.0)
        body.angle += DT * body.omega
        after = turned(body.angle, side * CENTRE, 0.0)
        limit_speed(body)
        body.x += before[0] - after[0] + DT * body.vx
        body.y += before[1] - after[1] + DT * body.vy

    def fly(self) -> None:
        """Move the puck, bouncing off at most two walls."""
        puck = self.puck
        limit_speed(puck)
        left = DT
        for _ in range(2):
            hit = self.wall(left)
            if hit is None:
                break
            time, nx, ny, out = hit
            puck.x += time * puck.vx + out * nx
            puck.y += time * puck.vy + out * ny
            left -= time
            self.rebound(nx, ny)
        puck.x += left * puck.vx
        puck.y += left * puck.vy

    def wall(self, left: float) -> tuple[float, float, float, float] | None:
        """Return the puck's first hit: time, normal, and how far the wall pushes it back."""
        puck = self.puck
        sx = 1.0 if puck.x + left * puck.vx >= 0 else -1.0
        sy = 1.0 if puck.y + left * puck.vy >= 0 else -1.0
        x, y, vx, vy = sx * puck.x, sy * puck.y, sx * puck.vx, sy * puck.vy
        hits = []

        def flat(gap: float, nx: float, ny: float) -> float | None:
            closing = -(vx * nx + vy * ny)
            if closing <= 0:
                return None
            return 0.0 if gap < REACH else (gap - DEEPEST) / closing

        time = flat(FIELD["half_height"] - y, 0.0, -1.0)
        if time is not None:
            hits.append((time, 0.0, -1.0))
        time = flat(POST_X - x, -1.0, 0.0)
        if time is not None and x < POST_X and y + time * vy > POST_Y:
            hits.append((time, -1.0, 0.0))
        # The slope of the lip, from the corner on.
        px, py = x - POST_X, y - POST_Y
        long = math.hypot(LIP_X - POST_X, LIP_Y - POST_Y)
        ex, ey = (LIP_X - POST_X) / long, (LIP_Y - POST_Y) / long
        gap = px * ey - py * ex
        time = flat(gap, ey, -ex)
        if time is not None and gap > 0:
            along = (px + time * vx) * ex + (py + time * vy) * ey
            if 0 < along < long:
                hits.append((time, ey, -ex))
        # The corner of the post.
        b, c = px * vx + py * vy, math.hypot(px, py)
        if b < 0:
            a = vx * vx + vy * vy
            disc = b * b - a * (c * c - DEEPEST**2)
            time = 0.0 if c < REACH else (-b - math.sqrt(disc)) / a if disc > 0 else math.inf
            if time < math.inf:
                qx, qy = px + time * vx, py + time * vy
                if qy <= 0 and qx * ex + qy * ey <= 0:
                    far = math.hypot(qx, qy)
                    hits.append((time, qx / far, qy / far))
        hits = [hit for hit in hits if hit[0] < left]
        if not hits:
            return None
        time, nx, ny = min(hits, key=lambda hit: hit[0])
        return time, sx * nx, sy * ny, PUSHED_OUT if time > 0 else 0.0

    def rebound(self, nx: float, ny: float) -> None:
        """Bounce off a wall with normal (nx, ny)."""
        puck = self.puck
        tx, ty = -ny, nx
        vn, vt = puck.vx * nx + puck.vy * ny, puck.vx * tx + puck.vy * ty
        new_vn = -0.95 * vn if vn < -1.0 else 0.0
        limit = MU_WALL * PUCK_MASS * (new_vn - vn)
        arm = puck_lever(DEEPEST + PUSHED_OUT)
        slip = vt - puck.omega * arm
        sticking = slip / (1 / PUCK_MASS + arm**2 / PUCK_INERTIA)
        impulse = min(max(sticking, -limit), limit)
        vt -= impulse / PUCK_MASS
        puck.omega += impulse * arm / PUCK_INERTIA
        puck.vx, puck.vy = new_vn * nx + vt * tx, new_vn * ny + vt * ty

    def clamp(self, i: int, side: int) -> None:
        """Stop a player at walls, posts and goals."""
        body = self.players[i]
        corners = [turned(body.angle, side * x, side * y) for x, y in SHAPE]
        gap = 2 * SKIN - SLOP
        top = body.y + max(y for _, y in corners) - (FIELD["half_height"] - gap)
        bottom = body.y + min(y for _, y in corners) + (FIELD["half_height"] - gap)
        if top > 0:
            body.y -= top
            body.vy = min(body.vy, 0.0)
        if bottom < 0:
            body.y -= bottom
            body.vy = max(body.vy, 0.0)
        if side * body.x < -GOAL_BACK:  # beyond the goal, where training may place it
            front = max(side * (body.x + x) for x, _ in corners)
            inside = max(front + GOAL_BACK + gap, 0.0)
            body.x -= side * inside
            if inside > 0:
                body.vx = min(side * body.vx, 0.0) * side
            return
        worst = 0.0
        for x, y in corners:
            high = abs(body.y + y)
            face = LIP_X + (high - LIP_Y) * (POST_X - LIP_X) / (POST_Y - LIP_Y)
            limit = min(max(face, POST_X), FIELD["goal_line"]) - gap
            worst = max(worst, -side * (body.x + x) - limit)
        if worst > 0:
            body.x += side * worst
            body.vx = max(side * body.vx, 0.0) * side

    # Views.

    def reward(self, i: int, side: int) -> float:
        body, puck = self.players[i], self.puck
        total = 10.0 * side * self.winner if self.done else 0.0
        if side * puck.x < 0 and side * puck.vx <= 0:
            far = math.hypot(body.x - puck.x, body.y - puck.y)
            total -= far * 30.0 / (250 / 60 * self.length / 2)
        return total

    def observe(self) -> list[list[float]]:
        """Return the observations of both players."""
        seen = []
        for i, side in enumerate((1, -1)):
            row = []
            for body in (self.players[i], self.players[1 - i]):
                row += [side * body.x, side * body.y, body.angle]
                row += [side * body.vx, side * body.vy, body.omega]
            puck = self.puck
            row += [side * puck.x, side * puck.y, side * puck.vx, side * puck.vy]
            if self.keep_mode:
                row += [float(self.counters[i]), float(self.counters[1 - i])]
            seen.append(row)
        return seen


def from_observation(obs: list[float], *, keep_mode: bool) -> Hockey:
    """Return the game that player 1 observes; the puck has no spin."""
    bodies = [Body(*obs[i : i + 6]) for i in (0, 6)]
    puck = Body(obs[12], obs[13], 0.0, obs[14], obs[15])
    counters = [int(c) for c in obs[16:18]] if keep_mode else [0, 0]
    return Hockey(bodies, puck, keep_mode, counters=counters)
