// The rules of laser hockey: rules.py, with the same names in the same order.

#pragma once

#include "physics.h"

constexpr double FORCE = 6000.0, TORQUE = 400.0;
constexpr double SHOT_SPEED = 60.0;
constexpr double HOLD_STEPS = 15;

// The state of games, one per lane.
struct GameState {
    Bodies players[2], puck;
    vec counters[2], touching[2];   // numbers; 1 or 0
    vec scored;
};

static constexpr float kept(double damping) {
    return f(1.0 - DT * damping > 0.0 ? 1.0 - DT * damping : 0.0);
}

static inline void translate(Bodies& own, Controls& controls) {
    vec x = own.x, vx = own.vx, vy = own.vy, fx = controls.fx, fy = controls.fy;
    mask centre = x > -0.5f;
    vec speed = length(vx, vy);
    mask fast = ~centre & (speed >= 10.0f);
    mask speeds_up = fast & (length(vx + f(DT / MASS) * fx, vy + f(DT / MASS) * fy) >= speed);
    vec brake = where(vx > 0.0f, -2.0f, 0.0f) - x;
    fx = where(centre, brake * vx * f(MASS / DT), fx);
    mask out_x = ((x < -3.5f) & (fx < 0.0f)) | ((x > 0.0f) & (fx > 0.0f));
    mask out_y = ((own.y > f(2.8)) & (fy > 0.0f)) | ((own.y < f(-2.8)) & (fy < 0.0f));
    out_x &= ~speeds_up;
    out_y &= ~speeds_up;
    controls.keep = where(centre | fast, kept(20.0), kept(5.0));
    own.vx = where(out_x, 0.0f, vx);
    own.vy = where(out_y, 0.0f, vy);
    controls.fx = where(out_x | speeds_up, 0.0f, fx);
    controls.fy = where(out_y | speeds_up, 0.0f, fy);
}

static inline void turn_racket(const Bodies& own, vec action, Controls& controls) {
    mask beyond = magnitude(own.angle) > f(M_PI / 3);
    vec away = where(own.angle * own.omega > 0.0f, own.omega, 0.0f);
    controls.torque =
        where(beyond, (away + own.angle) * f(-0.1 * MASS / DT), f(TORQUE) * action);
    controls.keep_spin = where(beyond, kept(10.0), kept(2.0));
}

static inline void hold_and_shoot(GameState& game, const Turn* turn, const vec* shoot) {
    mask holds[2];
    vec vx[2], vy[2];
    for (int k = 0; k < 2; k++) {
        holds[k] = game.counters[k] > 1.0f;
        vec counter = game.counters[k] - where(holds[k], 1.0f, 0.0f);
        mask shoots = holds[k] & ((counter == 1.0f) | (shoot[k] > 0.5f));
        game.counters[k] = where(shoots, 0.0f, counter);
        vx[k] = game.players[k].vx + where(shoots, f(SHOT_SPEED) * turn[k].cos, 0.0f);
        vy[k] = game.players[k].vy + where(shoots, f(SHOT_SPEED) * turn[k].sin, 0.0f);
    }
    auto carried = [&](vec first, vec second, vec free) {
        return where(holds[1], -second, where(holds[0], first, free));
    };
    Bodies &puck = game.puck, *players = game.players;
    puck.x = carried(players[0].x, players[1].x, puck.x);
    puck.y = carried(players[0].y, players[1].y, puck.y);
    puck.vx = carried(vx[0], vx[1], puck.vx);
    puck.vy = carried(vy[0], vy[1], puck.vy);
}

struct Played {
    mask ended, caught[2];
};

// A step up to the players' turns. `action`: (2, 4), as of `play`.
static inline Played play(const Tables& t, GameState& game, const vec (*action)[4],
                          const Turn* turn, Contact* contact, bool keep_mode) {
    Bodies &puck = game.puck, *players = game.players;
    Controls controls[2];
    vec shoot[2] = {action[0][3], action[1][3]};
    for (int k = 0; k < 2; k++) {
        controls[k].fx = f(FORCE) * action[k][0];
        controls[k].fy = f(FORCE) * action[k][1];
        translate(players[k], controls[k]);
        turn_racket(players[k], action[k][2], controls[k]);
    }
    mask fast = length(puck.vx, puck.vy) > 25.0f;
    vec puck_keep = where(fast, kept(10.0), kept(0.05));
    if (keep_mode) hold_and_shoot(game, turn, shoot);

    mask goal = (magnitude(puck.x) > f(GOAL_REACHED_X)) & (magnitude(puck.y) <= f(GOAL_Y));
    game.scored = where(goal, sign(puck.x), 0.0f);
    Played played{goal, {}};
    for (int k = 0; k < 2; k++) {
        contact[k] = find_contact(t, k, players[k], turn[k], puck);
        const mask touching = contact[k].touching;
        if (keep_mode) {
            played.caught[k] = touching & (game.touching[k] == 0.0f) & (game.counters[k] == 0.0f) &
                               (own_frame(puck.vx, k) < f(0.1));
            game.counters[k] = where(played.caught[k], f(HOLD_STEPS), game.counters[k]);
        }
        game.touching[k] = where(touching, 1.0f, 0.0f);
    }

    // `step_physics`.
    for (int k = 0; k < 2; k++) {
        Bodies& own = players[k];
        own.vx = (own.vx + f(DT / MASS) * controls[k].fx) * controls[k].keep;
        own.vy = (own.vy + f(DT / MASS) * controls[k].fy) * controls[k].keep;
        own.omega = (own.omega + f(DT / INERTIA) * controls[k].torque) * controls[k].keep_spin;
    }
    puck.vx = puck.vx * puck_keep;
    puck.vy = puck.vy * puck_keep;
    bounce(t, players, turn, puck, contact);
    for (int k = 0; k < 2; k++) advance(players[k]);
    return played;
}
