// A step of a rollout besides the networks: actions are drawn, and observations are normalised.
// (The formulas: agents/networks/distributions.py and normaliser.py.)

#pragma once

#include <algorithm>
#include <vector>

#include "tasks.h"
#include "vector.h"

// The arguments, which agents/native/acting.py fills. (G slots.)
struct Drawn {
    int64_t slots, rows, outputs;
    int64_t side_stride, side_columns;  // floats between members' stored actions, and rows'
    int64_t log_std_stride;             // floats between members'
    const float *means;                 // (G, rows, outputs), or logits
    const float *noise;                 // (G, rows, outputs), or (G, rows)
    const float *log_std;               // null: one of the outputs is chosen
    float* side;                        // written: stored actions and their log-probabilities
    void* actions;                      // written: (G, rows, outputs) floats, or (G, rows) int64
    int64_t threads;
};

struct Normalised {
    int64_t slots, rows, columns;
    int64_t out_stride, out_row;     // floats between members, and rows
    double clip;
    const float *obs, *avg, *std;    // (G, rows, columns), (G, columns)
    float* out;
    int64_t threads;
};

constexpr long ROWS_TOGETHER = 256;  // of a task

// Run `use(g, first row, rows)` for parts of all members' rows.
template <typename Use>
static void each_part(long slots, long rows, int threads, Use use) {
    const long parts = (rows + ROWS_TOGETHER - 1) / ROWS_TOGETHER;
    run_tasks(slots * parts, threads, [&](long task, int) {
        const long first = task % parts * ROWS_TOGETHER;
        use(task / parts, first, std::min(ROWS_TOGETHER, rows - first));
    });
}

// A vector with a column of some rows, `row` floats apart; its other lanes are 0.
static inline vec read_column(const float* at, long row, long rows) {
    alignas(64) float lane[WIDTH] = {};
    for (long r = 0; r < rows; r++) lane[r] = at[r * row];
    return load(lane);
}
static inline void write_column(float* at, long row, long rows, vec x) {
    alignas(64) float lane[WIDTH];
    store(lane, x);
    for (long r = 0; r < rows; r++) at[r * row] = lane[r];
}

// x = μ + σ ε, whose tanh is the action; log p as in `gaussian_loss`.
static void draw_normal(const Drawn& d, long g, long first, long rows) {
    const long n = d.outputs;
    const float* log_std = d.log_std + g * d.log_std_stride;
    const float constant = log_scale(log_std, n);
    static thread_local std::vector<float> deviations;
    deviations.resize(2 * n);
    float *std = deviations.data(), *inverse = std + n;
    for (long j = 0; j < n; j++) {
        std[j] = exponential(all(log_std[j]))[0];
        inverse[j] = exponential(all(-log_std[j]))[0];
    }
    for (long r = first; r < first + rows; r += WIDTH) {
        const long here = std::min((long)WIDTH, first + rows - r), at = (g * d.rows + r) * n;
        float* side = d.side + g * d.side_stride + r * d.side_columns;
        vec squares = vec{};
        for (long j = 0; j < n; j++) {
            vec mean = read_column(d.means + at + j, n, here);
            vec x = fma(all(std[j]), read_column(d.noise + at + j, n, here), mean);
            vec u = (x - mean) * inverse[j], action = hyperbolic_tangent(x);
            squares = fma(u, u, squares);
            write_column(side + j, d.side_columns, here, x);
            // A diverged member's NaN must not reach the environment.
            action = choose(action == action, action, vec{});
            write_column((float*)d.actions + at + j, n, here, action);
        }
        write_column(side + n, d.side_columns, here, squares * -0.5f - constant);
    }
}

// The first option at which the sum of weights e^z exceeds ε times the total; log p as in
// `choices_loss`.
static void draw_option(const Drawn& d, long g, long first, long rows) {
    const long n = d.outputs;
    static thread_local std::vector<float> memory;
    memory.resize(2 * n * WIDTH);
    float *z = memory.data(), *below = z + n * WIDTH;
    for (long r = first; r < first + rows; r += WIDTH) {
        const long here = std::min((long)WIDTH, first + rows - r), at = g * d.rows + r;
        float* side = d.side + g * d.side_stride + r * d.side_columns;
        vec largest = all(-__builtin_inff()), sum = vec{};
        for (long o = 0; o < n; o++) {
            vec one = read_column(d.means + at * n + o, n, here);
            store(z + o * WIDTH, one);
            largest = at_least(largest, one);
        }
        for (long o = 0; o < n; o++) {
            vec one = load(z + o * WIDTH) - largest;
            store(z + o * WIDTH, one);
            store(below + o * WIDTH, sum += exponential(one));
        }
        const vec limit = read_column(d.noise + at, 1, here) * sum;
        ivec chosen = ivec{};
        for (long o = 0; o < n; o++) chosen -= load(below + o * WIDTH) <= limit;
        vec log_prob = vec{};
        for (long o = 0; o < n; o++)
            log_prob = choose(chosen == (int32_t)o, load(z + o * WIDTH), log_prob);
        write_column(side, d.side_columns, here, __builtin_convertvector(chosen, vec));
        write_column(side + 1, d.side_columns, here, log_prob - logarithm(sum));
        for (long k = 0; k < here; k++) ((int64_t*)d.actions)[at + k] = chosen[k];
    }
}

static void draw(const Drawn& d) {
    each_part(d.slots, d.rows, d.threads, [&](long g, long first, long rows) {
        (d.log_std ? draw_normal : draw_option)(d, g, first, rows);
    });
}

// (x - avg) / std, between -clip and clip; NaN stays.
static void normalise(const Normalised& n) {
    const float clip = (float)n.clip;
    each_part(n.slots, n.rows, n.threads, [&](long g, long first, long rows) {
        const float *avg = n.avg + g * n.columns, *std = n.std + g * n.columns;
        for (long r = first; r < first + rows; r++) {
            const float* x = n.obs + (g * n.rows + r) * n.columns;
            float* out = n.out + g * n.out_stride + r * n.out_row;
            for (long i = 0; i < n.columns; i++) {
                float number = (x[i] - avg[i]) / std[i];
                out[i] = number > clip ? clip : number < -clip ? -clip : number;
            }
        }
    });
}
