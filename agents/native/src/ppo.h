// All gradient steps of PPO that follow a rollout. (agents/algorithms/ppo.py is the reference.)
//
// Actor and critic of a member meet in one point: both stop at the step at which the KL divergence
// exceeds its target, or at which either gradient is not finite. So each of them trains a copy by
// itself, and the one that went further is trained again, up to the step at which the other one
// stopped. A task trains one network from the first minibatch to the last. Where there are more
// threads than networks, all make each step together, and a task differentiates a part of a
// minibatch. A gradient is the sum over the same parts in both cases.

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

// Chunks of rows in a part of a minibatch: enough that the sum over parts costs little.
constexpr long CHUNKS_PER_PART = 4;

// The actor or the critic of a member; of policies per seat, both of its sets of weights, which
// have one loss.
class Network {
    const Update& u;
    const Layout n;
    const long g, size;  // size: floats of all its sets of weights
    const bool critic;
    float *w, *m, *v, *grad;
    Terms t;
    std::vector<long> options;
    // Of the present minibatch: its rows by set of weights, how many are valid, and sums by part.
    std::vector<std::vector<int64_t>> own;
    long count = 0;
    std::vector<Sums> sums;
    long limit = 0;        // minibatches to learn from
    bool running = false;

    // Copy the chunk's rows of the rollout to s.obs or s.planes, s.side, s.live and s.mask.
    void gather(const Workspace& s, const int64_t* rows, long count) const {
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
        if (n.recurrent()) gather_states(s, rows, count);
    }

    // Copy where episodes start, and the states before the chunk's sequences.
    void gather_states(const Workspace& s, const int64_t* rows, long count) const {
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
        return u.byte_obs ? ((const uint8_t*)u.obs)[at] != 0 : ((const float*)u.obs)[at] > 0.5f;
    }

    // Bring what a workspace keeps of a set of weights up to date.
    void prepare(const Workspace& s, long k) const {
        ::prepare(n, w + k * n.size, s);
        if (n.images)
            s.planes.set_normaliser(*n.images, u.state_avg + g * u.obs_columns,
                                    u.state_std + g * u.obs_columns);
    }

    // The gradient of a part of the rows of set k, to `grad` of all sets.
    void differentiate(Workspace s, long k, long part, float* grad) {
        const std::vector<int64_t>& rows = own[k];
        const float* w = this->w + k * n.size;
        s.grad = grad + k * n.size;
        begin(n, s);
        Sums& sums = this->sums[part * u.sets + k] = {};
        const long most = CHUNKS_PER_PART * n.chunk, end = (long)rows.size();
        for (long first = part * most; first < std::min((part + 1) * most, end); first += n.chunk) {
            const long here = std::min(n.chunk, end - first);
            gather(s, &rows[first], here);
            forward(n, w, s, here);
            Chunk chunk{n, s, here, u.side_columns};
            if (critic) value_loss(chunk, t, sums);
            else if (options.empty()) gaussian_loss(chunk, t, w, sums);
            else choices_loss(chunk, t, w, options, u.masked, sums);
            backward(n, w, s, here);
        }
        finish(n, s);
    }

    void add_to_gradient(const float* more, long k) {
        for (long i = k * n.size; i < (k + 1) * n.size; i += WIDTH)
            store(grad + i, load(grad + i) + load(more + i));
    }

    float mean(const Sum& sum) const { return sum.total() * (1.0f / t.minibatch) * t.valid_scale; }

public:
    Outcome o;

    Network(const Update& u, const Layout& n, long g, bool critic, float* own)
        : u(u), n(n), g(g), size(u.sets * n.size), critic(critic), w(own), m(own + size),
          v(own + 2 * size), grad(own + 3 * size), t{u.numbers[g], (float)u.minibatch, 1.0f},
          own(u.sets), sums(u.sets * parts(u, n)) {
        for (long k = 0; k < u.choices; k++) options.push_back(u.options[k]);
    }

    // Parts of a minibatch; if it has rows of several sets, some may be empty.
    static long parts(const Update& u, const Layout& n) {
        const long most = CHUNKS_PER_PART * n.chunk;
        return (u.minibatch + most - 1) / most;
    }

    const Layout& sizes() const { return n; }

    void bring(bool back) {
        float *flat[] = {u.flat, u.m, u.v}, *own[] = {w, m, v};
        for (int i = 0; i < 3; i++)
            for (long k = 0; k < u.sets; k++) {
                float* there = flat[i] + ((critic * u.slots + g) * u.sets + k) * u.stride;
                if (back) exchange<false>(n, u.places[critic], there, own[i] + k * n.size);
                else exchange<true>(n, u.places[critic], there, own[i] + k * n.size);
            }
    }

    // Start from the network's state before the rollout, for `most` minibatches at most.
    void start(long most) {
        bring(false);
        o = {};
        limit = most, running = true;
        if (limit == 0) o.end = 0;
    }

    // Begin a step. Returns whether it is made.
    bool begin_step(long step) {
        // Of minibatches that are not learned from, the last one is looked at for statistics.
        if (step == limit) running = false;
        if (!running && step + 1 < u.steps) return false;
        const int64_t* rows = u.rows + (step * u.slots + g) * u.minibatch;
        count = 0;
        for (long r = 0; r < u.minibatch; r++) count += valid(rows[r]);
        t.valid_scale = loses() ? (float)u.minibatch / (count ? count : 1) : 1.0f;
        // Step by step, of as many sequences as pass through the network together.
        const long sequences = u.minibatch / n.steps;
        for (auto& of_set : own) of_set.clear();
        for (long first = 0; first < sequences; first += n.together)
            for (long t = 0; t < n.steps; t++) {
                const int64_t* of_step = rows + t * sequences;
                for (long r = first; r < std::min(first + n.together, sequences); r++)
                    own[set(of_step[r])].push_back(of_step[r]);
            }
        return true;
    }

    // The whole gradient of a step.
    void differentiate_all(const Workspace& s) {
        for (long k = 0; k < u.sets; k++) {
            prepare(s, k);
            for (long part = 0; part < parts(u, n); part++) {
                differentiate(s, k, part, part ? s.grad : grad);
                if (part) add_to_gradient(s.grad, k);
            }
        }
    }

    // That of one part, to an array for it; `gather_parts` adds them up.
    void differentiate_part(const Workspace& s, long part) {
        for (long k = 0; k < u.sets; k++) {
            prepare(s, k);
            differentiate(s, k, part, grad + part * size);
        }
    }
    void gather_parts() {
        for (long part = 1; part < parts(u, n); part++)
            for (long k = 0; k < u.sets; k++) add_to_gradient(grad + part * size, k);
    }

    // Learn from the gradient.
    void end_step(long step) {
        for (size_t k = 1; k < sums.size(); k++) sums[0].add(sums[k]);
        o.kl = mean(sums[0].kl), o.clipped = mean(sums[0].clipped);
        o.entropy = mean(sums[0].entropy), o.value_loss = mean(sums[0].value_loss);
        o.norm = norm(grad, size);
        if (running) learn(step);
        if (step + 1 == u.steps && !critic && options.empty() && count) {
            // The Gaussian's entropy is that after the update, the same in all rows.
            for (long j = 0; j < n.out; j++) o.entropy += w[n.log_std + j];
            o.entropy += n.out * (0.5f + HALF_LOG_2PI);
        }
    }

    void train(long most, const Workspace& s) {
        start(most);
        for (long step = 0; step < u.steps; step++)
            if (begin_step(step)) differentiate_all(s), end_step(step);
    }

private:
    void learn(long step) {
        o.end = step;
        o.exceeds = !critic && stops_early(t) && o.kl > t.target_kl;
        o.finite = std::isfinite(o.norm);
        running = !o.exceeds && o.finite;
        if (!running) return;
        o.end = step + 1;
        if (!count) return;
        o.updates++;
        adam(u.adam[g], (long)u.adam_steps[g] + o.updates, o.norm, t.max_grad_norm, size, grad, w, m,
             v);
        const float highest_log_std = std::max(t.initial_log_std, 0.0f);
        if (n.chain.empty() && options.empty() && !critic)
            for (long j = 0; j < n.out; j++) {  // larger deviations would saturate tanh
                float& log_std = w[n.log_std + j];
                if (log_std > highest_log_std) log_std = highest_log_std;
            }
    }
};

// A call's memory: the networks' private copies, then a workspace for each thread.
struct Memory {
    Layout kinds[2];
    bool together;  // whether all networks make each step together
    long copy, copies, workspace;
    explicit Memory(const Update& u)
        : kinds{layout(u, false, u.inputs[0]), layout(u, true, u.inputs[1])} {
        const long parts = Network::parts(u, kinds[0]);
        together = 2 * u.slots < u.threads && parts > 1;
        // Weights, two moments, and gradients.
        copy = (3 + (together ? parts : 1)) * u.sets * std::max(kinds[0].size, kinds[1].size);
        copies = 2 * u.slots * copy;
        Workspace s;
        workspace = std::max(s.cut(kinds[0], u.sets, u.side_columns, nullptr),
                             s.cut(kinds[1], u.sets, u.side_columns, nullptr));
    }
    long size(long threads) const { return copies + threads * workspace; }
};

static void update(const Update& u) {
    const Memory memory(u);
    std::vector<std::unique_ptr<Network>> networks(2 * u.slots);  // actors, then critics
    run_tasks(2 * u.slots, u.threads, [&](long task, int) {
        const long g = task % u.slots;
        const bool critic = task >= u.slots;
        const Layout n = layout(u, critic, columns_read(u, g, critic));
        float* own = u.scratch + task * memory.copy;
        networks[task] = std::make_unique<Network>(u, n, g, critic, own);
    });
    auto workspace = [&](const Network& network, int worker) {
        Workspace s;
        s.cut(network.sizes(), u.sets, u.side_columns,
              u.scratch + memory.copies + worker * memory.workspace);
        return s;
    };
    struct Run { Network& network; long limit; };
    auto train = [&](const std::vector<Run>& runs) {
        if (!memory.together) {
            run_tasks(runs.size(), u.threads, [&](long task, int worker) {
                auto [network, limit] = runs[task];
                network.train(limit, workspace(network, worker));
            });
            return;
        }
        run_tasks(runs.size(), u.threads, [&](long task, int) {
            runs[task].network.start(runs[task].limit);
        });
        const long parts = Network::parts(u, memory.kinds[0]);
        std::vector<Network*> making;
        for (long step = 0; step < u.steps; step++) {
            making.clear();
            for (const Run& run : runs)
                if (run.network.begin_step(step)) making.push_back(&run.network);
            run_tasks(making.size() * parts, u.threads, [&](long task, int worker) {
                Network& network = *making[task / parts];
                network.differentiate_part(workspace(network, worker), task % parts);
            });
            run_tasks(making.size(), u.threads, [&](long task, int) {
                making[task]->gather_parts();
                making[task]->end_step(step);
            });
        }
    };
    std::vector<Run> first, critics, actors;
    for (long g = 0; g < u.slots; g++) {
        if (!u.learns[g]) continue;
        first.push_back({*networks[g], u.steps});
        // With a target KL, the critic waits: the actor is likely to stop early.
        if (!stops_early(u.numbers[g])) first.push_back({*networks[u.slots + g], u.steps});
    }
    train(first);
    auto each = [&](auto&& use) {
        for (long g = 0; g < u.slots; g++)
            if (u.learns[g]) use(g, *networks[g], *networks[u.slots + g]);
    };
    each([&](long, Network& actor, Network& critic) {
        if (critic.o.end < 0 || critic.o.end > actor.o.end) critics.push_back({critic, actor.o.end});
    });
    train(critics);
    each([&](long g, Network& actor, Network& critic) {
        const bool critic_first = critic.o.end < actor.o.end;
        u.diverged[g] = critic_first || (!actor.o.finite && !actor.o.exceeds);
        if (critic_first) actors.push_back({actor, critic.o.end});
    });
    train(actors);
    run_tasks(u.slots, u.threads, [&](long g, int) {
        if (!u.learns[g]) return;
        const Outcome &actor = networks[g]->o, &critic = networks[u.slots + g]->o;
        PPOStats& stats = u.stats[g];
        stats.value_loss = critic.value_loss, stats.entropy = actor.entropy;
        stats.approx_kl = actor.kl, stats.clip_fraction = actor.clipped;
        stats.actor_norm = actor.norm, stats.critic_norm = critic.norm;
        stats.updates = actor.updates;
        for (bool which : {false, true}) networks[which * u.slots + g]->bring(true);
    });
}
