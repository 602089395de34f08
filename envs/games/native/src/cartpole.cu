// The step of CartPole on a GPU, from the same text as on CPUs (cartpole.cpp); one thread per row.

#define ON_GPU

#include "cartpole.h"

// Step row r, and record its action in a `FaultLatch`: `legal_steps`, `values` and `legal`.
DEVICE static inline void step(const State& s, const Arguments& now, long r, double* legal_steps,
                               int64_t* values, bool* legal) {
    const int64_t action = now.action[r];
    if (legal[r]) {  // after a fault, its numbers stay
        values[r] = action;
        legal[r] = action == 0 || action == 1;
    }
    legal_steps[r] += legal[r];
    step(s, now, r, 1);
}

extern "C" __global__ void cartpole_step(const State* state, const int64_t* action, float* obs,
                                         uint8_t* ends, double* legal_steps, int64_t* values,
                                         bool* legal, int obs_stride) {
    const State& s = *state;
    const long r = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= s.rows) return;
    const double angle = s.state[2 * s.stride + r];
    s.trigonometry[r] = sin(angle);
    s.trigonometry[s.stride + r] = cos(angle);
    step(s, Arguments{action, obs, obs_stride, ends}, r, legal_steps, values, legal);
}

// The same with the sines and cosines in memory, for tests.
extern "C" __global__ void cartpole_move(const State* state, const int64_t* action, float* obs,
                                         uint8_t* ends, double* legal_steps, int64_t* values,
                                         bool* legal, int obs_stride) {
    const long r = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= state->rows) return;
    step(*state, Arguments{action, obs, obs_stride, ends}, r, legal_steps, values, legal);
}

// See `refill`.
extern "C" __global__ void cartpole_refill(const State* state, const double* pool, int64_t* turn,
                                           int rounds, int since) {
    const long r = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (r < state->rows) refill(*state, r, pool, rounds, turn, since);
}
