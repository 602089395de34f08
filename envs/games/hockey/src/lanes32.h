// Vectors of float32, one game per lane, as wide as the processor's registers.
//
// As in lanes.h, every operation works on each lane by itself and is rounded as IEEE 754 says, and
// NaN and signs of 0 are treated as torch treats them.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t mask __attribute__((vector_size(4 * LANES)));  // -1 where true, else 0

static inline vec all(float x) { return x - vec{}; }  // -0 stays -0

static inline vec where(mask m, vec x, vec y) { return m ? x : y; }
static inline vec where(mask m, float x, vec y) { return m ? all(x) : y; }
static inline vec where(mask m, vec x, float y) { return m ? x : all(y); }
static inline vec where(mask m, float x, float y) { return m ? all(x) : all(y); }

static inline bool any(mask m) {
    int32_t bits = 0;
    for (int i = 0; i < LANES; i++) bits |= m[i];
    return bits;
}

// Games g … g + count - 1: as many as there are lanes, or the last ones.
struct Whole {
    long g;
    static constexpr int count = LANES;
};
struct Part {
    long g;
    int count;
};

// A group's numbers of any type. The other lanes are 1: harmless in every formula.
template <class Group, class Number>
static inline vec load(const Number* at, Group group) {
    float x[LANES];
    if (group.count < LANES)
        for (float& own : x) own = 1.0f;
    for (int i = 0; i < group.count; i++) x[i] = (float)at[group.g + i];
    vec loaded;
    memcpy(&loaded, x, sizeof x);
    return loaded;
}

template <class Group, class Number>
static inline void store(Number* at, Group group, vec stored) {
    float x[LANES];
    memcpy(x, &stored, sizeof x);
    for (int i = 0; i < group.count; i++) at[group.g + i] = (Number)x[i];
}

static inline vec magnitude(vec x) { return (vec)((mask)x & INT32_MAX); }
static inline vec sign(vec x) { return where(x > 0.0f, 1.0f, 0.0f) - where(x < 0.0f, 1.0f, 0.0f); }

// Limits are no NaN, so these keep one in x.
static inline vec no_less(vec x, float low) { return where(x < low, low, x); }
static inline vec no_more(vec x, float high) { return where(x > high, high, x); }
// NaN if either is.
static inline vec smaller_of(vec x, vec y) { return where(x == x, where(x < y, x, y), x); }
static inline vec larger_of(vec x, vec y) { return where(x == x, where(x > y, x, y), x); }

// Square roots and lengths are computed in float64, by halves, and rounded twice.
typedef float half __attribute__((vector_size(2 * LANES)));
typedef double wide __attribute__((vector_size(4 * LANES)));

struct Wide {
    wide low, high;
};

static inline Wide widened(vec x) {
    half parts[2];
    memcpy(parts, &x, sizeof x);
    return {__builtin_convertvector(parts[0], wide), __builtin_convertvector(parts[1], wide)};
}

static inline vec narrowed(Wide x) {
    const half parts[2] = {__builtin_convertvector(x.low, half),
                           __builtin_convertvector(x.high, half)};
    vec narrow;
    memcpy(&narrow, parts, sizeof narrow);
    return narrow;
}

static inline wide root(wide x) {
#if defined(__AVX512F__)
    return (wide)_mm512_maskz_sqrt_pd(-1, (__m512d)x);
#elif defined(__AVX2__)
    return (wide)_mm256_sqrt_pd((__m256d)x);
#else
    for (int i = 0; i < LANES / 2; i++) x[i] = __builtin_sqrt(x[i]);
    return x;
#endif
}

static inline vec root(vec x) {
    const Wide own = widened(x);
    return narrowed({root(own.low), root(own.high)});
}

static inline vec length(vec x, vec y) {
    const Wide a = widened(x), b = widened(y);
    return narrowed({root(a.low * a.low + b.low * b.low), root(a.high * a.high + b.high * b.high)});
}
