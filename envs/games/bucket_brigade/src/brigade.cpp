// The rules of Bucket Brigade, called by envs/games/bucket_brigade/native.py through ctypes.

#include <algorithm>
#include <atomic>

#include "pool.h"
#include "rules.h"

// The rows' actions, (rows, 3), as those of agents, `acts`: (N, 3, E). Illegal numbers become the
// last legal ones. `row_of`: the row of every seat, or none. Returns whether all are legal.
static bool seat(const Brigade& b, const int64_t* action, const int64_t* row_of, uint8_t* acts,
                 Block block) {
    const uint64_t most[] = {(uint64_t)b.houses - 1, 1, 1};
    bool legal = true;
    Bytes seated[3 * MAX_AGENTS];
    for (int i = 0; i < block.count; i++)
        for (int a = 0; a < b.agents; a++) {
            const long own = (block.g + i) * b.agents + a, row = row_of ? row_of[own] : own;
            for (int part = 0; part < 3; part++) {
                const uint64_t given = action[3 * row + part];  // below 0: a large number
                const bool right = given <= most[part];
                seated[3 * a + part][i] = right ? given : most[part];
                legal &= right;
            }
        }
    for (int k = 0; k < 3 * b.agents; k++) store(acts + k * b.games, block, seated[k]);
    return legal;
}

// Begin the games of `ended` again, with `starts`, (H, E), the houses that burn. `final` gets their
// last states.
static void restart(const Brigade& b, const State& state, const State& final, const uint8_t* ended,
                    const uint8_t* starts, Block block) {
    for (long g = block.g; g < block.g + block.count; g++) {
        if (!ended[g]) continue;
        for (long at = g; at < b.houses * b.games; at += b.games) {
            final.houses[at] = state.houses[at];
            state.houses[at] = starts[at];
            if (state.progress) state.progress[at] = 0.0f;
        }
        for (long at = g; at < 3 * b.agents * b.games; at += b.games) {
            final.acts[at] = state.acts[at];
            state.acts[at] = 0;
        }
    }
}

// What all agents of game i of a block observe in common, as observation.py says.
static inline void encode(const Brigade& b, const Bytes* houses, const Bytes* acts, int i,
                          float* out) {
    auto house = [&](int h) { return houses[h][i]; };
    auto act = [&](int a, int part) { return acts[3 * a + part][i]; };
    if (b.scaled) {
        memset(out, 0, b.seen * sizeof(float));
        for (int h = 0; h < b.houses; h++, out += 3) out[house(h)] = 1.0f;
        for (int a = 0; a < b.agents; a++, out += b.houses + 2) {
            out[act(a, 0)] = 1.0f;
            out[b.houses] = act(a, 1);
            out[b.houses + 1] = act(a, 2);
        }
    } else {
        for (int h = 0; h < b.houses; h++) *out++ = house(h);
        for (int a = 0; a < b.agents; a++) *out++ = act(a, 2);
        for (int a = 0; a < b.agents; a++) *out++ = act(a, 0);
        for (int a = 0; a < b.agents; a++)
            for (int part = 0; part < 2; part++) *out++ = act(a, part);
    }
}

// `obs`: (rows, size), `stride` floats from one row to the next; `row_of` as above.
static void show(const Brigade& b, const State& state, const int64_t* row_of, float* obs,
                 int64_t stride, Block block) {
    float common[3 * MAX_HOUSES + MAX_AGENTS * (MAX_HOUSES + 5) + 12];
    std::fill(common + b.shared, common + b.size, 0.0f);
    Bytes houses[MAX_HOUSES], acts[3 * MAX_AGENTS];
    for (int h = 0; h < b.houses; h++) load(houses[h], state.houses + h * b.games, block);
    for (int k = 0; k < 3 * b.agents; k++) load(acts[k], state.acts + k * b.games, block);
    for (int i = 0; i < block.count; i++) {
        const long g = block.g + i;
        encode(b, houses, acts, i, common);
        const float* scenario = b.table + g * b.size;
        std::copy(scenario + b.seen, scenario + b.shared, common + b.seen);
        for (int a = 0; a < b.agents; a++) {
            const long own = g * b.agents + a;
            float* row = obs + (row_of ? row_of[own] : own) * stride;
            memcpy(row, common, b.size * sizeof(float));
            row[b.shared + a] = 1.0f;
        }
    }
}

constexpr long GAMES_PER_TASK = 512;  // a multiple of BLOCK; fewer are done before a thread wakes up
constexpr long NUMBERS_PER_TASK = 32768;

template <class Work>
static void in_blocks(long count, long least, int64_t threads, const Work& work) {
    const long size = std::max<long>(least, count / (4 * threads) / BLOCK * BLOCK);
    Pool::get().run((count + size - 1) / size, threads, [&](long task, int) {
        const long end = std::min<long>((task + 1) * size, count);
        for (long g = task * size; g < end; g += BLOCK)
            work(Block{g, (int)std::min<long>(BLOCK, end - g)});
    });
}

template <class Work>
static void in_blocks(const Brigade& b, int64_t threads, const Work& work) {
    in_blocks(b.games, GAMES_PER_TASK, threads, work);
}

extern "C" {

// `uniform`, `needed`, `ignites`: (count,).
void sweepd_brigade_evaluate(const Chances* chances, const float* uniform, uint8_t* needed,
                             uint8_t* ignites, int64_t count, int64_t threads) {
    in_blocks(count, NUMBERS_PER_TASK, threads,
              [&](Block block) { evaluate(*chances, uniform, needed, ignites, block); });
}

int64_t sweepd_brigade_seat(const Brigade* brigade, const int64_t* action, const int64_t* row_of,
                            uint8_t* acts, int64_t threads) {
    std::atomic<bool> legal{true};
    in_blocks(*brigade, threads, [&](Block block) {
        if (!seat(*brigade, action, row_of, acts, block)) legal = false;
    });
    return legal;
}

void sweepd_brigade_play(const Brigade* brigade, const Phases* phases, const State* before,
                         const State* after, const NightEvents* events, const int64_t* night,
                         float* rewards, uint8_t* terminated, int64_t threads) {
    in_blocks(*brigade, threads, [&](Block block) {
        play(*brigade, *phases, *before, *after, *events, night, rewards, terminated, block);
    });
}

void sweepd_brigade_restart(const Brigade* brigade, const State* state, const State* final,
                            const uint8_t* ended, const uint8_t* starts, int64_t threads) {
    in_blocks(*brigade, threads,
              [&](Block block) { restart(*brigade, *state, *final, ended, starts, block); });
}

void sweepd_brigade_show(const Brigade* brigade, const State* state, const int64_t* row_of,
                         float* obs, int64_t stride, int64_t threads) {
    in_blocks(*brigade, threads,
              [&](Block block) { show(*brigade, *state, row_of, obs, stride, block); });
}

}
