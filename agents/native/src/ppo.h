// All gradient steps of PPO that follow a rollout. (agents/algorithms/ppo.py is the reference.)
//
// One task trains one network of one member, from the first minibatch to the last. Actor and critic
// meet in one point: both stop at the step at which the KL divergence exceeds its target, or at
// which either gradient is not finite. So each of them trains a copy by itself, and the one that
// went further is trained again, up to the step at which the other one stopped.

#pragma once

#include "loss.h"
#include "tasks.h"

// Statistics of a member's last minibatch, by the names of `RolloutStats`.
struct PPOStats {
    float value_loss, approx_kl, clip_fraction, actor_norm, critic_norm, entropy, updates;
};

// The arguments of an update, which agents/native/kernels.py fills. (G slots, B minibatch.)
struct Update {
    int64_t slots, width, depth, inputs[2], actions;  // inputs: columns of actors, of critics
    Activation activation;
    Cell cell;
    int64_t bptt;                       // steps of a sequence
    int64_t choices;                    // 0: actions are numbers
    int64_t chained, masked;
    int64_t minibatch, steps;
    int64_t obs_columns, side_columns, flag_columns, mask_bytes, byte_obs;
    int64_t stride;                     // floats between sets of weights
    int64_t sets, seat_column;          // sets of weights per member; of two, who plays a row
    int64_t num_envs, stored;           // rows of a step, and of a member, in the rollout
    int64_t sequences;                  // of a member
    const Items* items;                 // null: there are none
    const Entities* entities[2];        // likewise; as the columns of actors and critics
    const Images* images;               // likewise
    const int64_t* options;             // (choices,) sizes
    const int64_t* places[2];           // of the parts of actors and critics in a network
    float *flat, *m, *v;                // (2, G, sets, stride)
    const void* obs;                    // (rows of the rollout, obs_columns), floats or bytes
    const float* side;                  // (rows of the rollout, side_columns)
    const uint8_t *flags, *masks;       // likewise
    const float* states;                // (2, G, sequences, …), before each sequence
    const int64_t* rows;                // (steps, G, B)
    const float *state_avg, *state_std; // (G, obs_columns), for bytes
    const PPONumbers* numbers;          // (G,)
    const AdamNumbers* adam;            // (G,)
    const float* adam_steps;            // (G,) that were made before
    const uint8_t* learns;              // (G,)
    PPOStats* stats;                    // (G,), written
    uint8_t* diverged;                  // (G,), written
    float* scratch;
    int64_t threads;
};

// Of networks that read so many columns.
static Layout layout(const Update& u, bool critic, long columns) {
    std::vector<long> chains;
    if (u.chained && !critic)
        for (long k = 1, before = u.options[0]; k < u.choices; before += u.options[k++])
            chains.push_back(before * u.options[k]);
    return Layout(columns, u.width, u.depth, critic ? 1 : u.actions, u.activation,
                  !u.choices && !critic, chains, u.items, u.entities[critic], u.images, u.cell,
                  u.bptt);
}

// Columns that the networks of a member read. Weights of padding stay as they are without weight
// decay: their gradients are 0, and so are their moments, if earlier rollouts had the padding. They
// are left out by fours, so that `norm` adds up the same lanes.
static long columns_read(const Update& u, long g, bool critic) {
    const long all = u.inputs[critic];
    if (u.byte_obs || u.items || u.entities[critic] || u.images || u.adam[g].weight_decay != 0)
        return all;
    const float* obs = (const float*)u.obs + g * u.stored * u.obs_columns;
    const long used = in_use(obs, u.obs_columns, u.stored, all);
    for (long k = 0; k < u.sets; k++)
        for (const float* moment : {u.m, u.v}) {
            long at = ((critic * u.slots + g) * u.sets + k) * u.stride + u.places[critic][0];
            if (!is_zero(moment + at + used * u.width, (all - used) * u.width)) return all;
        }
    return used;
}

static bool stops_early(const PPONumbers& t) { return t.target_kl > 0; }

// Why and where a network stopped, and its statistics of the last minibatch.
struct Outcome {
    long end = -1;  // steps made or skipped before the one that was not made; -1: not trained yet
    bool finite = true, exceeds = false;
    long updates = 0;
    float norm = 0, value_loss = 0, kl = 0, clipped = 0, entropy = 0;
};

// The actor or the critic of a member; of policies per seat, both of its sets of weights, which
// have one loss.
class Network {
    const Update& u;
    const Layout& n;
    const Workspace& s;
    const long g, size;  // size: floats of all its sets of weights
    const bool critic;
    float *w, *m, *v;
    Terms t;
    std::vector<long> options;
    std::vector<int64_t> own;  // a minibatch's rows of one set of weights

    // Copy the chunk's rows of the rollout to s.obs or s.planes, s.side, s.live and s.mask.
    void gather(const int64_t* rows, long count) {
        constexpr long AHEAD = 6;  // rows lie anywhere in the rollout: ask for them in time
        for (long r = 0; r < count; r++) {
            if (r + AHEAD < count) {
                const char* soon = (const char*)u.obs + rows[r + AHEAD] * u.obs_columns * cell();
                for (long i = 0; i < n.columns * cell(); i += 64) __builtin_prefetch(soon + i);
                __builtin_prefetch(u.side + rows[r + AHEAD] * u.side_columns);
            }
            float* x = s.obs + r * n.obs_row;
            if (n.images) {
                to_pixels(*n.images, (const uint8_t*)u.obs + rows[r] * u.obs_columns,
                          s.planes.pixels + r * s.planes.pixel_row);
            } else if (u.byte_obs) {
                const uint8_t* from = (const uint8_t*)u.obs + rows[r] * u.obs_columns;
                const float *avg = u.state_avg + g * u.obs_columns;
                const float *std = u.state_std + g * u.obs_columns;
                for (long i = 0; i < n.columns; i++) x[i] = ((float)from[i] - avg[i]) / std[i];
            } else {
                const float* from = (const float*)u.obs + rows[r] * u.obs_columns;
                if (n.entities) arrange(*n.entities, from, n.columns, x);
                else memcpy(x, from, n.columns * sizeof(float));
            }
            const float* side = u.side + rows[r] * u.side_columns;
            for (long c = 0; c < u.side_columns; c++) s.side[c * n.chunk + r] = side[c];
            s.live[r] = valid(rows[r]);
            if (u.masked && !critic)
                for (long j = 0; j < u.actions; j++)
                    s.mask[j * n.chunk + r] = u.masks[rows[r] * u.mask_bytes + j / 8] >> j % 8 & 1;
        }
        for (long r = count; r < padded(count); r++) s.live[r] = 0;
        if (n.recurrent()) gather_states(rows, count);
    }

    // Copy where episodes start, and the states before the chunk's sequences.
    void gather_states(const int64_t* rows, long count) {
        const Recurrence& of = n.recurrence;
        const long size = of.states() * of.width;
        const float* states = u.states + (critic * u.slots + g) * u.sequences * size;
        for (long r = 0; r < count; r++) s.starts[r] = u.flags[(rows[r] + 1) * u.flag_columns - 1];
        for (long r = 0; r < count / n.steps; r++) {
            const long row = rows[r] - g * u.stored, block = row / (u.num_envs * n.steps);
            read_state(of, states + (block * u.num_envs + row % u.num_envs) * size,
                       s.step.before + r * of.state_row());
        }
    }

    // Bytes of a number of an observation.
    long cell() const { return u.byte_obs || n.images ? 1 : sizeof(float); }

    // Whether some transitions are invalid. The last flag of recurrent ones is an episode's start.
    bool loses() const { return u.flag_columns > n.recurrent(); }
    bool valid(int64_t row) const { return !loses() || u.flags[row * u.flag_columns]; }

    // The set of weights that computes a row.
    long set(int64_t row) const {
        if (u.sets == 1) return 0;
        long at = row * u.obs_columns + u.seat_column;
        return u.byte_obs ? ((const uint8_t*)u.obs)[at] : ((const float*)u.obs)[at] > 0.5f;
    }

    // Forward and backward pass of a minibatch; returns its number of valid rows.
    long differentiate(long step, Sums& sums) {
        const int64_t* rows = u.rows + (step * u.slots + g) * u.minibatch;
        long count = 0;
        for (long r = 0; r < u.minibatch; r++) count += valid(rows[r]);
        t.valid_scale = loses() ? (float)u.minibatch / (count ? count : 1) : 1.0f;
        for (long k = 0; k < u.sets; k++) {
            own.clear();
            // Step by step, of as many sequences as pass through the network together.
            const long sequences = u.minibatch / n.steps;
            for (long first = 0; first < sequences; first += n.together)
                for (long t = 0; t < n.steps; t++) {
                    const int64_t* of_step = rows + t * sequences;
                    for (long r = first; r < std::min(first + n.together, sequences); r++)
                        if (set(of_step[r]) == k) own.push_back(of_step[r]);
                }
            differentiate_set(k, sums);
        }
        return count;
    }

    // The same for the rows `own` of one set of weights.
    void differentiate_set(long k, Sums& sums) {
        const float* w = this->w + k * n.size;
        Workspace s = this->s;
        s.grad += k * n.size;
        begin(n, w, s);
        for (long first = 0; first < (long)own.size(); first += n.chunk) {
            long here = std::min(n.chunk, (long)own.size() - first);
            gather(&own[first], here);
            forward(n, w, s, here);
            Chunk chunk{n, s, here, u.side_columns};
            if (critic) value_loss(chunk, t, sums);
            else if (options.empty()) gaussian_loss(chunk, t, w, sums);
            else choices_loss(chunk, t, w, options, u.masked, sums);
            backward(n, w, s, here);
        }
        finish(n, s);
    }

    float mean(const Sum& sum) const { return sum.total() * (1.0f / t.minibatch) * t.valid_scale; }

public:
    Network(const Update& u, const Layout& n, const Workspace& s, long g, bool critic, float* own)
        : u(u), n(n), s(s), g(g), size(u.sets * n.size), critic(critic),
          w(own), m(own + size), v(own + 2 * size),
          t{u.numbers[g], (float)u.minibatch, 1.0f} {
        for (long k = 0; k < u.choices; k++) options.push_back(u.options[k]);
    }

    void bring(bool back) {
        float *flat[] = {u.flat, u.m, u.v}, *own[] = {w, m, v};
        for (int i = 0; i < 3; i++)
            for (long k = 0; k < u.sets; k++) {
                float* there = flat[i] + ((critic * u.slots + g) * u.sets + k) * u.stride;
                if (back) exchange<false>(n, u.places[critic], there, own[i] + k * n.size);
                else exchange<true>(n, u.places[critic], there, own[i] + k * n.size);
            }
    }

    // Train from the network's state before the rollout, for `limit` minibatches at most.
    Outcome train(long limit) {
        Outcome o;
        bring(false);
        if (n.images)
            s.planes.set_normaliser(*n.images, u.state_avg + g * u.obs_columns,
                                    u.state_std + g * u.obs_columns);
        const float highest_log_std = std::max(t.initial_log_std, 0.0f);
        bool running = true, valid = true;  // valid: whether the last minibatch has valid rows
        for (long step = 0; step < u.steps; step++) {
            // Of minibatches that are not learned from, the last one is looked at for statistics.
            if (step == limit) running = false;
            if (!running && step + 1 < u.steps) continue;
            Sums sums;
            long count = differentiate(step, sums);
            valid = count > 0;
            o.kl = mean(sums.kl), o.clipped = mean(sums.clipped);
            o.entropy = mean(sums.entropy), o.value_loss = mean(sums.value_loss);
            o.norm = norm(s.grad, size);
            if (!running) break;
            o.end = step;
            o.exceeds = !critic && stops_early(t) && o.kl > t.target_kl;
            o.finite = std::isfinite(o.norm);
            running = !o.exceeds && o.finite;
            if (!running) continue;
            o.end = step + 1;
            if (!count) continue;
            o.updates++;
            adam(u.adam[g], (long)u.adam_steps[g] + o.updates, o.norm, t.max_grad_norm, size,
                 s.grad, w, m, v);
            if (n.chain.empty() && options.empty() && !critic)
                for (long j = 0; j < n.out; j++) {  // larger deviations would saturate tanh
                    float& log_std = w[n.log_std + j];
                    if (log_std > highest_log_std) log_std = highest_log_std;
                }
        }
        if (limit == 0) o.end = 0;
        if (!critic && options.empty() && valid) {
            // The Gaussian's entropy is that after the update, the same in all rows.
            for (long j = 0; j < n.out; j++) o.entropy += w[n.log_std + j];
            o.entropy += n.out * (0.5f + 0.918938533204672742f);
        }
        return o;
    }
};

// A call's memory: the networks' private copies, then a workspace for each thread.
struct Memory {
    Layout kinds[2];
    long copy, copies, workspace;
    explicit Memory(const Update& u)
        : kinds{layout(u, false, u.inputs[0]), layout(u, true, u.inputs[1])} {
        copy = 3 * u.sets * std::max(kinds[0].size, kinds[1].size);
        copies = 2 * u.slots * copy;
        Workspace s;
        workspace = std::max(s.cut(kinds[0], u.sets, u.side_columns, nullptr),
                             s.cut(kinds[1], u.sets, u.side_columns, nullptr));
    }
    long size(long threads) const { return copies + threads * workspace; }
};

static void update(const Update& u) {
    Memory memory(u);
    std::vector<Outcome> outcomes(2 * u.slots);
    std::vector<long> columns(2 * u.slots);
    auto with_network = [&](long g, bool critic, int worker, auto&& use) {
        const Layout n = layout(u, critic, columns[critic * u.slots + g]);
        Workspace s;
        s.cut(n, u.sets, u.side_columns, u.scratch + memory.copies + worker * memory.workspace);
        float* own = u.scratch + (critic * u.slots + g) * memory.copy;
        Network network(u, n, s, g, critic, own);
        use(network, outcomes[critic * u.slots + g]);
    };
    run_tasks(2 * u.slots, u.threads, [&](long task, int) {
        columns[task] = columns_read(u, task % u.slots, task >= u.slots);
    });
    run_tasks(2 * u.slots, u.threads, [&](long task, int worker) {
        long g = task % u.slots;
        bool critic = task >= u.slots;
        // With a target KL, the critic waits: the actor is likely to stop early.
        if (!u.learns[g] || (critic && stops_early(u.numbers[g]))) return;
        with_network(g, critic, worker, [&](Network& network, Outcome& o) {
            o = network.train(u.steps);
        });
    });
    run_tasks(u.slots, u.threads, [&](long g, int worker) {
        if (!u.learns[g]) return;
        Outcome &actor = outcomes[g], &critic = outcomes[u.slots + g];
        auto up_to = [&](bool which, long limit) {
            with_network(g, which, worker, [&](Network& network, Outcome& o) {
                o = network.train(limit);
            });
        };
        if (critic.end < 0 || critic.end > actor.end) up_to(true, actor.end);
        bool critic_first = critic.end < actor.end;
        u.diverged[g] = critic_first || (!actor.finite && !actor.exceeds);
        if (critic_first) up_to(false, critic.end);
        PPOStats& stats = u.stats[g];
        stats.value_loss = critic.value_loss, stats.entropy = actor.entropy;
        stats.approx_kl = actor.kl, stats.clip_fraction = actor.clipped;
        stats.actor_norm = actor.norm, stats.critic_norm = critic.norm;
        stats.updates = actor.updates;
        for (bool which : {false, true})
            with_network(g, which, worker, [](Network& network, Outcome&) { network.bring(true); });
    });
}
