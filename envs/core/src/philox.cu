// Random numbers on GPUs, one thread per block of four words: to the bit those of philox.h.
//
// The grid's y is the member. streams: (members, 3), key, next group and whether the member draws;
// others get zeros.

#define ON_GPU
#include "numbers.h"

// The words of a block of a member's draw; false if the member does not draw.
static __device__ bool block_of(const int64_t* streams, int64_t at, word* of) {
    const int64_t* stream = streams + 3 * blockIdx.y;
    const int64_t block = stream[1] * BLOCKS + at;
    word first = (word)stream[0], second = (word)(stream[0] >> 32);
    of[0] = (word)block;
    of[1] = (word)(block >> 32);
    of[2] = of[3] = 0;
    for (int round = 0; round < 10; round++) {
        const word left = __umulhi(0xD2511F53, of[0]), right = __umulhi(0xCD9E8D57, of[2]);
        const word left_low = 0xD2511F53 * of[0], right_low = 0xCD9E8D57 * of[2];
        of[0] = right ^ of[1] ^ first;
        of[1] = right_low;
        of[2] = left ^ of[3] ^ second;
        of[3] = left_low;
        first += 0x9E3779B9;
        second += 0xBB67AE85;
    }
    return stream[2];
}

// Write a block's numbers into (steps, members, columns), which has `count` of each member.
template <class Kind>
static __device__ void draw(const Kind& kind, const int64_t* streams, typename Kind::Number* out,
                            int count, int members, int columns) {
    constexpr int EACH = 4 * WORDS / sizeof(typename Kind::Number);  // numbers of a group
    const int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    word of[4];
    const bool draws = block_of(streams, at, of);
    for (int k = 0; k < EACH / BLOCKS; k++) {
        const int64_t index = at / BLOCKS * EACH + k * BLOCKS + at % BLOCKS;
        if (index >= count) return;
        const int64_t step = index / columns;
        const int64_t place = (step * members + blockIdx.y) * columns + index % columns;
        out[place] = draws ? kind(of[k], of[k + 4 - EACH / BLOCKS]) : 0;
    }
}

extern "C" __global__ void random_uniform(const int64_t* streams, float* out, int count, int members,
                                          int columns) {
    draw(Uniform(), streams, out, count, members, columns);
}

extern "C" __global__ void random_uniform_double(const int64_t* streams, double* out, int count,
                                                 int members, int columns) {
    draw(UniformDouble(), streams, out, count, members, columns);
}

extern "C" __global__ void random_normal(const int64_t* streams, const float* table, float* out,
                                         int count, int members, int columns) {
    draw(Normal{table}, streams, out, count, members, columns);
}

// Write the keys of permutations with their indices, (members, count / size, size).
extern "C" __global__ void random_keys(const int64_t* streams, int64_t* out, int count, int size) {
    const int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    word of[4];
    const bool draws = block_of(streams, at, of);
    for (int k = 0; k < 2; k++) {
        const int64_t index = at / BLOCKS * (2 * BLOCKS) + k * BLOCKS + at % BLOCKS;
        if (index >= count) return;
        const int64_t key = Key()(of[k], of[k + 2]) >> INDEX_BITS << INDEX_BITS | index % size;
        out[(int64_t)blockIdx.y * count + index] = draws ? key : 0;
    }
}
