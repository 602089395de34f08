// The rules of laser hockey, called by envs/games/hockey/native.py through ctypes. A move is
//
//     play       actions, the puck in the rackets, goals, catches and impulses
//     separate   the puck's flight and its overlaps with the rackets
//     finish     walls and rewards
//
// with torch's cosines and sines of the players' angles before each of them: their last bits depend
// on its library.

#include <algorithm>
#include <atomic>

#include "pool.h"
#include "rules.h"

constexpr double GOAL_REWARD = 10.0;
constexpr int COORDINATES = 17;     // of `Games::bodies`
constexpr int NOTES = 12;           // of `Match::notes`

// What does not change from step to step. G games.
struct Match {
    int64_t games, stride;          // from one run of games to the next
    int64_t keep_mode;
    Tables tables;
    const double *mode, *time_limit, *closeness, *touch, *direction;  // (G,), `Hockey.numbers`
    float* turns;                   // (3, 4, G): cosines and sines before and during the step
    float* notes;                   // (NOTES, G): contacts and catches of both players
};

// The tensors of a state.
struct Games {
    int64_t stride;                 // of `bodies`
    float* bodies;                  // (COORDINATES, G): of both players in turn, then of the puck
    int64_t* counters;              // (2, G)
    uint8_t* touching;              // (2, G)
    float* scored;                  // (G,)
};

template <class Group>
static inline Turn turn_of(const Match& m, Group group, int turn, int player) {
    const float* at = m.turns + (4 * turn + player) * m.stride;
    return {load(at, group), load(at + 2 * m.stride, group)};
}

// The bodies alone.
template <class Group>
static inline GameState load_bodies(const Games& games, Group group) {
    const float* at = games.bodies;
    auto next = [&] {
        vec x = load(at, group);
        at += games.stride;
        return x;
    };
    GameState game{};
    for (vec Bodies::*part : {&Bodies::x, &Bodies::y, &Bodies::angle, &Bodies::vx, &Bodies::vy,
                              &Bodies::omega})
        for (Bodies& own : game.players) own.*part = next();
    for (vec Bodies::*part : {&Bodies::x, &Bodies::y, &Bodies::vx, &Bodies::vy, &Bodies::omega})
        game.puck.*part = next();
    return game;
}

template <class Group>
static inline GameState load_game(const Match& m, const Games& games, Group group) {
    GameState game = load_bodies(games, group);
    for (int k = 0; k < 2; k++) {
        game.counters[k] = load(games.counters + k * m.games, group);
        game.touching[k] = load(games.touching + k * m.games, group);
    }
    game.scored = load(games.scored, group);
    return game;
}

template <class Group>
static inline void store_bodies(const Games& games, Group group, const GameState& game) {
    float* at = games.bodies;
    auto put = [&](vec x) {
        store(at, group, x);
        at += games.stride;
    };
    for (vec Bodies::*part : {&Bodies::x, &Bodies::y, &Bodies::angle, &Bodies::vx, &Bodies::vy,
                              &Bodies::omega})
        for (const Bodies& own : game.players) put(own.*part);
    for (vec Bodies::*part : {&Bodies::x, &Bodies::y, &Bodies::vx, &Bodies::vy, &Bodies::omega})
        put(game.puck.*part);
}

template <class Group>
static inline void store_game(const Match& m, const Games& games, Group group,
                              const GameState& game) {
    store_bodies(games, group, game);
    for (int k = 0; k < 2; k++) {
        store(games.counters + k * m.games, group, game.counters[k]);
        store(games.touching + k * m.games, group, game.touching[k]);
    }
    store(games.scored, group, game.scored);
}

// What later parts of a step need, with the catches.
template <class Group>
static inline void note(const Match& m, Group group, const Contact* contact, const mask* caught) {
    float* at = m.notes;
    for (int k = 0; k < 2; k++)
        for (vec x : {where(contact[k].touching, 1.0f, 0.0f), contact[k].x, contact[k].y,
                      contact[k].nx, contact[k].ny, where(caught[k], 1.0f, 0.0f)}) {
            store(at, group, x);
            at += m.stride;
        }
}

template <class Group>
static inline Contact noted_contact(const Match& m, Group group, int player) {
    const float* at = m.notes + 6 * player * m.stride;
    auto row = [&](int k) { return load(at + k * m.stride, group); };
    return {row(0) != 0.0f, row(1), row(2), row(3), row(4)};
}

// `action`: (G, 2, 4), or (G, 2, 3) without keep mode.
template <class Group, class Number>
static void play(const Match& m, const Games& before, const Games& after, Group group,
                 const Number* action, uint8_t* ended) {
    const int each = m.keep_mode ? 4 : 3;
    float chosen[2][4][LANES] = {};
    for (int i = 0; i < group.count; i++)
        for (int k = 0; k < 2; k++)
            for (int part = 0; part < each; part++)
                chosen[k][part][i] = (float)action[((group.g + i) * 2 + k) * each + part];
    vec controls[2][4];
    memcpy(controls, chosen, sizeof controls);
    GameState game = load_game(m, before, group);
    const Turn turn[2] = {turn_of(m, group, 0, 0), turn_of(m, group, 0, 1)};
    Contact contact[2];
    const Played played = play(m.tables, game, controls, turn, contact, m.keep_mode);
    store_game(m, after, group, game);
    note(m, group, contact, played.caught);
    for (int i = 0; i < group.count; i++) ended[group.g + i] = played.ended[i] != 0;
}

template <class Group>
static void separate(const Match& m, const Games& after, Group group) {
    GameState game = load_bodies(after, group);
    Turn turned[2];
    Contact contact[2];
    for (int k = 0; k < 2; k++) {
        turned[k] = turn_of(m, group, 1, k);
        contact[k] = noted_contact(m, group, k);
        swing(game.players[k], turn_of(m, group, 0, k), turned[k]);
    }
    fly(m.tables, game.puck);
    separate(m.tables, game.players, turned, game.puck, contact);
    store_bodies(after, group, game);
}

// `Hockey._reward`; `reward`: (G, 2).
template <class Group>
static inline void reward_of(const Match& m, Group group, const GameState& game, float* reward) {
    vec clock = load(m.time_limit, group);
    vec weights[] = {load(m.closeness, group),
                     load(m.touch, group),
                     load(m.direction, group)};
    for (int k = 0; k < 2; k++) {
        vec x = own_frame(game.puck.x, k), vx = own_frame(game.puck.vx, k);
        vec caught = load(m.notes + (6 * k + 5) * m.stride, group);
        vec far = length(x - game.players[k].x, own_frame(game.puck.y, k) - game.players[k].y);
        vec near = where((x < 0.0f) & (vx <= 0.0f),
                         far * (1.0f / (f(250.0 / 60) * clock / 2.0f) * -30.0f), 0.0f);
        vec sum = f(GOAL_REWARD) * own_frame(game.scored, k) + weights[0] * near +
                  weights[1] * caught + weights[2] * vx / (25.0f * clock);
        for (int i = 0; i < group.count; i++) reward[2 * (group.g + i) + k] = sum[i];
    }
}

template <class Group>
static void finish(const Match& m, const Games& after, Group group, float* reward) {
    GameState game = load_bodies(after, group);
    game.scored = load(after.scored, group);
    for (int k = 0; k < 2; k++) {
        const Turn turned = turn_of(m, group, 2, k);
        swing(game.players[k], turn_of(m, group, 1, k), turned);
        stop_at_walls(m.tables, game.players[k], turned);
    }
    keep_inside(game.puck);
    store_bodies(after, group, game);
    reward_of(m, group, game, reward);
}

// Replace games by others.
static inline void put(GameState& game, mask chosen, const GameState& other) {
    const vec* from = (const vec*)&other;
    vec* to = (vec*)&game;
    for (size_t k = 0; k < sizeof(GameState) / sizeof(vec); k++)
        to[k] = where(chosen, from[k], to[k]);
}

// `Hockey.start`, in the games of `ended`. `uniforms`: (G, 6), `stride` from one game to the next.
template <class Group>
static void restart(const Match& m, const Games& games, const Games& final, Group group,
                    const uint8_t* ended, const double* uniforms, int64_t stride) {
    vec drawn[6] = {};
    mask again = {};
    for (int i = 0; i < group.count; i++) {
        if (!ended[group.g + i]) continue;
        again[i] = -1;
        for (int k = 0; k < 6; k++) drawn[k][i] = (float)uniforms[(group.g + i) * stride + k];
    }
    if (!any(again)) return;
    const auto [first, px, py, p2x, p2y, shot_y] = drawn;
    const vec mode = load(m.mode, group);
    const mask training = mode > 0.0f, defense = mode == 2.0f;
    vec sign = where((first < 0.5f) | training, -1.0f, 1.0f);
    GameState begun{}, game = load_game(m, games, group);
    Bodies &one = begun.players[0], &two = begun.players[1], &puck = begun.puck;
    puck.x = where(defense, px * f(3.333), sign * (1.0f + px));
    puck.y = where(defense, f(0.8) * (8.0f * py - 4.0f), 2.0f * py - 1.0f);
    vec aim_x = -5.0f - puck.x, aim_y = f(0.6 * 1.25) * (2.0f * shot_y - 1.0f) - puck.y;
    vec speed = where(defense, 1.0f / length(aim_x, aim_y) * f(SHOT_SPEED), 0.0f);
    one.x = all(-3.0f);
    two.x = where(training, -(f(3.0 - 3.333) + 5.0f * p2x), -3.0f);
    two.y = where(training, -(4.0f * p2y - 2.0f), 0.0f);
    puck.vx = aim_x * speed;
    puck.vy = aim_y * speed;
    GameState last = load_game(m, final, group);
    put(last, again, game);
    put(game, again, begun);
    store_game(m, final, group, last);
    store_game(m, games, group, game);
}

// `obs`: (G, 2, 18), or (G, 2, 16) without keep mode.
template <class Group>
static void see(const Match& m, const Games& games, Group group, float* obs) {
    const GameState game = load_game(m, games, group);
    const int columns = m.keep_mode ? 18 : 16;
    for (int k = 0; k < 2; k++) {
        const Bodies &own = game.players[k], &other = game.players[1 - k], &puck = game.puck;
        const vec seen[] = {own.x,
                            own.y,
                            own.angle,
                            own.vx,
                            own.vy,
                            own.omega,
                            // In the other's frame positions and velocities are negated.
                            -other.x,
                            -other.y,
                            other.angle,
                            -other.vx,
                            -other.vy,
                            other.omega,
                            own_frame(puck.x, k),
                            own_frame(puck.y, k),
                            own_frame(puck.vx, k),
                            own_frame(puck.vy, k),
                            game.counters[k],
                            game.counters[1 - k]};
        float shown[18][LANES];
        memcpy(shown, seen, sizeof shown);
        for (int i = 0; i < group.count; i++) {
            float* row = obs + ((group.g + i) * 2 + k) * columns;
            for (int c = 0; c < columns; c++) row[c] = shown[c][i];
        }
    }
}

constexpr long GAMES_PER_TASK = 512;  // a multiple of LANES; fewer are done before a thread wakes up

template <class Work>
static void in_groups(const Match& m, int64_t threads, const Work& work) {
    const long size = std::max(GAMES_PER_TASK, m.games / (4 * threads) / LANES * LANES);
    Pool::get().run((m.games + size - 1) / size, threads, [&](long task, int) {
        const long end = std::min<long>((task + 1) * size, m.games);
        for (long g = task * size; g < end; g += LANES)
            if (end - g >= LANES)
                work(Whole{g});
            else
                work(Part{g, (int)(end - g)});
    });
}

extern "C" {

// `wide`: whether actions are float64, not float32. `ended`: (G,).
void sweepd_hockey_play(const Match* match, const Games* before, const Games* after,
                        const void* action, int64_t wide, uint8_t* ended, int64_t threads) {
    in_groups(*match, threads, [&](auto group) {
        if (wide)
            play(*match, *before, *after, group, (const double*)action, ended);
        else
            play(*match, *before, *after, group, (const float*)action, ended);
    });
}

// Whether all of `count` numbers are from -1 to 1.
int64_t sweepd_hockey_in_range(const void* action, int64_t wide, int64_t count, int64_t threads) {
    constexpr long NUMBERS_PER_TASK = 16384;
    std::atomic<bool> right{true};
    const long tasks = (count + NUMBERS_PER_TASK - 1) / NUMBERS_PER_TASK;
    Pool::get().run(tasks, threads, [&](long task, int) {
        const long first = task * NUMBERS_PER_TASK;
        const long end = std::min<long>(first + NUMBERS_PER_TASK, count);
        auto all_right = [&](const auto* numbers) {
            int wrong = 0;
            for (long i = first; i < end; i++) wrong |= !((numbers[i] >= -1) & (numbers[i] <= 1));
            return !wrong;
        };
        if (!(wide ? all_right((const double*)action) : all_right((const float*)action)))
            right = false;
    });
    return right;
}

void sweepd_hockey_separate(const Match* match, const Games* after, int64_t threads) {
    in_groups(*match, threads, [&](auto group) { separate(*match, *after, group); });
}

void sweepd_hockey_finish(const Match* match, const Games* after, float* reward,
                          int64_t threads) {
    in_groups(*match, threads, [&](auto group) { finish(*match, *after, group, reward); });
}

// `final` gets the last states of games that ended.
void sweepd_hockey_restart(const Match* match, const Games* games, const Games* final,
                           const uint8_t* ended, const double* uniforms, int64_t stride,
                           int64_t threads) {
    in_groups(*match, threads, [&](auto group) {
        restart(*match, *games, *final, group, ended, uniforms, stride);
    });
}

void sweepd_hockey_see(const Match* match, const Games* games, float* obs, int64_t threads) {
    in_groups(*match, threads, [&](auto group) { see(*match, *games, group, obs); });
}

}
