// The step on a GPU, from the same text as on CPUs (crypto.cpp); one thread per row.
//
// `crypto_market` follows `crypto_trade`: its threads write numbers that are side by side.

#define ON_GPU

#include "trade.h"

// `action`: (R, N), float32 or, if `wide`, float64. `obs`: (R, columns). `rewards`: (R,).
template <bool SHORTS>
__global__ void crypto_trade(const State* state, const void* action, float* obs, float* rewards,
                             int stride, int wide) {
    const State& s = *state;
    const long r = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= s.rows) return;
    Orders orders(s.assets);
    for (int a = 0; a < s.assets; a++) {
        const long at = r * s.assets + a;
        orders.wish[a] = wide ? ((const double*)action)[at] : ((const float*)action)[at];
    }
    trade<SHORTS>(s, orders, r, 1, obs, stride, rewards);
}

// Observe the market: one block per row.
extern "C" __global__ void crypto_market(const State* state, float* obs, int stride) {
    const long r = blockIdx.x;
    observe_market(*state, r, obs + r * stride, threadIdx.x, blockDim.x);
}

// Start new episodes in the rows of `ended`, which is copied to `truncated`. `pool`: (rounds, R),
// the first bars of episodes drawn ahead; `turn`: (R,), the next one of each row.
extern "C" __global__ void crypto_restart(const State* state, const bool* ended,
                                          const int64_t* pool, int64_t* turn, bool* truncated,
                                          float* obs, int rounds, int stride) {
    const State& s = *state;
    const long r = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= s.rows) return;
    truncated[r] = ended[r];
    const int64_t round = turn[r] < rounds ? turn[r] : rounds - 1;
    turn[r] += ended[r];
    restart(s, r, ended[r], pool[round * s.rows + r], obs + r * stride);
}
