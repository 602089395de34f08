// Observations (`CryptoEnv.observe`), and new episodes (`CryptoEnv._begin`).

#pragma once

#include <algorithm>

#include "orders.h"

// The observation of rows r … r + count - 1, count <= WIDTH. `out`: of row r; `stride` floats from
// one row to the next.
//
//     cash / V, worth / V, (worth - paid) / |paid|, min(1, held / held_scale), lagged features, age
static inline void observe(const State& s, long r, int count, float* out, long stride) {
    const long R = s.stride;
    const int N = s.assets, portfolio = 1 + 3 * N;
    // Column-first as they are computed; then turned, because an observation is contiguous.
    floats columns[1 + 3 * MOST_ASSETS];
    auto set = [&](int c, vec x) { columns[c] = __builtin_convertvector(x, floats); };
    vec V = load(s.total + R + r, count), scale = load(s.inverse_held_scale + r, count);
    set(0, load(s.cash + r, count) / V);
    for (int a = 0; a < N; a++) {
        const long at = a * R + r;
        vec worth = load(s.worth + at, count), paid = load(s.paid + at, count);
        set(1 + a, worth / V);
        set(1 + N + a, (worth - paid) / no_less(magnitude(paid), all(TINY)));
        set(1 + 2 * N + a, no_more(load(s.held + at, count) * scale, all(1.0)));
    }
    for (int i = 0; i < count; i++) {
        float* row = out + i * stride;
        for (int c = 0; c < portfolio; c++) row[c] = columns[c][i];
        const long seen = s.lookback[r + i] * s.features, most = s.max_lookback * s.features;
        // Lags of a bar are contiguous, because the newest bar comes first.
        memcpy(row + portfolio, s.feature_table + s.place[r + i] * s.features, 4 * seen);
        std::fill(row + portfolio + seen, row + portfolio + most, 0.0f);
        if (s.privileged)
            row[portfolio + most] =
                (float)((double)(s.start[r + i] - s.place[r + i]) * s.age_scale[r + i]);
    }
}

// Start a new episode in row r with its last closed bar at this place: flat, with initial cash.
static inline void begin(const State& s, long r, int64_t place) {
    const long R = s.stride;
    const double cash = s.initial_cash[r];
    s.place[r] = s.start[r] = place;
    s.cash[r] = s.total[r] = s.total[R + r] = s.peak[r] = cash;
    s.drawdown[r] = 0.0;
    // The benchmark buys at the open of the next bar that is not a hole.
    const int64_t next = std::max<int64_t>(place - 1, 0);
    const double invested = cash / s.assets * s.buy_rate[r];
    for (int a = 0; a < s.assets; a++) {
        const long at = a * R + r;
        for (double* state : {s.units, s.paid, s.held, s.high, s.equal_worth, s.worth})
            state[at] = 0.0;
        s.equal_units[at] = invested / s.next_open[a * s.bars + next];
        if (s.buys_at) s.buys_at[at] = s.next_fill[a * s.bars + next];
    }
}
