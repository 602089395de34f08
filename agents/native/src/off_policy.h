// What the gradient steps of SAC and D3QN share: arguments, networks, minibatches, and the loop.
// (agents/algorithms/off_policy.py is the reference.)
//
// One task makes all gradient steps of a member that follow a rollout: its networks depend on each
// other in every step.

#pragma once

#include "network.h"
#include "tasks.h"

// A network of every member, which agents/native/off_policy.py describes. (G slots.)
struct Networks {
    float *flat, *m, *v;      // (G, stride); target networks have no moments
    int64_t stride;
    const int64_t* places;    // of the parts of a network: `exchange`
    const AdamNumbers* adam;  // (G,)
    const float* before;      // (G,) steps that Adam has made
    float* made;              // (G,), written: steps that it makes now
};

// The numbers of a member, constant over a rollout. Hyperparameters have the names of `SACParams`.
struct ReplayNumbers {
    float gamma, soft_update_tau, max_grad_norm;
    float target_entropy;        // of SAC; per dimension of an action
    float value_avg, value_std;  // of a network's output y, the value is value_std y + value_avg
};

// The arguments. (B minibatch.)
struct Replayed {
    int64_t slots, width, depth, obs_columns, actions, side_columns;
    int64_t minibatch, updates;
    const float *obs, *next_obs, *side;   // of the replay buffers, (rows, …)
    const int64_t* rows;                  // (updates, G, B)
    const float* noise;                   // (updates, 2, G, B, actions) of SAC
    const float *state_avg, *state_std;   // (G, obs_columns)
    const ReplayNumbers* numbers;         // (G,)
    const uint8_t* learns;                // (G,)
    void* stats;                          // (G,), written: sums over the steps, as `Stats` has them
    uint8_t* diverged;                    // (G,), written
    float* scratch;
    int64_t threads;
    Networks critic, target, actor, alpha;  // of D3QN, the first two
    double clip;                            // bound of normalised observations; infinite: none
    Activation activation;
};

// One member's network: its private copy, which lasts for the steps of a rollout.
struct Own {
    const Layout n;
    const Networks& all;
    const long g;
    Workspace s;
    float *w, *m, *v;
    long made = 0;

    // Takes its memory from `at` and moves that on.
    Own(const Layout& n, const Networks& all, long g, float*& at, long chunks = 1)
        : n(n), all(all), g(g), w(at), m(at + n.size), v(at + 2 * n.size) {
        at += 3 * n.size;
        at += s.cut(n, 1, 0, at, chunks);
    }

    void bring(bool back) {
        float *there[] = {all.flat, all.m, all.v}, *here[] = {w, m, v};
        for (int i = 0; i < (all.m ? 3 : 1); i++)
            if (back) exchange<false>(n, all.places, there[i] + g * all.stride, here[i]);
            else exchange<true>(n, all.places, there[i] + g * all.stride, here[i]);
        if (!back) prepare(n, w, s);
        else if (all.m) all.made[g] = made;
    }

    void clear_gradient() { memset(s.grad, 0, n.size * sizeof(float)); }

    // Make Adam's step, unless the gradient is not finite; returns the gradient's norm.
    float step(float max_norm) {
        float size = norm(s.grad, n.size);
        if (!std::isfinite(size)) return size;
        made++;
        adam(all.adam[g], (long)all.before[g] + made, size, max_norm, n.size, s.grad, w, m, v);
        prepare(n, w, s);
        return size;
    }

    // θ ← τ θ_other + (1 - τ) θ
    void follow(const Own& other, float tau) {
        for (long i = 0; i < n.size; i += WIDTH)
            store(w + i, fma(load(other.w + i), ::all(tau), load(w + i) * (1.0f - tau)));
        prepare(n, w, s);
    }

};

// A member while it learns.
class Learner {
protected:
    const Replayed& u;
    const long g;
    const ReplayNumbers t;
    float *side, *live, *inverse;  // a chunk's side columns and live rows; 1 / deviations

    // Takes its memory from `at` and moves that on.
    Learner(const Replayed& u, long g, float*& at) : u(u), g(g), t(u.numbers[g]) {
        auto part = [&at](long size) { float* here = at; at += padded(size, 64); return here; };
        side = part(CHUNK * u.side_columns);
        live = part(CHUNK);
        inverse = part(u.obs_columns);
    }

    void invert() {
        for (long i = 0; i < u.obs_columns; i++)
            inverse[i] = 1 / u.state_std[g * u.obs_columns + i];
    }

    long chunks() const { return (u.minibatch + CHUNK - 1) / CHUNK; }

    // Call `use(chunk, first, rows)` for the minibatch's chunks.
    template <typename Use>
    void in_chunks(Use use) const {
        for (long first = 0; first < u.minibatch; first += CHUNK)
            use(first / CHUNK, first, std::min(CHUNK, u.minibatch - first));
    }

    // Which rows of a vector are transitions; the others fill up the last 16.
    ivec is_live(long r) const { return load(live + r) > 0; }
    void set_live(long count) {
        for (long r = 0; r < padded(count); r++) live[r] = r < count;
    }

    // Normalise a row of observations.
    void read(const float* from, float* x) const {
        const float* avg = u.state_avg + g * u.obs_columns;
        const float clip = (float)u.clip;
        for (long i = 0; i < u.obs_columns; i++) {
            float number = (from[i] - avg[i]) * inverse[i];  // NaN stays
            x[i] = number > clip ? clip : number < -clip ? -clip : number;
        }
    }

    // Copy the transitions first … first + count - 1 of a minibatch: observations to `x` and
    // `next`, the rest to `side`, whose columns are contiguous. Critics of actions read the stored
    // ones behind the observations.
    void gather(long step, long first, long count, const Layout& n, float* x, float* next) {
        constexpr long AHEAD = 6;  // rows lie anywhere in the buffer: ask for them in time
        const int64_t* rows = u.rows + (step * u.slots + g) * u.minibatch + first;
        for (long r = 0; r < count; r++) {
            if (r + AHEAD < count) {
                long soon = rows[r + AHEAD] * u.obs_columns;
                for (long i = 0; i < u.obs_columns; i += 16) {
                    __builtin_prefetch(u.obs + soon + i);
                    __builtin_prefetch(u.next_obs + soon + i);
                }
                __builtin_prefetch(u.side + rows[r + AHEAD] * u.side_columns);
            }
            read(u.obs + rows[r] * u.obs_columns, x + r * n.x_row);
            read(u.next_obs + rows[r] * u.obs_columns, next + r * n.x_row);
            const float* from = u.side + rows[r] * u.side_columns;
            for (long c = 0; c < u.side_columns; c++) side[c * CHUNK + r] = from[c];
            for (long i = u.obs_columns; i < n.in; i++)
                x[r * n.x_row + i] = from[i - u.obs_columns];
        }
        set_live(count);
    }

    // y = r + γ V(s'), where the episode goes on; r and whether it does are the last columns.
    vec label(long r, vec next_value) const {
        const float* reward = side + (u.side_columns - 2) * CHUNK + r;
        return load(reward) + load(reward + CHUNK) * t.gamma * next_value;
    }

    vec value(vec output) const { return fma(output, all(t.value_std), all(t.value_avg)); }

    // Add smooth_l1(e) to `loss` for e = value - label; returns the derivative of the minibatch's
    // mean by the network's output.
    vec smooth_l1(long r, vec value, vec label, Sum& loss) const {
        vec error = choose(is_live(r), value - label, vec{}), size = magnitude(error);
        loss.add(r, choose(size < 1.0f, size * size * 0.5f, size - 0.5f));
        return at_most(at_least(error, all(-1.0f)), all(1.0f)) * (t.value_std / u.minibatch);
    }

    float mean(const Sum& sum) const { return sum.total() / u.minibatch; }
};

// The floats that a `Member` takes. Its constructor (u, g, at) takes them from `at` and moves that
// on; `bring` copies the networks; `step` makes a step and adds to its `Stats`, unless a gradient
// is not finite.
template <typename Member>
static long memory_of(const Replayed& u) {
    float* at = nullptr;
    Member(u, 0, at);
    return at - (float*)nullptr;
}

// Make all gradient steps.
template <typename Member>
static void learn(const Replayed& u) {
    long size = memory_of<Member>(u);
    run_tasks(u.slots, u.threads, [&](long g, int worker) {
        if (!u.learns[g]) return;
        float* at = u.scratch + worker * size;
        Member member(u, g, at);
        member.bring(false);
        typename Member::Stats stats{};
        long made = 0;
        for (; made < u.updates; made++)
            if (!member.step(made, stats)) break;
        u.diverged[g] = made < u.updates;
        member.bring(true);
        stats.updates = made;
        ((typename Member::Stats*)u.stats)[g] = stats;
    });
}
