// Gradient steps of SAC. (agents/algorithms/sac.py is the reference.)
//
// With the actor's outputs μ and log σ (cut to a range), and normal numbers ε:
//     a = tanh u,  u = μ + σ ε,  log π(a|s) = -Σ_j [log σ_j + log(2π)/2 + log(1.000001 - a_j²)]

#pragma once

#include "off_policy.h"

// Sums over a member's gradient steps, and their number; names as in `SACStats`.
struct SACStats {
    float critic_loss, value, entropy, alpha, critic_norm, actor_norm, updates;
};

class SoftActorCritic : Learner {
    static constexpr float LOWEST_STD = -16, HIGHEST_STD = 2, LOWEST_ALPHA = -16, HIGHEST_ALPHA = 2;

    Own critic, target, actor;
    // Of all chunks: ε and a, columns x CHUNK each. Of one: log π; dL/da, rows x padded columns.
    // The target's weights on actions, transposed. log α, its moments and gradient.
    float *noise, *action, *log_prob, *d_action, *weights_on_actions;
    float *alpha, *alpha_m, *alpha_v, *alpha_grad;
    long alpha_made = 0;

    static Layout critic_layout(const Replayed& u) {
        return Layout(u.obs_columns + u.actions, u.width, u.depth, {2}, u.activation, false);
    }
    // Actors read the same rows as critics, without the actions at their ends.
    static Layout actor_layout(const Replayed& u) {
        Layout n(u.obs_columns, u.width, u.depth, {2 * u.actions}, u.activation, false);
        n.x_row = critic_layout(u).x_row;
        return n;
    }

    // s as the actor's workspace, with the rows of observations in x.
    static Workspace reading(Workspace s, float* x) { s.x = x; return s; }

    float* chunk_of(float* columns, long k) const { return columns + k * u.actions * CHUNK; }

    // Read the normal numbers `which` (0: of next actions, 1: of actions) of a chunk.
    void draw(long step, int which, long k, long first, long count) {
        const float* from =
            u.noise + (((step * 2 + which) * u.slots + g) * u.minibatch + first) * u.actions;
        float* into = chunk_of(noise, k);
        for (long r = 0; r < count; r++)
            for (long j = 0; j < u.actions; j++) into[j * CHUNK + r] = *from++;
    }

    vec log_std(const Workspace& s, long j, long r) const {
        vec raw = load(s.y + (u.actions + j) * CHUNK + r);
        return at_most(at_least(raw, all(LOWEST_STD)), all(HIGHEST_STD));
    }

    // Actions from the actor's outputs in s, to the columns of chunk k and behind the observations
    // in s.x, and log π.
    void sample(const Workspace& s, long k, long count) {
        float *e = chunk_of(noise, k), *a = chunk_of(action, k);
        for (long r = 0; r < count; r += WIDTH) {
            vec sum = vec{};
            for (long j = 0; j < u.actions; j++) {
                vec spread = log_std(s, j, r);
                vec one = hyperbolic_tangent(
                    fma(exponential(spread), load(e + j * CHUNK + r), load(s.y + j * CHUNK + r)));
                store(a + j * CHUNK + r, one);
                sum += spread + HALF_LOG_2PI + logarithm(1.000001f - one * one);
            }
            store(log_prob + r, -sum);
        }
        for (long r = 0; r < count; r++)
            for (long j = 0; j < u.actions; j++)
                s.x[r * critic.n.x_row + u.obs_columns + j] = a[j * CHUNK + r];
    }

    float temperature() const { return exponential(all(*alpha))[0]; }

    // y = r + γ (min Q_target(s', a') - α log π(a'|s')), and the gradient of both values' losses.
    void critic_loss(long count, float alpha_now, Sum& losses) {
        const float *next = target.s.y, *now = critic.s.y;
        for (long r = 0; r < count; r += WIDTH) {
            vec least = at_most(value(load(next + r)), value(load(next + CHUNK + r)));
            vec wanted = label(r, least - load(log_prob + r) * alpha_now);
            for (long k : {0, 1}) {
                vec q = value(load(now + k * CHUNK + r));
                store(critic.s.d_output + k * CHUNK + r, smooth_l1(r, q, wanted, losses));
            }
        }
    }

    // One step of log α down the gradient of -log α (target entropy + log π); returns whether
    // that is finite.
    bool tune(float mean_log_prob) {
        *alpha_grad = -(t.target_entropy * u.actions + mean_log_prob);
        float size = std::fabs(*alpha_grad);
        if (!std::isfinite(size)) return false;
        adam(u.alpha.adam[g], (long)u.alpha.before[g] + ++alpha_made, size, t.max_grad_norm, LANES,
             alpha_grad, alpha, alpha_m, alpha_v);
        return true;
    }

    // The target's weights on actions, so that a product with the first layer's derivatives gives
    // those by the actions.
    void turn_weights_on_actions() {
        const Layout& n = target.n;
        for (long q = 0; q < padded(u.actions); q += PANEL)
            for (long j = 0; j < n.width; j++) {
                const float* column = target.w + n.weight[0] + j / PANEL * n.in * PANEL + j % PANEL;
                const float* first = column + (u.obs_columns + q) * PANEL;
                float* into = weights_on_actions + q * n.width + j * PANEL;
                for (long i = 0; i < PANEL; i++)
                    into[i] = q + i < u.actions ? first[i * PANEL] : 0.0f;
            }
    }

    // d_action = dL/da of L = -mean Q_target(s, a), over rows and both values.
    void differentiate_target(long count) {
        const Layout& n = target.n;
        float d = -t.value_std / (2 * u.minibatch);
        for (long r = 0; r < count; r++) target.s.d_output[r] = target.s.d_output[CHUNK + r] = d;
        descend(n, target.w, target.s, count, [&](long l, const float* delta) {
            long columns = padded(u.actions);
            if (!l)
                multiply({count, columns / PANEL, n.width, {delta, n.row, 1},
                          {weights_on_actions, n.width * PANEL, PANEL}, {d_action, PANEL, columns},
                          nullptr, false, After::nothing, {}});
        });
    }

    // The gradient of α log π(a|s) - Q_target(s, a) by the actor's outputs:
    //     dL/da = -dQ/da + α 2a / (1.000001 - a²),   dL/dμ = dL/du = dL/da (1 - a²)
    //     dL/d(log σ) = dL/du σ ε - α, and 0 where log σ was cut
    void actor_loss(const Workspace& s, long k, long count, float alpha_now) {
        const float *e = chunk_of(noise, k), *a = chunk_of(action, k);
        const float share = alpha_now / u.minibatch;
        for (long r = 0; r < count; r += WIDTH)
            for (long j = 0; j < u.actions; j++) {
                vec one = load(a + j * CHUNK + r), square = one * one, d_q;
                for (int i = 0; i < WIDTH; i++) d_q[i] = d_action[(r + i) * padded(u.actions) + j];
                vec d = fma(one * (2 * share), 1.0f / (1.000001f - square), d_q) * (1.0f - square);
                vec raw = load(s.y + (u.actions + j) * CHUNK + r), spread = log_std(s, j, r);
                vec d_spread = fma(d * exponential(spread), load(e + j * CHUNK + r), all(-share));
                ivec on = is_live(r);
                store(s.d_output + j * CHUNK + r, choose(on, d, vec{}));
                store(s.d_output + (u.actions + j) * CHUNK + r,
                      choose(on & ((raw == spread) | (raw != raw)), d_spread, vec{}));
            }
    }

public:
    using Stats = SACStats;

    SoftActorCritic(const Replayed& u, long g, float*& at)
        : Learner(u, g, at), critic(critic_layout(u), u.critic, g, at, chunks()),
          target(critic_layout(u), u.target, g, at),
          actor(actor_layout(u), u.actor, g, at, chunks()) {
        auto part = [&at](long size) { float* here = at; at += padded(size, 64); return here; };
        noise = part(chunks() * u.actions * CHUNK);
        action = part(chunks() * u.actions * CHUNK);
        log_prob = part(CHUNK);
        d_action = part(CHUNK * padded(u.actions));
        weights_on_actions = part(padded(u.actions) * u.width);
        alpha = part(LANES), alpha_m = part(LANES), alpha_v = part(LANES), alpha_grad = part(LANES);
    }

    void bring(bool back) {
        float* there[] = {u.alpha.flat, u.alpha.m, u.alpha.v, nullptr};
        float* here[] = {alpha, alpha_m, alpha_v, alpha_grad};
        for (int i = 0; i < 4; i++) {
            if (!back) memset(here[i], 0, LANES * sizeof(float));
            if (!there[i]) continue;
            if (back) there[i][g * u.alpha.stride] = *here[i];
            else *here[i] = there[i][g * u.alpha.stride];
        }
        if (back) u.alpha.made[g] = alpha_made;
        else invert();
        for (Own* one : {&critic, &target, &actor}) one->bring(back);
    }

    bool step(long step, Stats& stats) {
        Sum losses, values, log_probs;
        float alpha_now = temperature();
        critic.clear_gradient();
        in_chunks([&](long k, long first, long count) {
            Workspace now = critic.s.chunk(critic.n, k), next = target.s;
            gather(step, first, count, critic.n, now.x, next.x);
            Workspace acting = reading(actor.s.chunk(actor.n, k), next.x);
            draw(step, 0, k, first, count);
            forward(actor.n, actor.w, acting, count);
            sample(acting, k, count);
            forward(target.n, target.w, next, count);
            forward(critic.n, critic.w, reading(critic.s, now.x), count);
            critic_loss(count, alpha_now, losses);
            backward(critic.n, critic.w, reading(critic.s, now.x), count);
        });
        float critic_norm = critic.step(t.max_grad_norm);
        if (!std::isfinite(critic_norm)) return false;
        target.follow(critic, t.soft_update_tau);

        in_chunks([&](long k, long first, long count) {
            set_live(count);
            Workspace acting = reading(actor.s.chunk(actor.n, k), critic.s.chunk(critic.n, k).x);
            draw(step, 1, k, first, count);
            forward(actor.n, actor.w, acting, count);
            sample(acting, k, count);
            for (long r = 0; r < count; r += WIDTH)
                log_probs.add(r, choose(is_live(r), load(log_prob + r), vec{}));
        });
        if (!tune(mean(log_probs))) return false;
        alpha_now = temperature();  // as in ElegantRL, before it is cut
        if (*alpha < LOWEST_ALPHA) *alpha = LOWEST_ALPHA;
        if (*alpha > HIGHEST_ALPHA) *alpha = HIGHEST_ALPHA;

        actor.clear_gradient();
        turn_weights_on_actions();
        in_chunks([&](long k, long, long count) {
            set_live(count);
            Workspace acting = reading(actor.s.chunk(actor.n, k), critic.s.chunk(critic.n, k).x);
            forward(target.n, target.w, reading(target.s, acting.x), count);
            for (long r = 0; r < count; r += WIDTH) {
                vec q = value(load(target.s.y + r)) + value(load(target.s.y + CHUNK + r));
                values.add(r, choose(is_live(r), q * 0.5f, vec{}));
            }
            differentiate_target(count);
            actor_loss(acting, k, count, alpha_now);
            backward(actor.n, actor.w, acting, count);
        });
        float actor_norm = actor.step(t.max_grad_norm);
        if (!std::isfinite(actor_norm)) return false;
        stats.critic_loss += mean(losses), stats.value += mean(values);
        stats.entropy += -mean(log_probs), stats.alpha += alpha_now;
        stats.critic_norm += critic_norm, stats.actor_norm += actor_norm;
        return true;
    }
};
