// The rules of Bucket Brigade: rules.py, with the same names in the same order, for a block of games.

#pragma once

#include <cstdint>
#include <cstring>

constexpr int MAX_HOUSES = 100;
constexpr int MAX_AGENTS = 100;
constexpr int RUINED = 2;
constexpr int HOUSE = 0;
constexpr int MODE = 1;

constexpr int BLOCK = 64;  // games that are computed together, one in every lane

// Whether something is so in every game of a block (1 or 0), and numbers of every game.
typedef uint8_t Bytes[BLOCK];
typedef double Numbers[BLOCK];

// What does not change from step to step. E games, H houses, N agents.
struct Brigade {
    int64_t games, houses, agents;
    const double *team, *loss, *rest, *work;                            // (E,)
    const double *own_saved, *any_saved, *own_ruined, *any_ruined;      // (N, E)
    const int16_t *home, *reach;                                        // (N, E) and (E,)
    const double *distance_cost, *progress_coef;                        // (E,)
    const double *extinguish_bonus, *presence_bonus;                    // (E,)
    const double *welfare, *welfare_gamma, *suppression, *scale;        // (E,)
    const int64_t* min_nights;                                          // (E,)
    const uint8_t *burns_out, *lasts, *quiet_ends, *start_counts;       // (E,)
    // Of observations: `size` numbers, `shared` by all agents, the first `seen` of them not constant.
    int64_t scaled, size, shared, seen;
    const float* table;                                                 // (E, size)
};

// Phases of a night that some game needs.
struct Phases {
    int64_t positional, continuous, shaped;
};

struct State {
    uint8_t *houses, *acts;         // (H, E) and (N, 3, E)
    float* progress;                // (H, E)
};

struct NightEvents {
    const uint8_t *needed, *ignites;  // (H, E)
    const uint8_t* spreads;           // (H, 2, E), or none
};

// Games g … g + count - 1, count <= BLOCK.
struct Block {
    long g;
    int count;
};

// A block's part of a row of E. The other lanes are 0.
template <class Number>
static inline void load(Number* to, const Number* row, Block block) {
    if (block.count < BLOCK) memset(to, 0, BLOCK * sizeof(Number));
    memcpy(to, row + block.g, block.count * sizeof(Number));
}
template <class Number>
static inline void store(Number* row, Block block, const Number* from) {
    memcpy(row + block.g, from, block.count * sizeof(Number));
}

template <class Work>
static inline void in_lanes(const Work& work) {
    for (int i = 0; i < BLOCK; i++) work(i);
}

// What a night's parts share.
struct Night {
    Bytes house[MAX_AGENTS], mode[MAX_AGENTS], workers[MAX_HOUSES];
    Bytes safe[MAX_HOUSES], burning[MAX_HOUSES], ruined[MAX_HOUSES];
    Bytes was_burning[MAX_HOUSES], saved[MAX_HOUSES];
    Bytes safe_now, ruined_now, burning_before, ruined_before, terminated;
    int16_t distance[MAX_AGENTS][BLOCK];
    Numbers rewards[MAX_AGENTS];
};

static inline void count(int rows, const Bytes* of, Bytes& sum) {
    memset(sum, 0, BLOCK);
    for (int k = 0; k < rows; k++) in_lanes([&](int i) { sum[i] += of[k][i]; });
}

// Send agents home that went too far, and keep their distances from home.
static inline void hold_back(const Brigade& b, Block block, Night& n) {
    int16_t home[BLOCK], reach[BLOCK];
    load(reach, b.reach, block);
    for (int a = 0; a < b.agents; a++) {
        load(home, b.home + a * b.games, block);
        in_lanes([&](int i) {
            int16_t far = n.house[a][i] - home[i];
            far = far < 0 ? -far : far;
            const int16_t around = b.houses - far;
            far = far < around ? far : around;
            const bool too_far = far > reach[i];
            n.house[a][i] = too_far ? home[i] : n.house[a][i];
            n.distance[a][i] = too_far ? 0 : far;
        });
    }
}

// Put fires out gradually.
static inline void suppress(const Brigade& b, Block block, Night& n, int h, float* progress,
                            Bytes& put_out) {
    Numbers suppression;
    load(suppression, b.suppression, block);
    in_lanes([&](int i) {
        const float done = (float)((double)n.workers[h][i] * suppression[i]);
        progress[i] = progress[i] + done * (float)n.burning[h][i];
        const bool out = progress[i] >= 1.0f;
        progress[i] = out ? 0.0f : progress[i];
        put_out[i] |= out;
    });
}

static inline void spread(const Brigade& b, Block block, Night& n, const uint8_t* spreads) {
    const int H = b.houses;
    Bytes does;
    for (int house = 0; house < H; house++)
        for (int side = 0; side < 2; side++) {
            const int neighbour = side ? (house + 1) % H : (house + H - 1) % H;
            load(does, spreads + (2 * house + side) * b.games, block);
            in_lanes([&](int i) {
                const uint8_t lit = does[i] & n.burning[house][i] & n.safe[neighbour][i];
                n.burning[neighbour][i] |= lit;
                n.safe[neighbour][i] ^= lit;
            });
        }
}

// `_rewards`, which has the formula.
static inline void add_rewards(const Brigade& b, Block block, Night& n) {
    Numbers team, loss, rest, work, own_saved, any_saved, own_ruined, any_ruined;
    load(team, b.team, block);
    load(loss, b.loss, block);
    load(rest, b.rest, block);
    load(work, b.work, block);
    Bytes saved;
    count(b.houses, n.saved, saved);
    in_lanes([&](int i) {
        team[i] = team[i] * ((double)n.safe_now[i] / (double)b.houses) -
                  loss[i] * ((double)n.ruined_now[i] / (double)b.houses);
    });
    for (int a = 0; a < b.agents; a++) {
        Bytes saved_of = {}, ruined_of = {};
        for (int h = a; h < b.houses; h += b.agents)
            in_lanes([&](int i) {
                saved_of[i] += n.saved[h][i];
                ruined_of[i] += n.ruined[h][i];
            });
        load(own_saved, b.own_saved + a * b.games, block);
        load(any_saved, b.any_saved + a * b.games, block);
        load(own_ruined, b.own_ruined + a * b.games, block);
        load(any_ruined, b.any_ruined + a * b.games, block);
        in_lanes([&](int i) {
            // As torch.addcmul, x + y z is rounded once.
            double reward = (team[i] + rest[i]) + (double)n.mode[a][i] * work[i];
            reward = __builtin_fma((double)saved_of[i], own_saved[i], reward);
            reward = __builtin_fma((double)saved[i], any_saved[i], reward);
            reward = __builtin_fma((double)ruined_of[i], own_ruined[i], reward);
            n.rewards[a][i] = __builtin_fma((double)n.ruined_now[i], any_ruined[i], reward);
        });
    }
}

static inline double potential(const Brigade& b, double team, double loss, uint8_t safe,
                               uint8_t burning, uint8_t ruined) {
    const double H = b.houses;
    return team * ((double)safe / H) - loss * ((double)ruined / H) -
           0.5 * loss * ((double)burning / H);
}

static inline void add_shaping(const Brigade& b, Block block, Night& n) {
    Numbers team, loss, coef, welfare, gamma;
    load(team, b.team, block);
    load(loss, b.loss, block);
    load(coef, b.progress_coef, block);
    load(welfare, b.welfare, block);
    load(gamma, b.welfare_gamma, block);
    in_lanes([&](int i) {
        const uint8_t safe_before = b.houses - n.burning_before[i] - n.ruined_before[i];
        const uint8_t burning_now = b.houses - n.safe_now[i] - n.ruined_now[i];
        const double gained = (double)n.safe_now[i] - (double)safe_before;
        const double now =
            potential(b, team[i], loss[i], n.safe_now[i], burning_now, n.ruined_now[i]) *
            (double)!n.terminated[i];
        const double before = potential(b, team[i], loss[i], safe_before, n.burning_before[i],
                                        n.ruined_before[i]);
        const double shaping = coef[i] * gained + welfare[i] * (gamma[i] * now - before);
        for (int a = 0; a < b.agents; a++) n.rewards[a][i] += shaping;
    });
}

static inline void add_bonuses(const Brigade& b, Block block, Night& n) {
    Numbers extinguish, presence;
    load(extinguish, b.extinguish_bonus, block);
    load(presence, b.presence_bonus, block);
    in_lanes([&](int i) {
        for (int a = 0; a < b.agents; a++) {
            const int h = n.house[a][i];
            const uint8_t workers = n.workers[h][i] < 1 ? 1 : n.workers[h][i];
            const bool kept = n.safe[h][i] & !n.was_burning[h][i];
            const double bonus = extinguish[i] * (double)n.saved[h][i] / (double)workers +
                                 presence[i] * (double)kept;
            n.rewards[a][i] += bonus * (double)n.mode[a][i];
        }
    });
}

// One night of a block. `after.acts` has the actions. `night`: (E,); `rewards`: (E, N).
static void play(const Brigade& b, const Phases& phases, const State& before, const State& after,
                 const NightEvents& events, const int64_t* night, float* rewards,
                 uint8_t* terminated, Block block) {
    const int H = b.houses, N = b.agents;
    Night n;
    for (int a = 0; a < N; a++) {
        load(n.house[a], after.acts + (3 * a + HOUSE) * b.games, block);
        load(n.mode[a], after.acts + (3 * a + MODE) * b.games, block);
    }
    if (phases.positional) {
        hold_back(b, block, n);
        for (int a = 0; a < N; a++)
            store(after.acts + (3 * a + HOUSE) * b.games, block, n.house[a]);
    }
    Bytes counts, burns_out, lasts, quiet_ends;
    int64_t nights[BLOCK], min_nights[BLOCK];
    load(nights, night, block);
    load(min_nights, b.min_nights, block);
    load(counts, b.start_counts, block);
    load(burns_out, b.burns_out, block);
    load(lasts, b.lasts, block);
    load(quiet_ends, b.quiet_ends, block);
    in_lanes([&](int i) { counts[i] |= nights[i] > 0; });

    memset(n.ruined_before, 0, BLOCK);
    for (int h = 0; h < H; h++) {
        memset(n.workers[h], 0, BLOCK);
        for (int a = 0; a < N; a++)
            in_lanes([&](int i) { n.workers[h][i] += (n.house[a][i] == h) & n.mode[a][i]; });
        Bytes state, needed, put_out;
        load(state, before.houses + h * b.games, block);
        load(needed, events.needed + h * b.games, block);
        in_lanes([&](int i) {
            n.safe[h][i] = state[i] == 0;
            n.burning[h][i] = state[i] == 1;
            n.ruined[h][i] = state[i] == RUINED;
            n.was_burning[h][i] = n.burning[h][i] & counts[i];
            put_out[i] = n.burning[h][i] & (n.workers[h][i] >= needed[i]);
        });
        if (phases.continuous) {
            float progress[BLOCK];
            load(progress, before.progress + h * b.games, block);
            suppress(b, block, n, h, progress, put_out);
            store(after.progress + h * b.games, block, progress);
        }
        in_lanes([&](int i) {
            n.ruined_before[i] += n.ruined[h][i];
            n.safe[h][i] |= put_out[i];
            n.burning[h][i] ^= put_out[i];
            n.ruined[h][i] |= n.burning[h][i] & burns_out[i];
            n.burning[h][i] &= lasts[i];
        });
    }
    if (events.spreads) spread(b, block, n, events.spreads);
    for (int h = 0; h < H; h++) {
        Bytes ignites, state;
        load(ignites, events.ignites + h * b.games, block);
        in_lanes([&](int i) {
            const uint8_t ignited = n.safe[h][i] & ignites[i];
            n.burning[h][i] |= ignited;
            n.safe[h][i] ^= ignited;
            state[i] = n.burning[h][i] + RUINED * n.ruined[h][i];
            n.saved[h][i] = n.safe[h][i] & n.was_burning[h][i];
        });
        store(after.houses + h * b.games, block, state);
    }
    count(H, n.safe, n.safe_now);
    count(H, n.ruined, n.ruined_now);
    in_lanes([&](int i) {
        const uint8_t calm = n.safe_now[i] + n.ruined_now[i];
        const uint8_t quiet = calm == H;
        const uint8_t alike = (n.safe_now[i] == H) | (n.ruined_now[i] == H);
        n.terminated[i] = (nights[i] >= min_nights[i]) & quiet & (quiet_ends[i] | alike);
    });
    store(terminated, block, n.terminated);

    add_rewards(b, block, n);
    Numbers scale;
    if (phases.positional) {
        load(scale, b.distance_cost, block);
        for (int a = 0; a < N; a++)
            in_lanes([&](int i) {
                n.rewards[a][i] -= (double)(int16_t)(n.distance[a][i] * n.mode[a][i]) * scale[i];
            });
    }
    if (phases.shaped) {
        count(H, n.was_burning, n.burning_before);
        add_shaping(b, block, n);
        add_bonuses(b, block, n);
    }
    load(scale, b.scale, block);
    for (int a = 0; a < N; a++) {
        float scaled[BLOCK];
        in_lanes([&](int i) { scaled[i] = (float)(n.rewards[a][i] / scale[i]); });
        for (int i = 0; i < block.count; i++) rewards[(block.g + i) * N + a] = scaled[i];
    }
}

// What decides the events of a house in bernoulli mode: see `evaluate` in events.py.
struct Chances {
    int64_t agents;
    float ignition, by_ignition, by_rest, most;
    float failed[100];              // (N,), from which on 1, 2 … workers do not suffice
};

static void evaluate(const Chances& chances, const float* uniform, uint8_t* needed,
                     uint8_t* ignites, Block block) {
    float own[BLOCK], left[BLOCK];
    Bytes below, workers;
    load(own, uniform, block);
    in_lanes([&](int i) {
        below[i] = own[i] < chances.ignition;
        const float rest = own[i] < chances.ignition ? own[i] * chances.by_ignition
                                                     : (own[i] - chances.ignition) * chances.by_rest;
        left[i] = rest > chances.most ? chances.most : rest;
        workers[i] = 1;
    });
    for (int k = 0; k < chances.agents; k++)
        in_lanes([&](int i) { workers[i] += left[i] >= chances.failed[k]; });
    store(needed, block, workers);
    store(ignites, block, below);
}
