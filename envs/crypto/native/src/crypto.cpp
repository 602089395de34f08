// The functions that envs/crypto/native/step.py calls through ctypes. A step is
//
//     trade     orders, portfolios, rewards and observations of all rows
//     restart   of rows whose episode ended
//
// Where torch's log1p cannot be called from here (`State::log1p`), it is called between `trade`,
// which then leaves rewards out, and `reward`. This does not work with shorts: a bankrupt row starts
// again within `trade`.

#include <algorithm>

#include "pool.h"
#include "prefetch.h"
#include "trade.h"

constexpr long ROWS_PER_TASK = 64;  // at least, and a multiple of WIDTH

// Trade in rows first … end - 1. `action`: (R, N).
template <bool SHORTS, class Number>
static void trade_all(const State& s, long first, long end, const Number* action, float* obs,
                      int64_t stride, float* rewards) {
    const int N = s.assets;
    Orders orders(N);
    for (long r = first; r < end; r += WIDTH) {
        const long later = r + AHEAD, count = std::min<long>(WIDTH, end - r);
        if (later < end) prefetch(s, later, std::min<long>(WIDTH, end - later));
        const Number* own[WIDTH];
        for (int i = 0; i < WIDTH; i++) own[i] = action + (r + (i < count ? i : 0)) * N;
        for (int a = 0; a < N; a++) orders.wish[a] = column(own, a);
        trade<SHORTS>(s, orders, r, count, obs, stride, rewards);
        for (long row = r; row < r + count; row++) observe_market(s, row, obs + row * stride, 0, 1);
    }
}

extern "C" {

// `action`: (R, N), float32 or, if `wide`, float64. `obs`: (R, columns). `rewards`: (R,).
void sweepd_crypto_trade(const State* state, const void* action, int64_t wide, float* obs,
                         int64_t stride, float* rewards, int64_t threads) {
    const State& s = *state;
    // A few tasks per thread: one that is interrupted leaves its share to the others.
    long size = s.rows / (4 * threads) / ROWS_PER_TASK * ROWS_PER_TASK;
    size = std::max(size, ROWS_PER_TASK);
    Pool::get().run((s.rows + size - 1) / size, threads, [&](long task, int) {
        const long first = task * size, end = std::min<long>(first + size, s.rows);
        auto of = [&](auto* actions) {
            if (s.shorts)
                trade_all<true>(s, first, end, actions, obs, stride, rewards);
            else
                trade_all<false>(s, first, end, actions, obs, stride, rewards);
        };
        wide ? of((const double*)action) : of((const float*)action);
    });
}

// `rewards`: (R,). It is over sooner than other threads wake up.
void sweepd_crypto_reward(const State* state, float* rewards) {
    StandardRounding standard;
    for (long r = 0; r < state->rows; r += WIDTH)
        reward(*state, r, std::min<long>(WIDTH, state->rows - r), rewards + r);
}

// Start new episodes in the rows of `ended`. `bars`: (R,), the first bar of each row's next episode.
void sweepd_crypto_restart(const State* state, const uint8_t* ended, const int64_t* bars,
                           float* obs, int64_t stride) {
    StandardRounding standard;
    const State& s = *state;
    for (long r = 0; r < s.rows; r++) restart(s, r, ended[r], bars[r], obs + r * stride);
}

}
