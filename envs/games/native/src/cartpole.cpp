// The functions that envs/games/native/cartpole.py calls through ctypes.

#include <algorithm>

#include "cartpole.h"
#include "pool.h"

constexpr long ROWS_PER_TASK = 4096;  // fewer are done sooner than another thread wakes up

extern "C" {

// Returns whether an action is neither 0 nor 1.
int64_t sweepd_cartpole_step(const State* state, const int64_t* action, float* obs,
                             int64_t obs_stride, uint8_t* ends, int64_t threads) {
    const State& s = *state;
    const Arguments now{action, obs, obs_stride, ends};
    const long size = std::max(ROWS_PER_TASK, s.rows / (4 * threads) / WIDTH * WIDTH);
    Pool::get().run((s.rows + size - 1) / size, threads, [&](long task, int) {
        const long end = std::min<long>((task + 1) * size, s.rows);
        for (long r = task * size; r < end; r += WIDTH)
            step(s, now, r, std::min<long>(WIDTH, end - r));
    });
    int64_t bits = 0;
    for (long r = 0; r < s.rows; r++) bits |= action[r];
    return (bits & ~(int64_t)1) != 0;
}

// See `refill`.
void sweepd_cartpole_refill(const State* state, const double* pool, int64_t rounds, int64_t* turn,
                            int64_t since) {
    for (long r = 0; r < state->rows; r++) refill(*state, r, pool, rounds, turn, since);
}

}
