// The physics of laser hockey: physics.py, which has the formulas, with the same names in the same
// order. What is there (2, games) is here an array of both players.
//
// A step is in three parts, since torch computes the sines and cosines between them: `_move` turns
// the players (`displace`), and then its origins follow (`swing`).

#pragma once

#include <cmath>
#include <limits>

#include "lanes32.h"

constexpr double DT = 0.02;

constexpr double WALL_Y = 3.3333;
constexpr double GOAL_X = 4.0833, GOAL_Y = 1.25;
constexpr double GOAL_BACK_X = 4.4167;
constexpr double POST_X = 3.9167, POST_Y = 1.3667;
constexpr double LIP_X = 4.25, LIP_Y = 1.25;
constexpr double GOAL_REACHED_X = 3.8567;

constexpr double PUCK_RADIUS = 0.216667, PUCK_MASS = 1.03236, PUCK_INERTIA = 0.024232;
constexpr double MASS = 58.0, INERTIA = 3.7095, CENTRE = -0.12238;

constexpr double SKIN = 0.01, SLOP = 0.005;
constexpr double RESTITUTION = 0.95, SLOWEST_BOUNCE = 1.0;
constexpr double WALL_FRICTION = 0.1;
constexpr double REACH = PUCK_RADIUS + SKIN;
constexpr double WALL_REACH = REACH - 3 * SLOP;
constexpr double WALL_PUSH = 15.0 / 16 * 2 * SLOP;
constexpr double PLAYER_GAP = 2 * SKIN - SLOP;
constexpr double MAX_SPEED = 2.0 / DT;

constexpr int FACES = 4, CORNERS = 7, CORRECTIONS = 32;

// What physics.py computes once, in float32.
struct Tables {
    float racket_friction;
    float slope, slope_x, slope_y;
    float faces[24];                // (FACES, 6): both ends, then the outward normal
    float corners[14];              // (2, CORNERS): x, then y
    float limits[32];               // (CORRECTIONS,)
    float left[33];                 // (CORRECTIONS + 1,)
};

struct Bodies {
    vec x, y, angle, vx, vy, omega;
};

struct Turn {
    vec cos, sin;
};

struct Contact {
    mask touching;
    vec x, y, nx, ny;
};

struct Controls {
    vec fx, fy, torque, keep, keep_spin;
};

// A number as torch uses it with tensors of float32.
static constexpr float f(double x) { return (float)x; }

// A coordinate of the world in the frame of a player.
static inline vec own_frame(vec value, int player) { return player ? -value : value; }

static inline void rotate(Turn turn, vec x, vec y, vec& to_x, vec& to_y) {
    to_x = turn.cos * x - turn.sin * y;
    to_y = turn.sin * x + turn.cos * y;
}

static inline Contact find_contact(const Tables& t, int player, const Bodies& own, Turn turn,
                                   const Bodies& puck) {
    vec dx = own_frame(puck.x, player) - own.x, dy = own_frame(puck.y, player) - own.y, cx, cy;
    rotate({turn.cos, -turn.sin}, dx, dy, cx, cy);
    vec below = where(cy < 0.0f, -1.0f, 1.0f);
    cy = magnitude(cy);
    vec depth{}, ax{}, ay{}, bx{}, by{}, nx{}, ny{};
    for (int k = 0; k < FACES; k++) {
        const float* face = t.faces + 6 * k;
        vec own_depth = face[4] * (cx - face[0]) + face[5] * (cy - face[1]);
        mask deepest = k ? own_depth > depth : ~mask{};
        depth = where(deepest, own_depth, depth);
        ax = where(deepest, face[0], ax);
        ay = where(deepest, face[1], ay);
        bx = where(deepest, face[2], bx);
        by = where(deepest, face[3], by);
        nx = where(deepest, face[4], nx);
        ny = where(deepest, face[5], ny);
    }
    mask before = (cx - ax) * (bx - ax) + (cy - ay) * (by - ay) <= 0.0f;
    mask after = (cx - bx) * (ax - bx) + (cy - by) * (ay - by) <= 0.0f;
    mask vertex = (before | after) & (depth > 0.0f);
    vec vx = where(before, ax, bx), vy = where(before, ay, by);
    vec far = length(cx - vx, cy - vy);
    vec distance = where(vertex, far, depth);
    far = no_less(far, f(1e-6));
    return {distance <= f(REACH), where(vertex, vx, 0.5f * (ax + bx)),
            below * where(vertex, vy, 0.5f * (ay + by)), where(vertex, (cx - vx) / far, nx),
            below * where(vertex, (cy - vy) / far, ny)};
}

struct Arms {
    vec nx, ny, rx, ry, gap, arm;
};

static inline Arms arms(int player, const Bodies& own, Turn turn, const Bodies& puck,
                        const Contact& contact) {
    vec dx = own_frame(puck.x, player) - own.x, dy = own_frame(puck.y, player) - own.y;
    vec nx, ny, px, py;
    rotate(turn, contact.nx, contact.ny, nx, ny);
    rotate(turn, contact.x, contact.y, px, py);
    vec gap = (dx - px) * nx + (dy - py) * ny;
    vec arm = 0.5f * (gap + f(PUCK_RADIUS) - f(SKIN));
    return {nx, ny, dx - arm * nx - turn.cos * f(CENTRE), dy - arm * ny - turn.sin * f(CENTRE),
            gap, arm};
}

static inline void bounce(const Tables& t, Bodies* players, const Turn* turn, Bodies& puck,
                          const Contact* contact) {
    vec jx[2], jy[2], spin[2];
    for (int k = 0; k < 2; k++) {
        Bodies& own = players[k];
        auto [nx, ny, rx, ry, gap, arm] = arms(k, own, turn[k], puck, contact[k]);
        vec wx = own_frame(puck.vx, k) - own.vx + own.omega * ry;
        vec wy = own_frame(puck.vy, k) - own.vy - own.omega * rx;
        vec wn = wx * nx + wy * ny;
        vec wt = wy * nx - wx * ny - puck.omega * arm;
        vec rn = rx * ny - ry * nx, rt = rx * nx + ry * ny;
        vec knn = f(1 / PUCK_MASS + 1 / MASS) + rn * rn / f(INERTIA);
        vec knt = rn * rt / f(INERTIA);
        vec ktt = f(1 / PUCK_MASS + 1 / MASS) + rt * rt / f(INERTIA) + arm * arm / f(PUCK_INERTIA);
        vec target = where(wn < f(-SLOWEST_BOUNCE), f(-RESTITUTION) * wn, 0.0f) - wn;
        vec determinant = knn * ktt - knt * knt;
        vec jn = (ktt * target + knt * wt) / determinant;
        vec jt = -(knn * wt + knt * target) / determinant;
        vec slide = t.racket_friction * sign(jt);
        mask slides = magnitude(jt) > t.racket_friction * jn;
        jn = where(slides, target / (knn + slide * knt), jn);
        jn = where(contact[k].touching, no_less(jn, 0.0f), 0.0f);
        jt = where(slides, slide * jn, jt);
        jt = where(jn > 0.0f, jt, 0.0f);
        jx[k] = jn * nx - jt * ny;
        jy[k] = jn * ny + jt * nx;
        spin[k] = arm * jt;
        own.vx = own.vx - jx[k] / f(MASS);
        own.vy = own.vy - jy[k] / f(MASS);
        own.omega = own.omega - (rn * jn + rt * jt) / f(INERTIA);
    }
    puck.vx = puck.vx + (jx[0] - jx[1]) / f(PUCK_MASS);
    puck.vy = puck.vy + (jy[0] - jy[1]) / f(PUCK_MASS);
    puck.omega = puck.omega - (0.0f + spin[0] + spin[1]) / f(PUCK_INERTIA);
}

// `_move`, before the new turn is known.
static inline void displace(Bodies& own, vec dx, vec dy, vec angle) {
    own.angle = own.angle + angle;
    own.x = own.x + dx;
    own.y = own.y + dy;
}

// `_move`, once it is known.
static inline void swing(Bodies& own, Turn turn, Turn turned) {
    own.x = own.x + f(CENTRE) * (turn.cos - turned.cos);
    own.y = own.y + f(CENTRE) * (turn.sin - turned.sin);
}

static inline void limit_speed(Bodies& body) {
    vec slower = 1.0f / no_less(length(body.vx, body.vy), f(1e-9)) * f(MAX_SPEED);
    slower = no_more(slower, 1.0f);
    body.vx = body.vx * slower;
    body.vy = body.vy * slower;
}

static inline void advance(Bodies& own) {
    limit_speed(own);
    displace(own, f(DT) * own.vx, f(DT) * own.vy, f(DT) * own.omega);
}

static inline void separate(const Tables& t, Bodies* players, const Turn* turn, Bodies& puck,
                            const Contact* contact) {
    vec dx[2], dy[2];
    for (int k = 0; k < 2; k++) {
        Bodies& own = players[k];
        auto [nx, ny, rx, ry, gap, arm] = arms(k, own, turn[k], puck, contact[k]);
        vec excess = f(REACH - SLOP) - gap;
        mask overlaps = contact[k].touching & (excess > 0.0f);
        vec rn = rx * ny - ry * nx, push = all(0.0f);
        if (any(overlaps)) {
            vec left = all(t.left[0]);
            for (int i = 0; i < CORRECTIONS; i++)
                left = where(excess > t.limits[i], t.left[i + 1], left);
            vec corrected = excess * (1.0f - left);
            push = corrected / (f(1 / PUCK_MASS + 1 / MASS) + rn * rn / f(INERTIA));
            push = where(overlaps, push, 0.0f);
        }
        dx[k] = push * nx;
        dy[k] = push * ny;
        displace(own, -dx[k] / f(MASS), -dy[k] / f(MASS), -push * rn / f(INERTIA));
    }
    puck.x = puck.x + (dx[0] - dx[1]) / f(PUCK_MASS);
    puck.y = puck.y + (dy[0] - dy[1]) / f(PUCK_MASS);
}

static inline void stop_at_walls(const Tables& t, Bodies& own, Turn turn) {
    vec top{}, bottom{}, behind{}, beyond{};
    for (int k = 0; k < CORNERS; k++) {
        vec x, y;
        rotate(turn, all(t.corners[k]), all(t.corners[CORNERS + k]), x, y);
        vec high = magnitude(own.y + y);
        vec slope = f(LIP_X) + (high - f(LIP_Y)) * f((POST_X - LIP_X) / (POST_Y - LIP_Y));
        slope = no_more(no_less(slope, f(POST_X)), f(GOAL_X));
        vec own_behind = slope - f(PLAYER_GAP) + own.x + x, own_beyond = own.x + x;
        top = k ? larger_of(top, y) : y;
        bottom = k ? smaller_of(bottom, y) : y;
        behind = k ? smaller_of(behind, own_behind) : own_behind;
        beyond = k ? larger_of(beyond, own_beyond) : own_beyond;
    }
    constexpr double limit = WALL_Y - PLAYER_GAP;
    vec over = no_less(own.y + top - f(limit), 0.0f);
    vec under = no_more(own.y + bottom + f(limit), 0.0f);
    behind = no_more(behind, 0.0f);
    beyond = beyond + f(GOAL_BACK_X) + f(PLAYER_GAP);
    behind = where(own.x < f(-GOAL_BACK_X), no_less(beyond, 0.0f), behind);
    own.x = own.x - behind;
    own.y = own.y - over - under;
    own.vx = where(behind < 0.0f, no_less(own.vx, 0.0f),
                   where(behind > 0.0f, no_more(own.vx, 0.0f), own.vx));
    own.vy = where(over > 0.0f, no_more(own.vy, 0.0f),
                   where(under < 0.0f, no_less(own.vy, 0.0f), own.vy));
}

static inline void keep_inside(Bodies& puck) {
    constexpr double limit_y = WALL_Y - WALL_REACH, limit_x = POST_X - WALL_REACH;
    puck.y = no_more(no_less(puck.y, f(-limit_y)), f(limit_y));
    vec x = no_more(no_less(puck.x, f(-limit_x)), f(limit_x));
    puck.x = where(magnitude(puck.y) > f(POST_Y), x, puck.x);
}

constexpr float NEVER = std::numeric_limits<float>::infinity();

static inline vec time_to(vec gap, vec closing) {
    vec time = where(gap < f(REACH), 0.0f, (gap - f(WALL_REACH)) / closing);
    return where(closing > 0.0f, time, NEVER);
}

// The earlier of two hits, and its normal.
static inline void take_first(vec& time, vec& nx, vec& ny, vec other, vec other_nx, vec other_ny) {
    mask earlier = other < time;
    time = smaller_of(time, other);
    nx = where(earlier, other_nx, nx);
    ny = where(earlier, other_ny, ny);
}

static inline void reflect(const Bodies& puck, vec nx, vec ny, vec& vx, vec& vy, vec& omega) {
    constexpr double arm = 0.5 * (WALL_REACH + WALL_PUSH + PUCK_RADIUS - SKIN);
    vec vn = puck.vx * nx + puck.vy * ny, vt = puck.vy * nx - puck.vx * ny;
    vec new_vn = where(vn < f(-SLOWEST_BOUNCE), f(-RESTITUTION) * vn, 0.0f);
    vec limit = f(WALL_FRICTION * PUCK_MASS) * no_less(new_vn - vn, 0.0f);
    vec sticking = (vt - puck.omega * f(arm)) / f(1 / PUCK_MASS + arm * arm / PUCK_INERTIA);
    vec impulse = smaller_of(larger_of(sticking, -limit), limit);
    vt = vt - impulse / f(PUCK_MASS);
    omega = puck.omega + impulse * f(arm / PUCK_INERTIA);
    vx = new_vn * nx - vt * ny;
    vy = new_vn * ny + vt * nx;
}

static inline void bounce_off_wall(const Tables& t, Bodies& puck, vec& left) {
    vec sx = where(puck.x + left * puck.vx >= 0.0f, 1.0f, -1.0f);
    vec sy = where(puck.y + left * puck.vy >= 0.0f, 1.0f, -1.0f);
    vec x = sx * puck.x, y = sy * puck.y, vx = sx * puck.vx, vy = sy * puck.vy;

    // The top wall and the face of the post.
    vec time = time_to(f(WALL_Y) - y, vy), nx = all(0.0f), ny = all(-1.0f);
    vec at_post = time_to(f(POST_X) - x, vx);
    mask hits = (x < f(POST_X)) & (y + at_post * vy > f(POST_Y));
    take_first(time, nx, ny, where(hits, at_post, NEVER), all(-1.0f), all(0.0f));

    // The sloping side of the post.
    vec px = x - f(POST_X), py = y - f(POST_Y);
    vec gap = px * t.slope_y - py * t.slope_x;
    vec at_slope = time_to(gap, vy * t.slope_x - vx * t.slope_y);
    vec along = (px + at_slope * vx) * t.slope_x + (py + at_slope * vy) * t.slope_y;
    hits = (gap > 0.0f) & (along > 0.0f) & (along < t.slope);
    take_first(time, nx, ny, where(hits, at_slope, NEVER), all(t.slope_y), all(-t.slope_x));

    // The corner.
    vec square = vx * vx + vy * vy, product = px * vx + py * vy, far = length(px, py);
    vec inside = product * product - square * (far * far - f(WALL_REACH * WALL_REACH));
    vec at_corner = (-product - root(no_less(inside, 0.0f))) / no_less(square, f(1e-12));
    at_corner = where(far < f(REACH), 0.0f, at_corner);
    vec qx = px + at_corner * vx, qy = py + at_corner * vy;
    hits = (product < 0.0f) & ((inside > 0.0f) | (far < f(REACH)));
    hits &= (qy <= 0.0f) & (qx * t.slope_x + qy * t.slope_y <= 0.0f);
    vec reached = no_less(length(qx, qy), f(1e-6));
    take_first(time, nx, ny, where(hits, at_corner, NEVER), qx / reached, qy / reached);

    mask hit = time < left;
    time = where(hit, time, 0.0f);
    nx = sx * nx;
    ny = sy * ny;
    vec out = where(time > 0.0f, f(WALL_PUSH), 0.0f), omega;
    reflect(puck, nx, ny, vx, vy, omega);
    puck.x = puck.x + time * puck.vx + out * nx;
    puck.y = puck.y + time * puck.vy + out * ny;
    puck.vx = where(hit, vx, puck.vx);
    puck.vy = where(hit, vy, puck.vy);
    puck.omega = where(hit, omega, puck.omega);
    left = left - time;
}

static inline void fly(const Tables& t, Bodies& puck) {
    limit_speed(puck);
    vec left = all(f(DT));
    for (int k = 0; k < 2; k++) bounce_off_wall(t, puck, left);
    puck.x = puck.x + left * puck.vx;
    puck.y = puck.y + left * puck.vy;
}
