// What a step reads and writes: sizes, and addresses of torch's tensors.
//
// R rows, N assets. Tensors (…, R) are asset-first: asset a of row r is at a * stride + r.

#pragma once

#include "lanes.h"

// Arrays on the stack have this size; kernels are compiled for several ones.
#if defined(KERNEL_ASSETS)
constexpr int MOST_ASSETS = KERNEL_ASSETS;
#else
constexpr int MOST_ASSETS = 128;
#endif

typedef vec Log1p(vec x);

struct State {
    int64_t rows, stride, assets, bars, features, max_lookback;
    int64_t columns;     // of an observation, the privileged one included
    int64_t minimums;    // N, or 1 if all assets have the same minimum order
    int64_t holes;       // whether the market has holes
    int64_t stops, holding_rule, decays, penalises_drawdown, penalises_state, privileged;
    int64_t shorts;      // whether any row allows them
    int64_t terminates;  // whether a bankrupt row starts again at the same bar

    // log(1 + x): the function that torch uses, because other ones differ in last bits. Null if it
    // is not known: then `growth` is without the logarithm. On GPUs it is CUDA's, as torch's.
    Log1p* log1p;

    // The market, newest bar first (`Tables`).
    const double* prices_by_bar;          // (T, 2N): opens and closes; with holes (T, 3N): tradable
    const double *next_open, *next_fill;  // (N, T); next_fill is null without holes
    const float* feature_table;           // (T, M)
    const double* increment;              // (N,), or null
    float* final_obs;                     // (R, columns)

    // Parameters (`Rules`, `Reward`): (R,) unless said.
    const double *sizing;                              // (4, R)
    const double *minimum;                             // (minimums, R)
    const double *buy_rate, *sell_rate, *stop_level, *max_holding_bars, *max_holding_fraction;
    const double *initial_cash, *inverse_held_scale, *age_scale;
    const double *short_allowed, *cover_level, *leverage, *maintenance, *borrow_rate;
    const double *bankrupt_value;
    const double *growth_weights;                      // (2, R), of b and x
    const double *floor, *inverse_length, *drawdown_penalty, *volatility_penalty;
    const double *concentration_penalty, *concentration_limit, *cash_penalty, *cash_reserve;
    const double *waiting;                             // (N, R)
    const int64_t* lookback;

    // Portfolios, and their benchmark.
    double *cash;                                      // (R,)
    double *equal_units, *units, *paid, *held, *high, *equal_worth, *worth;  // (N, R)
    double *buys_at;                                   // (N, R), or null
    double *total;                                     // (2, R): E and V
    int64_t *place, *start;
    double *peak, *drawdown;
    double *legal_steps, *largest;                     // `FaultLatch`; largest is (N, R)

    // Results of a step.
    double* growth;                                    // (2, R)
    double* record;                                    // (8, R), with shorts (10, R), or null
    double* bankrupt;                                  // (R,), or null without shorts
};
