// The functions that agents/native/kernels.py calls through ctypes.

#include <algorithm>
#include <memory>
#include <vector>

#include "acting.h"
#include "d3qn.h"
#include "policy.h"
#include "ppo.h"
#include "sac.h"

extern "C" {

// Floats of the arguments' `scratch` for these sizes.
int64_t sweepd_ppo_scratch(const Update* u) { return Memory(*u).size(u->threads); }

void sweepd_ppo(const Update* u) { update(*u); }

int64_t sweepd_d3qn_scratch(const Replayed* u) { return u->threads * memory_of<DuelingQ>(*u); }

void sweepd_d3qn(const Replayed* u) { learn<DuelingQ>(*u); }

int64_t sweepd_sac_scratch(const Replayed* u) {
    return u->threads * memory_of<SoftActorCritic>(*u);
}

void sweepd_sac(const Replayed* u) { learn<SoftActorCritic>(*u); }

// Returns 0 if an item's id is not in the vocabulary, else 1.
int32_t sweepd_outputs(const Outputs* o) { return outputs(*o); }

void sweepd_draw(const Drawn* d) { draw(*d); }

void sweepd_normalise(const Normalised* n) { normalise(*n); }

// e^x, log x and tanh x of n numbers, for tests.
void sweepd_functions(const float* x, int64_t n, float* exponentials, float* logarithms,
                      float* tangents) {
    for (int64_t i = 0; i + WIDTH <= n; i += WIDTH) {
        store(exponentials + i, exponential(load(x + i)));
        store(logarithms + i, logarithm(load(x + i)));
        store(tangents + i, hyperbolic_tangent(load(x + i)));
    }
}

}
