// The words of Philox 4x32-10, in the order of sweepd.envs.core.philox.

#pragma once

#include <algorithm>

#include "numbers.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef uint64_t words_at __attribute__((vector_size(8 * WIDTH)));
typedef uint32_t halves_at __attribute__((vector_size(4 * WIDTH)));

// The product of each lane's lower half and y.
static inline words_at product(words_at x, uint32_t y) {
#if defined(__AVX512F__)
    return (words_at)_mm512_mul_epu32((__m512i)x, _mm512_set1_epi64(y));
#elif defined(__AVX2__)
    return (words_at)_mm256_mul_epu32((__m256i)x, _mm256_set1_epi64x(y));
#else
    return (x & UINT32_MAX) * y;
#endif
}

// A member's stream.
struct Stream {
    int64_t key, next, seeded;  // the next group, and whether the member draws at all
};

// The 64 words of a group: word k of all its blocks lie together.
struct Group {
    alignas(64) uint32_t words[4][BLOCKS];

    Group(uint64_t key, uint64_t group) {
        for (int at = 0; at < BLOCKS; at += WIDTH) {
            words_at block = {};
            for (int i = 0; i < WIDTH; i++) block[i] = group * BLOCKS + at + i;
            // One word per lane. Only its lower half counts.
            words_at word[4] = {block, block >> 32, {}, {}};
            uint32_t first = (uint32_t)key, second = (uint32_t)(key >> 32);
            for (int round = 0; round < 10; round++) {
                const words_at left = product(word[0], 0xD2511F53);
                const words_at right = product(word[2], 0xCD9E8D57);
                word[0] = right >> 32 ^ word[1] ^ first;
                word[1] = right;
                word[2] = left >> 32 ^ word[3] ^ second;
                word[3] = left;
                first += 0x9E3779B9;
                second += 0xBB67AE85;
            }
            for (int k = 0; k < 4; k++) {
                const auto halves = __builtin_convertvector(word[k], halves_at);
                memcpy(words[k] + at, &halves, sizeof halves);
            }
        }
    }
};

// Write numbers start … start + count - 1 of a draw, whose first group is the stream's next one.
template <class Kind>
void fill(const Kind& kind, const Stream& stream, long start, long count,
          typename Kind::Number* out) {
    constexpr int EACH = 4 * WORDS / sizeof(typename Kind::Number);  // numbers of a group
    for (long end = start + count; start < end;) {
        const long group = start / EACH, from = start % EACH;
        const int used = std::min<long>(end - start, EACH - from);
        const Group drawn((uint64_t)stream.key, (uint64_t)stream.next + group);
        const uint32_t* words = drawn.words[0] + from;
        for (int i = 0; i < used; i++) out[i] = kind(words[i], words[i + WORDS - EACH]);
        start += used;
        out += used;
    }
}
