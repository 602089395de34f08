// A loop of fused multiply-adds in registers: what a core can do at most. (peak.py)

#include "vector.h"

// Makes `rounds` multiply-adds of each of 24 independent vectors; returns the operations.
extern "C" double sweepd_peak(int64_t rounds, float* result) {
    constexpr int CHAINS = WIDTH == 16 ? 24 : 12;  // enough to hide the latency; 32, 16 registers
    vec sum[CHAINS];
    for (int i = 0; i < CHAINS; i++) sum[i] = all((float)i);
    const vec a = all(0.999f), b = all(0.001f);
    for (int64_t round = 0; round < rounds; round++)
#pragma GCC unroll 24
        for (int i = 0; i < CHAINS; i++) sum[i] = fma(sum[i], a, b);
    vec total = vec{};
    for (int i = 0; i < CHAINS; i++) total += sum[i];
    *result = total[0];  // the compiler must not drop the loop
    return 2.0 * rounds * CHAINS * WIDTH;
}
