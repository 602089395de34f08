// Vectors of float64, one row per lane: as wide as the processor's registers, or one lane on a GPU,
// where a thread has one row.
//
// Every operation works on each lane by itself and is rounded as IEEE 754 says, so results depend
// neither on the width nor on the processor. Nothing is contracted (-ffp-contract=off, on GPUs
// --fmad=false): torch rounds products and sums separately, too. NaN and signs of 0 are treated as
// torch treats them.

#pragma once

// Functions say DEVICE if GPUs run them. A source of kernels defines ON_GPU.
#if defined(ON_GPU)
#define DEVICE __device__
#else
#define DEVICE
#endif

#if defined(__CUDACC_RTC__) || defined(__HIPCC_RTC__)  // compilers without headers
typedef long long int64_t;
typedef unsigned char uint8_t;
#else
#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif
#endif

#if defined(ON_GPU)
constexpr int WIDTH = 1;  // lanes of a vector
#elif defined(__AVX512F__)
constexpr int WIDTH = 8;
#elif defined(__AVX2__)
constexpr int WIDTH = 4;
#else
constexpr int WIDTH = 2;
#endif

#if defined(ON_GPU)
template <class Number> struct Lane {
    Number x;
    Lane() = default;
    DEVICE Lane(Number x) : x(x) {}
    DEVICE operator Number&() { return x; }
    DEVICE operator const Number&() const { return x; }
    DEVICE Number& operator[](int) { return x; }
};
typedef Lane<double> vec;
typedef Lane<float> floats;  // as many numbers of an observation

DEVICE static inline floats rounded(vec x) { return (float)x.x; }
DEVICE static inline vec load(const double* at, int) { return *at; }
DEVICE static inline void store(double* at, int, vec x) { *at = x; }
template <class Number> DEVICE static inline vec column(const Number* const* rows, long at) {
    return (double)rows[0][at];
}
DEVICE static inline vec magnitude(vec x) { return fabs(x.x); }
#else
typedef double vec __attribute__((vector_size(8 * WIDTH)));
// The same in memory, at any address.
typedef double vec_at __attribute__((vector_size(8 * WIDTH), aligned(8)));

// As many numbers of an observation.
typedef float floats __attribute__((vector_size(4 * WIDTH)));

static inline floats rounded(vec x) { return __builtin_convertvector(x, floats); }

// The first `count` of WIDTH numbers. The other lanes are 1: harmless in every formula.
static inline vec load(const double* at, int count) {
    if (count == WIDTH) return *(const vec_at*)at;
    vec x = vec{} + 1.0;
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

static inline vec magnitude(vec x) {
    typedef int64_t bits __attribute__((vector_size(8 * WIDTH)));
    return (vec)((bits)x & INT64_MAX);
}

// Round down. |x| < 2^51, or x is its own result.
static inline vec floor(vec x) {
    for (int i = 0; i < WIDTH; i++) x[i] = __builtin_floor(x[i]);
    return x;
}
#endif

DEVICE static inline vec all(double x) { return vec{} + x; }

// Comparisons as numbers: 1.0 where true, else 0.0. With NaN they are false.
DEVICE static inline vec greater(vec x, vec y) { return x > y ? all(1.0) : all(0.0); }
DEVICE static inline vec at_least(vec x, vec y) { return x >= y ? all(1.0) : all(0.0); }

// NaN if either is.
DEVICE static inline vec smaller_of(vec x, vec y) {
    vec least = x < y ? x : y;  // y if either is NaN
    return x == x ? least : x;
}
DEVICE static inline vec larger_of(vec x, vec y) {
    vec most = x > y ? x : y;
    return x == x ? most : x;
}
// Limits are no NaN, so these keep one in x.
DEVICE static inline vec no_less(vec x, vec low) { return x < low ? low : x; }
DEVICE static inline vec no_more(vec x, vec high) { return x > high ? high : x; }

// `x` where the weight is 0, `y` where it is 1; and NaN where torch.lerp has one.
DEVICE static inline vec mixed(vec x, vec y, vec weight) {
    return weight < 0.5 ? x + weight * (y - x) : y - (y - x) * (1.0 - weight);
}

// The sum of x[0 … count - 1], in the order of `asset_sum`: halves are added pairwise. Overwrites x.
DEVICE static inline vec sum(vec* x, int count) {
    if (count == 1) return x[0] + 0.0;
    vec last = x[count - 1];
    int half = count / 2;
    for (int i = 0; i < half; i++) x[i] += x[half + i];
    while (half > 1) {
        int fold = half / 2;
        for (int i = 0; i < fold; i++) x[i] += x[half - fold + i];
        half -= fold;
    }
    if (count % 2) x[0] += last;
    return x[0];
}
