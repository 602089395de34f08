// The step of CartPole, of a few rows at a time.
//
// Operations and their order are those of torch in envs/games/cartpole.py, which has the formulas.
// Sines and cosines are computed before: their last bits depend on the library.

#pragma once

#include "lanes.h"

// R rows; row k of a tensor (…, R) is at k * stride.
struct State {
    int64_t rows, stride;
    double *state;                  // (6, R): x, x', angle, angle', age, 1
    double *start;                  // (6, R), of the next episode
    double *final_state;            // (4, R)
    double *trigonometry;           // (2, R): sine and cosine of the angle
    const double *left, *from_left_to_right, *coupling, *gravity;  // (R,)
    const double *inertia;          // (R,)
    const double *time;             // (3, R): change of each variable per step at rate 1
    const double *limits;           // (3, R): of x, angle and age
};

// The arguments of one step.
struct Arguments {
    const int64_t* action;          // (R,)
    float* obs;                     // (R, 4), `obs_stride` floats from one row to the next
    int64_t obs_stride;
    uint8_t* ends;                  // (2, R): terminated, truncated
};

// x + y z, rounded once, as torch.addcmul does.
DEVICE static inline vec addcmul(vec x, vec y, vec z) {
#if defined(ON_GPU)
    return fma(y.x, z.x, x.x);
#elif defined(__AVX512F__)
    return (vec)_mm512_fmadd_pd((__m512d)y, (__m512d)z, (__m512d)x);
#elif defined(__AVX2__)
    return (vec)_mm256_fmadd_pd((__m256d)y, (__m256d)z, (__m256d)x);
#else
    for (int i = 0; i < WIDTH; i++) x[i] = __builtin_fma(y[i], z[i], x[i]);
    return x;
#endif
}

// Rows r … r + count - 1, count <= WIDTH.
DEVICE static inline void step(const State& s, const Arguments& now, long r, int count) {
    const long R = s.stride;
    vec chosen = all(0.0);  // illegal actions are clamped
    for (int i = 0; i < count; i++) chosen[i] = now.action[r + i] > 0;
    vec x = load(s.state + r, count), speed = load(s.state + R + r, count);
    vec angle = load(s.state + 2 * R + r, count), turning = load(s.state + 3 * R + r, count);
    vec age = load(s.state + 4 * R + r, count), one = load(s.state + 5 * R + r, count);
    vec sine = load(s.trigonometry + r, count), cosine = load(s.trigonometry + R + r, count);
    vec coupling = load(s.coupling + r, count), tau = load(s.time + r, count);

    vec push = addcmul(load(s.left + r, count), load(s.from_left_to_right + r, count), chosen);
    vec u = addcmul(push, sine * coupling, turning * turning), reaction = cosine * coupling;
    vec numerator = addcmul(sine * load(s.gravity + r, count), -u, cosine);
    vec denominator = addcmul(load(s.inertia + r, count), -reaction, cosine);
    vec angular = numerator / denominator, linear = addcmul(u, -reaction, angular);
    // First the variables, by the rates before the step, then the rates.
    x = addcmul(x, speed, tau);
    angle = addcmul(angle, turning, load(s.time + R + r, count));
    age = addcmul(age, one, load(s.time + 2 * R + r, count));
    speed = addcmul(speed, linear, tau);
    turning = addcmul(turning, angular, load(s.time + R + r, count));

    vec outside = greater(magnitude(x), load(s.limits + r, count));
    vec fallen = greater(magnitude(angle), load(s.limits + R + r, count));
    vec too_old = greater(magnitude(age), load(s.limits + 2 * R + r, count));
    vec over = larger_of(outside, fallen), done = larger_of(over, too_old);
    vec after[] = {x, speed, angle, turning, age, one};
    floats seen[4];
    for (int k = 0; k < 6; k++) {
        if (k < 4) {
            double* last = s.final_state + k * R + r;
            store(last, count, mixed(load(last, count), after[k], done));
        }
        after[k] = mixed(after[k], load(s.start + k * R + r, count), done);
        store(s.state + k * R + r, count, after[k]);
        if (k < 4) seen[k] = rounded(after[k]);
    }
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < 4; k++) now.obs[(r + i) * now.obs_stride + k] = seen[k][i];
        now.ends[r + i] = over[i] != 0.0;
        now.ends[s.rows + r + i] = too_old[i] != 0.0;
    }
}

// Replace the start of row r if it was used within the last `since` steps: if its episode is
// younger. `pool`: (rounds, 4, R), the starts drawn ahead; `turn`: (R,), the next one of each row.
DEVICE static inline void refill(const State& s, long r, const double* pool, int64_t rounds,
                                 int64_t* turn, int64_t since) {
    if (!(s.state[4 * s.stride + r] < (double)since)) return;
    const int64_t round = turn[r] < rounds ? turn[r] : rounds - 1;
    for (int k = 0; k < 4; k++) s.start[k * s.stride + r] = pool[(round * 4 + k) * s.rows + r];
    turn[r]++;
}
