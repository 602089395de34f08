// The gradient of the loss for a chunk's outputs, and statistics. Every lane of a vector is a row.
// (The formulas: agents/algorithms/ppo.py and agents/networks/distributions.py.)

#pragma once

#include "network.h"

// The numbers of a member, constant over a rollout. Hyperparameters have the names of `PPOParams`.
struct PPONumbers {
    float clip, entropy_coef, value_coef, max_grad_norm, target_kl, initial_log_std;
    float value_avg, value_std, value_unit;  // V = value_std y + value_avg; the unit of errors
};

// What the loss of a minibatch needs besides its rows.
struct Terms : PPONumbers {
    float minibatch;    // B
    float valid_scale;  // B / number of valid rows

    // Derivatives of the loss by a row's entropy, and by a critic's output per clipped error.
    float d_entropy() const { return entropy_coef / -minibatch * valid_scale; }
    float d_value() const {
        return value_coef * (value_std / value_unit) / minibatch * valid_scale;
    }
};

// Sums over a minibatch's valid rows.
struct Sums {
    Sum kl, clipped, entropy, value_loss;
    void add(const Sums& more) {
        kl.add(more.kl), clipped.add(more.clipped);
        entropy.add(more.entropy), value_loss.add(more.value_loss);
    }
};

// A chunk of a minibatch: s.y, s.side (columns x n.chunk: action, log-probability, advantage,
// return), s.live (1 for valid rows, else 0), s.mask (outputs x n.chunk).
struct Chunk {
    const Layout& n;
    const Workspace& s;
    long rows, columns;
    const float* column(long c) const { return s.side + c * n.chunk; }
};

static inline ivec live(const Chunk& c, long r) { return load(c.s.live + r) > 0; }

// The derivative of the loss by the log-probabilities of rows r … (`PPO._loss`).
static inline vec d_log_prob(const Chunk& c, const Terms& t, Sums& sums, long r, vec log_prob) {
    vec old = load(c.column(c.columns - 3) + r);
    vec advantage = load(c.column(c.columns - 2) + r) * t.valid_scale;
    vec log_ratio = log_prob - old, ratio = exponential(log_ratio);
    vec plain = advantage * ratio;
    vec clipped = at_most(at_least(ratio, all(1.0f - t.clip)), all(1.0f + t.clip)) * advantage;
    ivec on = live(c, r);
    sums.kl.add(r, choose(on, ratio - 1.0f - log_ratio, vec{}));
    ivec outside = magnitude(ratio - 1.0f) > t.clip;
    sums.clipped.add(r, choose(on & outside, all(1.0f), vec{}));
    return choose(on & (plain <= clipped), plain * (-1.0f / t.minibatch), vec{});
}

// Independent Gaussians with means y_j and deviations exp(log_std_j):
//     log p = Σ_j (-u_j²/2 - log_std_j - log(2π)/2),   u = (x - y) / std
//     d(log p)/dy = u / std,   d(log p)/d(log_std) = u² - 1,   dH/d(log_std) = 1
static void gaussian_loss(const Chunk& c, const Terms& t, const float* w, Sums& sums) {
    const Layout& n = c.n;
    const float* log_std = w + n.log_std;
    const float constant = log_scale(log_std, n.out);
    std::vector<Sum> d_log_std(n.out);
    std::vector<float> inverse(n.out);  // 1 / std
    for (long j = 0; j < n.out; j++) inverse[j] = exponential(all(-log_std[j]))[0];
    Sum d_total, entropies;
    const vec d_entropy = all(t.d_entropy());
    for (long r = 0; r < c.rows; r += WIDTH) {
        vec squares = vec{};
        for (long j = 0; j < n.out; j++) {
            vec u = (load(c.column(j) + r) - load(c.s.y + j * n.chunk + r)) * inverse[j];
            squares = fma(u, u, squares);
            store(c.s.d_output + j * n.chunk + r, u);
        }
        vec d = d_log_prob(c, t, sums, r, squares * -0.5f - constant);
        ivec on = live(c, r);
        d_total.add(r, d);
        entropies.add(r, choose(on, d_entropy, vec{}));
        for (long j = 0; j < n.out; j++) {
            float* place = c.s.d_output + j * n.chunk + r;
            vec u = choose(on, load(place), vec{});
            d_log_std[j].add(r, d * u * u);
            store(place, u * inverse[j] * d);
        }
    }
    float rest = entropies.total() - d_total.total();
    for (long j = 0; j < n.out; j++) c.s.grad[n.log_std + j] += d_log_std[j].total() + rest;
}

// One or several choices; the logits z of choice k are its outputs, plus a row of chain k for each
// earlier choice, and -1e30 where the mask is 0. With p = softmax(z), action a and entropy H:
//     d(log p_a)/dz_i = [i = a] - p_i,   dH/dz_i = -p_i (log p_i + H)
static void choices_loss(const Chunk& c, const Terms& t, const float* w,
                         const std::vector<long>& options, bool masked, Sums& sums) {
    const Layout& n = c.n;
    float *y = c.s.y, *d_output = c.s.d_output;
    long count = options.size();
    auto option = [&](long k, long r) {  // taken by row r, as a whole number within range
        long taken = (long)c.column(k)[r];
        return taken < 0 ? 0 : taken >= options[k] ? options[k] - 1 : taken;
    };
    // Logits that earlier choices change.
    for (long k = 1, start = options[0]; k < count && n.chain.size(); start += options[k++])
        for (long r = 0; r < c.rows; r++)
            for (long i = 0, first = 0; i < k; first += options[i++]) {
                const float* added = w + n.chain[k - 1] + (first + option(i, r)) * options[k];
                for (long o = 0; o < options[k]; o++) y[(start + o) * n.chunk + r] += added[o];
            }
    const vec d_entropy = all(t.d_entropy());
    for (long r = 0; r < c.rows; r += WIDTH) {
        // y becomes p, d_output becomes log p.
        vec log_prob = vec{}, total_entropy = vec{};
        std::vector<vec> entropy(count);
        for (long k = 0, start = 0; k < count; start += options[k++]) {
            float *z = y + start * n.chunk + r, *log_p = d_output + start * n.chunk + r;
            const float* legal = c.s.mask + start * n.chunk + r;
            vec taken = load(c.column(k) + r), largest = all(-__builtin_inff()), sum = vec{};
            for (long o = 0; o < options[k]; o++) {
                vec one = load(z + o * n.chunk);
                if (masked) one = choose(load(legal + o * n.chunk) > 0, one, all(-1e30f));
                store(z + o * n.chunk, one);
                largest = at_least(largest, one);
            }
            for (long o = 0; o < options[k]; o++) {
                vec one = load(z + o * n.chunk) - largest;
                store(log_p + o * n.chunk, one);
                sum += exponential(one);
            }
            sum = logarithm(sum);
            entropy[k] = vec{};
            for (long o = 0; o < options[k]; o++) {
                vec one = load(log_p + o * n.chunk) - sum, p = exponential(one);
                store(log_p + o * n.chunk, one);
                store(z + o * n.chunk, p);
                entropy[k] -= p * one;
                log_prob += choose(taken == (float)o, one, vec{});
            }
            total_entropy += entropy[k];
        }
        vec d = d_log_prob(c, t, sums, r, log_prob);
        ivec on = live(c, r);
        sums.entropy.add(r, choose(on, total_entropy, vec{}));
        for (long k = 0, start = 0; k < count; start += options[k++]) {
            vec taken = load(c.column(k) + r);
            for (long o = 0; o < options[k]; o++) {
                float* place = d_output + (start + o) * n.chunk + r;
                vec log_p = load(place), p = load(y + (start + o) * n.chunk + r);
                vec dz = -(p * fma(log_p + entropy[k], d_entropy, d));
                dz += choose(taken == (float)o, d, vec{});
                store(place, choose(on, dz, vec{}));
            }
        }
    }
    // Row by row, so the order of each sum is that of the rows.
    for (long k = 1, start = options[0]; k < count && n.chain.size(); start += options[k++])
        for (long r = 0; r < c.rows; r++)
            for (long i = 0, first = 0; i < k; first += options[i++]) {
                float* into = c.s.grad + n.chain[k - 1] + (first + option(i, r)) * options[k];
                for (long o = 0; o < options[k]; o++)
                    into[o] += d_output[(start + o) * n.chunk + r];
            }
}

// c_v / B Σ smooth_l1(e),  e = (V - R) / value_unit.
static void value_loss(const Chunk& c, const Terms& t, Sums& sums) {
    const float scale = t.d_value();
    for (long r = 0; r < c.rows; r += WIDTH) {
        vec value = fma(load(c.s.y + r), all(t.value_std), all(t.value_avg));
        vec error = (value - load(c.column(c.columns - 1) + r)) / t.value_unit;
        error = choose(live(c, r), error, vec{});
        vec size = magnitude(error);
        sums.value_loss.add(r, choose(size < 1.0f, size * size * 0.5f, size - 0.5f));
        store(c.s.d_output + r, at_most(at_least(error, all(-1.0f)), all(1.0f)) * scale);
    }
}
