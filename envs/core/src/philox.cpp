// Random numbers of many members, called by envs/core/native.py through ctypes.

#include <vector>

#include "philox.h"
#include "pool.h"

constexpr long NUMBERS_PER_TASK = 8192;  // fewer are drawn sooner than another thread wakes up

// Write (steps, members, columns) numbers; zeros for members that do not draw.
template <class Kind>
static void draw(const Kind& kind, const Stream* streams, int64_t members,
                 typename Kind::Number* out, int64_t steps, int64_t columns, int64_t threads) {
    typedef typename Kind::Number Number;
    if (!columns) return;
    const long at_once = std::max<long>(1, NUMBERS_PER_TASK / columns);  // steps of a task
    const long tasks = (steps + at_once - 1) / at_once;
    Pool::get().run(tasks * members, threads, [&](long task, int) {
        const long member = task % members, first = task / members * at_once;
        const long count = std::min<long>(at_once, steps - first);
        const Stream& stream = streams[member];
        std::vector<Number> drawn(stream.seeded ? count * columns : 0);
        if (stream.seeded) fill(kind, stream, first * columns, count * columns, drawn.data());
        for (long step = 0; step < count; step++) {
            Number* into = out + ((first + step) * members + member) * columns;
            if (stream.seeded)
                std::copy_n(drawn.data() + step * columns, columns, into);
            else
                std::fill_n(into, columns, Number(0));
        }
    });
}

// Write the order of `size` random keys: they go into as many buckets by their upper bits, with few
// in each, and are sorted by insertion then.
static void sort_keys(const Stream& stream, long first, long size, int64_t* out) {
    int bits = 1;
    while (1L << bits < size) bits++;
    const int shift = 63 - bits;
    std::vector<int64_t> keys(size), sorted(size);
    std::vector<uint32_t> places((1L << bits) + 1);
    fill(Key(), stream, first, size, keys.data());
    for (long i = 0; i < size; i++) {
        keys[i] = keys[i] >> INDEX_BITS << INDEX_BITS | i;
        places[(keys[i] >> shift) + 1]++;
    }
    for (long i = 0; i < 1L << bits; i++) places[i + 1] += places[i];
    for (const int64_t key : keys) sorted[places[key >> shift]++] = key;
    for (long i = 1; i < size; i++) {
        const int64_t key = sorted[i];
        long j = i;
        for (; j && sorted[j - 1] > key; j--) sorted[j] = sorted[j - 1];
        sorted[j] = key;
    }
    for (long i = 0; i < size; i++) out[i] = sorted[i] & ((1L << INDEX_BITS) - 1);
}

extern "C" {

void sweepd_random_uniform(const Stream* streams, int64_t members, float* out, int64_t steps,
                           int64_t columns, int64_t threads) {
    draw(Uniform(), streams, members, out, steps, columns, threads);
}

void sweepd_random_uniform_double(const Stream* streams, int64_t members, double* out,
                                  int64_t steps, int64_t columns, int64_t threads) {
    draw(UniformDouble(), streams, members, out, steps, columns, threads);
}

void sweepd_random_normal(const Stream* streams, int64_t members, float* out, int64_t steps,
                          int64_t columns, const float* table, int64_t threads) {
    draw(Normal{table}, streams, members, out, steps, columns, threads);
}

// Write (members, k, size) permutations; zeros for members that do not draw.
void sweepd_random_permutations(const Stream* streams, int64_t members, int64_t* out, int64_t k,
                          int64_t size, int64_t threads) {
    Pool::get().run(members * k, threads, [&](long task, int) {
        const Stream& stream = streams[task / k];
        if (stream.seeded)
            sort_keys(stream, task % k * size, size, out + task * size);
        else
            std::fill_n(out + task * size, size, 0);
    });
}

}
