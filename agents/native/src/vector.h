// Vectors of float32, as wide as the processor's registers, and the functions that losses need.
//
// Every function here computes each lane by itself, with operations that IEEE 754 defines to the
// last bit. So results do not depend on the width, nor on the processor, as long as the compiler
// contracts and reorders nothing (-ffp-contract=off, no -ffast-math).

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
constexpr int WIDTH = 16;  // lanes of a vector
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
constexpr int WIDTH = 8;
#elif defined(__aarch64__)
#include <arm_neon.h>
constexpr int WIDTH = 4;
#else
#error "needs AVX2 with FMA, AVX-512 or NEON: without a fused multiply-add, bits would differ"
#endif

typedef float vec __attribute__((vector_size(4 * WIDTH)));
typedef int32_t ivec __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t uvec __attribute__((vector_size(4 * WIDTH)));
// The same in memory: at any address, and whatever the type of what is stored there.
typedef float vec_at __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t ivec_at __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

static inline vec load(const float* at) { return *(const vec_at*)at; }
static inline void store(float* at, vec x) { *(vec_at*)at = x; }
static inline vec all(float x) {  // a load, where x is in memory; vec{} + x would be an addition
#if defined(__AVX512F__)
    return (vec)_mm512_set1_ps(x);
#elif defined(__AVX2__)
    return (vec)_mm256_set1_ps(x);
#else
    return (vec)vdupq_n_f32(x);
#endif
}

// Fours of numbers, `apart` floats from each other.
static inline vec load_fours(const float* at, long apart) {
#if defined(__AVX512F__)
    __m512 x = _mm512_castps128_ps512(_mm_loadu_ps(at));
    x = _mm512_insertf32x4(x, _mm_loadu_ps(at + apart), 1);
    x = _mm512_insertf32x4(x, _mm_loadu_ps(at + 2 * apart), 2);
    return (vec)_mm512_insertf32x4(x, _mm_loadu_ps(at + 3 * apart), 3);
#elif defined(__AVX2__)
    __m256 x = _mm256_castps128_ps256(_mm_loadu_ps(at));
    return (vec)_mm256_insertf128_ps(x, _mm_loadu_ps(at + apart), 1);
#else
    return load(at);
#endif
}

// Of each four numbers of a and b: a0 b0 a1 b1, and a2 b2 a3 b3. (Without a mask, GCC's header warns.)
static inline vec first_pairs(vec a, vec b) {
#if defined(__AVX512F__)
    return (vec)_mm512_maskz_unpacklo_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vec)_mm256_unpacklo_ps((__m256)a, (__m256)b);
#else
    return (vec)vzip1q_f32((float32x4_t)a, (float32x4_t)b);
#endif
}
static inline vec last_pairs(vec a, vec b) {
#if defined(__AVX512F__)
    return (vec)_mm512_maskz_unpackhi_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vec)_mm256_unpackhi_ps((__m256)a, (__m256)b);
#else
    return (vec)vzip2q_f32((float32x4_t)a, (float32x4_t)b);
#endif
}

// WIDTH bytes as whole numbers. (Compilers convert vectors of bytes one by one.)
static inline uvec load_bytes(const uint8_t* at) {
#if defined(__AVX512F__)
    return (uvec)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)at));
#elif defined(__AVX2__)
    return (uvec)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)at));
#else
    uint32_t four;
    memcpy(&four, at, sizeof four);
    return (uvec)vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
#endif
}

// a b + c, rounded once.
static inline vec fma(vec a, vec b, vec c) {
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#endif
}

static inline vec root(vec x) {
#if defined(__AVX512F__)
    return (vec)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
    return (vec)_mm256_sqrt_ps((__m256)x);
#else
    return (vec)vsqrtq_f32((float32x4_t)x);
#endif
}

// `x` where the mask is set, else `y`. A mask is what comparisons give: lanes of ones or zeros.
static inline vec choose(ivec mask, vec x, vec y) {
    return (vec)(((ivec)x & mask) | ((ivec)y & ~mask));
}
static inline vec magnitude(vec x) { return (vec)((ivec)x & 0x7fffffff); }
// Comparisons with NaN are false, so these return NaN for it: no NaN is lost.
static inline vec at_least(vec x, vec low) { return x < low ? low : x; }
static inline vec at_most(vec x, vec high) { return x > high ? high : x; }

// x 2^n for -126 <= n <= 127.
static inline vec scaled(vec x, ivec n) { return x * (vec)((n + 127) << 23); }

// e^x, within 1 ulp; 0 below -87.3, where float32 has no more normal numbers.
//
// x = n ln 2 + r with |r| <= ln 2 / 2, and e^x = 2^n e^r. (Cody and Waite, 1980.) ln 2 is split in
// two, so that n times its first part is exact.
static inline vec exponential(vec x) {
    const vec shift = all(12582912.0f);  // 1.5 2^23: adding it rounds to a whole number
    // Beyond these, 2^n leaves the range of n; the results there are set at the end.
    vec inside = at_most(at_least(x, all(-87.3f)), all(88.8f));
    vec n = fma(inside, all(1.44269504f), shift) - shift;
    vec r = fma(n, all(-0.693359375f), inside);
    r = fma(n, all(2.12194440e-4f), r);
    // Taylor's series to r^7 / 7!, whose rest is below 2^-27.
    vec p = all(1.0f / 5040);
    p = fma(p, r, all(1.0f / 720));
    p = fma(p, r, all(1.0f / 120));
    p = fma(p, r, all(1.0f / 24));
    p = fma(p, r, all(1.0f / 6));
    p = fma(p, r, all(0.5f));
    p = fma(p, r, all(1.0f));
    p = fma(p, r, all(1.0f));
    // NaN must not reach the conversion, whose result for it differs between processors.
    ivec whole = __builtin_convertvector(choose(n == n, n, all(0.0f)), ivec);
    ivec half = whole >> 1;  // 2^128 is no float, and 2^64 2^64 e^r is one
    vec y = scaled(scaled(p, half), whole - half);
    y = choose(x > 88.72283f, all(__builtin_inff()), y);
    y = choose(x < -87.3f, all(0.0f), y);
    return choose(x == x, y, x);
}

// log x of normal numbers, within 1 ulp.
//
// x = 2^n m with sqrt(1/2) <= m < sqrt(2), and log x = n ln 2 + log m, with f = m - 1 and
// s = f / (2 + f): log m = 2 artanh s = 2 (s + s^3/3 + s^5/5 + …) = f - s (f - R), R = 2 s^2/3 + ….
static inline vec logarithm(vec x) {
    uvec bits = (uvec)x;  // unsigned: those of negative numbers overflow, whose log is not used
    // sqrt(1/2) = 0x3f3504f3: the exponent counts from there.
    ivec n = (ivec)(bits - 0x3f3504f3u) >> 23;
    vec f = (vec)(bits - ((uvec)n << 23)) - 1.0f;
    vec s = f / (f + 2.0f), s2 = s * s;
    vec r = all(2.0f / 11);
    r = fma(r, s2, all(2.0f / 9));
    r = fma(r, s2, all(2.0f / 7));
    r = fma(r, s2, all(2.0f / 5));
    r = fma(r, s2, all(2.0f / 3));
    r = r * s2;
    vec e = __builtin_convertvector(n, vec);
    vec low = fma(e, all(-2.12194440e-4f), -(s * (f - r)));
    vec y = fma(e, all(0.693359375f), f + low);
    y = choose(x == __builtin_inff(), x, y);
    return choose(x == x, y, x);
}

// tanh x, within 1.5 ulp.
//
// Below 0.625, Lambert's continued fraction x / (1 + s / (3 + s / (5 + s / (7 + s / 9)))), s = x^2,
// whose rest is below 2^-29, as x - x s (315 + 14 s) / (945 + 420 s + 15 s^2). Above,
// 1 - 2 / (e^2x + 1), which would lose digits near 0.
static inline vec hyperbolic_tangent(vec x) {
    vec size = magnitude(x), s = x * x;
    vec bottom = fma(fma(s, all(15.0f), all(420.0f)), s, all(945.0f));
    vec small = fma(-x, s * fma(s, all(14.0f), all(315.0f)) / bottom, x);
    vec large = 1.0f - 2.0f / (exponential(size + size) + 1.0f);
    large = (vec)((ivec)large | ((ivec)x & (int32_t)0x80000000));
    return choose(size < 0.625f, small, large);
}

constexpr float HALF_LOG_2PI = 0.918938533204672742f;

// Σ_j (log_std_j + log(2π)/2) of n independent Gaussians: what a log-probability is less.
static inline float log_scale(const float* log_std, long n) {
    float sum = 0;
    for (long j = 0; j < n; j++) sum += log_std[j];
    return sum + n * HALF_LOG_2PI;
}

static inline vec sigmoid(vec x) { return 1.0f / (exponential(-x) + 1.0f); }

// Sums over rows are kept in 16 lanes, row r in lane r % 16, whatever the width of a vector.
constexpr int LANES = 16;

struct Sum {
    alignas(64) float lane[LANES] = {};
    // Add the numbers of rows r … r + WIDTH - 1, r a multiple of WIDTH.
    void add(long r, vec x) { store(lane + r % LANES, load(lane + r % LANES) + x); }
    void add(const Sum& more) {
        for (int i = 0; i < LANES; i++) lane[i] += more.lane[i];
    }
    float total() const {
        float part[LANES];
        memcpy(part, lane, sizeof part);
        for (int half = LANES / 2; half; half /= 2)
            for (int i = 0; i < half; i++) part[i] += part[i + half];
        return part[0];
    }
};
