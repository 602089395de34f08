// Observations (`CryptoEnv.observe`), and new episodes (`CryptoEnv._begin`).

#pragma once

#include "orders.h"

// The portfolio's columns of rows r … r + count - 1, count <= WIDTH. `out`: the observation of row
// r; `stride` floats from one row to the next.
//
//     cash / V, worth / V, (worth - paid) / |paid|, min(1, held / held_scale), lagged features, age
DEVICE static inline void observe_portfolio(const State& s, long r, int count, float* out,
                                            long stride) {
    const long R = s.stride;
    const int N = s.assets, portfolio = 1 + 3 * N;
    // Column-first as they are computed; then turned, because an observation is contiguous.
    floats columns[1 + 3 * MOST_ASSETS];
    vec V = load(s.total + R + r, count), scale = load(s.inverse_held_scale + r, count);
    columns[0] = rounded(load(s.cash + r, count) / V);
    for (int a = 0; a < N; a++) {
        const long at = a * R + r;
        vec worth = load(s.worth + at, count), paid = load(s.paid + at, count);
        columns[1 + a] = rounded(worth / V);
        columns[1 + N + a] = rounded((worth - paid) / no_less(magnitude(paid), all(TINY)));
        columns[1 + 2 * N + a] = rounded(no_more(load(s.held + at, count) * scale, all(1.0)));
    }
    for (int i = 0; i < count; i++) {
        float* row = out + i * stride;
        for (int c = 0; c < portfolio; c++) row[c] = columns[c][i];
    }
}

// The other columns of row r: `first`, first + step, …
DEVICE static inline void observe_market(const State& s, long r, float* out, long first,
                                         long step) {
    const long seen = s.lookback[r] * s.features, most = s.max_lookback * s.features;
    float* row = out + 1 + 3 * s.assets;
    // Lags of a bar are contiguous, because the newest bar comes first.
    const float* lags = s.feature_table + s.place[r] * s.features;
    for (long c = first; c < most; c += step) row[c] = c < seen ? lags[c] : 0.0f;
    if (s.privileged && first == 0)
        row[most] = (float)((double)(s.start[r] - s.place[r]) * s.age_scale[r]);
}

// The observation of row r.
DEVICE static inline void observe(const State& s, long r, float* out) {
    observe_portfolio(s, r, 1, out, 0);
    observe_market(s, r, out, 0, 1);
}

// Start a new episode in row r with its last closed bar at this place: flat, with initial cash.
DEVICE static inline void begin(const State& s, long r, int64_t place) {
    const long R = s.stride;
    const double cash = s.initial_cash[r];
    s.place[r] = s.start[r] = place;
    s.cash[r] = s.total[r] = s.total[R + r] = s.peak[r] = cash;
    s.drawdown[r] = 0.0;
    // The benchmark buys at the open of the next bar that is not a hole.
    const int64_t next = place > 0 ? place - 1 : 0;
    const double invested = cash / s.assets * s.buy_rate[r];
    double* const flat[] = {s.units, s.paid, s.held, s.high, s.equal_worth, s.worth};
    for (int a = 0; a < s.assets; a++) {
        const long at = a * R + r;
        for (double* state : flat) state[at] = 0.0;
        s.equal_units[at] = invested / s.next_open[a * s.bars + next];
        if (s.buys_at) s.buys_at[at] = s.next_fill[a * s.bars + next];
    }
}

// Start the next episode in row r, whose first bar is `bar`, if the row has ended. Its observation
// in `row` goes to `final_obs` and is replaced by the first one.
DEVICE static inline void restart(const State& s, long r, bool ended, int64_t bar, float* row) {
    if (!ended) return;
    const bool restarted = s.terminates && s.bankrupt[r] > 0;  // `trade` has kept its last one
    float* last = s.final_obs + r * s.columns;
    for (long c = 0; c < s.columns && !restarted; c++) last[c] = row[c];
    begin(s, r, s.bars - 1 - bar);
    observe(s, r, row);
}
