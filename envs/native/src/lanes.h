// Vectors of float64, one row per lane, as wide as the processor's registers.
//
// Every operation works on each lane by itself and is rounded as IEEE 754 says, so results depend
// neither on the width nor on the processor. Nothing is contracted (-ffp-contract=off): torch
// rounds products and sums separately, too. NaN and signs of 0 are treated as torch treats them.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
constexpr int WIDTH = 8;  // lanes of a vector
#elif defined(__AVX2__)
constexpr int WIDTH = 4;
#else
constexpr int WIDTH = 2;
#endif

typedef double vec __attribute__((vector_size(8 * WIDTH)));
// The same in memory, at any address.
typedef double vec_at __attribute__((vector_size(8 * WIDTH), aligned(8)));

// As many numbers of an observation.
typedef float floats __attribute__((vector_size(4 * WIDTH)));

static inline vec all(double x) { return vec{} + x; }

// The first `count` of WIDTH numbers. The other lanes are 1: harmless in every formula.
static inline vec load(const double* at, int count) {
    if (count == WIDTH) return *(const vec_at*)at;
    vec x = all(1.0);
    memcpy(&x, at, 8 * count);
    return x;
}

static inline void store(double* at, int count, vec x) {
    if (count == WIDTH)
        *(vec_at*)at = x;
    else
        memcpy(at, &x, 8 * count);
}

// Entry `at` of each row: rows[lane][at]. (In a loop, compilers insert lane by lane.)
template <class Vector, class Number>
static inline Vector lanes_of(const Number* const* rows, long at) {
#if defined(__AVX512F__)
    return Vector{rows[0][at], rows[1][at], rows[2][at], rows[3][at],
                  rows[4][at], rows[5][at], rows[6][at], rows[7][at]};
#elif defined(__AVX2__)
    return Vector{rows[0][at], rows[1][at], rows[2][at], rows[3][at]};
#else
    return Vector{rows[0][at], rows[1][at]};
#endif
}
static inline vec column(const double* const* rows, long at) { return lanes_of<vec>(rows, at); }
static inline vec column(const float* const* rows, long at) {
    return __builtin_convertvector(lanes_of<floats>(rows, at), vec);
}

// Comparisons as numbers: 1.0 where true, else 0.0. With NaN they are false.
static inline vec greater(vec x, vec y) { return x > y ? all(1.0) : all(0.0); }
static inline vec at_least(vec x, vec y) { return x >= y ? all(1.0) : all(0.0); }

// NaN if either is.
static inline vec smaller_of(vec x, vec y) {
    vec least = x < y ? x : y;  // y if either is NaN
    return x == x ? least : x;
}
static inline vec larger_of(vec x, vec y) {
    vec most = x > y ? x : y;
    return x == x ? most : x;
}
// Limits are no NaN, so these keep one in x.
static inline vec no_less(vec x, vec low) { return x < low ? low : x; }
static inline vec no_more(vec x, vec high) { return x > high ? high : x; }

static inline vec magnitude(vec x) {
    typedef int64_t bits __attribute__((vector_size(8 * WIDTH)));
    return (vec)((bits)x & INT64_MAX);
}

// `x` where the weight is 0, `y` where it is 1; and NaN where torch.lerp has one.
static inline vec mixed(vec x, vec y, vec weight) {
    return weight < 0.5 ? x + weight * (y - x) : y - (y - x) * (1.0 - weight);
}

// Round down. |x| < 2^51, or x is its own result.
static inline vec floor(vec x) {
    for (int i = 0; i < WIDTH; i++) x[i] = __builtin_floor(x[i]);
    return x;
}

// The sum of x[0 … count - 1], in the order of `asset_sum`: halves are added pairwise. Overwrites x.
static inline vec sum(vec* x, int count) {
    if (count == 1) return x[0] + 0.0;
    vec last = x[count - 1];
    int half = count / 2;
    for (int i = 0; i < half; i++) x[i] += x[half + i];
    while (half > 1) {
        int fold = half / 2;
        for (int i = 0; i < fold; i++) x[i] += x[half - fold + i];
        half -= fold;
    }
    return count % 2 ? x[0] + last : x[0];
}
