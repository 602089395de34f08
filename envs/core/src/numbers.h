// Numbers from random words, as in sweepd.envs.core.philox. Every operation is exact or rounded once.

#pragma once

#include "lanes.h"

typedef unsigned int word;

constexpr int BLOCKS = 16;         // of a group
constexpr int WORDS = 4 * BLOCKS;  // of a group
constexpr int INDEX_BITS = 25;     // the lower bits of a key, which give way to its index

// The kinds of numbers, from two words of which those of 32 bits use one.
struct Uniform {
    typedef float Number;
    DEVICE Number operator()(word only, word) const { return (float)(only >> 8) * 0x1p-24f; }
};

struct UniformDouble {
    typedef double Number;
    DEVICE Number operator()(word high, word low) const {
        return (double)((int64_t)(high >> 5) << 26 | low >> 6) * 0x1p-53;
    }
};

struct Key {
    typedef int64_t Number;
    DEVICE Number operator()(word high, word low) const { return (int64_t)high << 31 | low >> 1; }
};

struct Normal {
    typedef float Number;
    const float* table;  // four coefficients of a polynomial for each interval
    DEVICE Number operator()(word only, word) const {
        const int sign = (int)only >> 31;
        const int bits = bits_of((float)((int)only ^ sign) + 0.5f);
        const float* of = table + 4 * ((bits >> 20) - (126 << 3));
        const float distance = (float)((bits & 0xfffff) - 0x80000) * 0x1p-19f;
        const float found = of[0] + distance * (of[1] + distance * (of[2] + distance * of[3]));
        return found * (float)(sign | 1);
    }
    DEVICE static int bits_of(float x) {
        int bits;
        memcpy(&bits, &x, 4);
        return bits;
    }
};
