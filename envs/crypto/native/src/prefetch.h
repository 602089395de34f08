// Fetches what a later group of rows needs into the cache while earlier ones are computed.
//
// A group reads about eighty places in memory, too many streams for the processor to foresee, and
// each row's prices and features are somewhere else in their tables.

#pragma once

#include "state.h"

constexpr long AHEAD = 8;  // rows between the one that is computed and the one that is fetched

// Rows r … r + count - 1.
static inline void prefetch(const State& s, long r, int count) {
    for (int a = 0; a < s.assets; a++) {
        const long at = a * s.stride + r;
        for (const double* read : {s.equal_units}) __builtin_prefetch(read + at);
        for (double* written : {s.units, s.paid, s.held, s.worth, s.equal_worth, s.largest})
            __builtin_prefetch(written + at, 1);
    }
    const long lags = 4 * s.max_lookback * s.features, wide = (s.holes ? 3 : 2) * s.assets;
    for (int i = 0; i < count; i++) {
        const int64_t place = s.place[r + i] - 1;
        const char* prices = (const char*)(s.prices_by_bar + place * wide);
        for (long byte = 0; byte < 8 * wide; byte += 64) __builtin_prefetch(prices + byte);
        const char* features = (const char*)(s.feature_table + place * s.features);
        for (long byte = 0; byte < lags; byte += 64) __builtin_prefetch(features + byte);
    }
}
