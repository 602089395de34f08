// A step of a group of rows: orders, portfolios, rewards, and what is seen of the portfolios.

#pragma once

#include "observe.h"
#include "reward.h"

// Trade in rows r … r + count - 1, count <= WIDTH, by the wishes in `orders`. `obs`: (R, columns),
// `stride` floats from one row to the next; `observe_market` writes the other columns.
template <bool SHORTS>
DEVICE static inline void trade(const State& s, Orders& orders, long r, int count, float* obs,
                                int64_t stride, float* rewards) {
    const Group group = next_bar(s, r, count);
    plan<SHORTS>(s, group, orders);
    fill<SHORTS>(s, group, orders);
    if (knows_logarithm(s)) reward(s, r, count, rewards + r);
    if (SHORTS && s.terminates)
        for (long row = r; row < r + count; row++) {
            if (!(s.bankrupt[row] > 0)) continue;
            observe(s, row, s.final_obs + row * s.columns);
            begin(s, row, s.place[row]);
        }
    observe_portfolio(s, r, count, obs + r * stride, stride);
}
