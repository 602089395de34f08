// Gradient steps of D3QN. (agents/algorithms/d3qn.py is the reference.)
//
// The outputs for a row are those of four heads, which share the layers below: options c_1 … c_A
// and level l of both values, k = 1, 2, with
//     Q_k(s, a) = c_a - mean c + l

#pragma once

#include "off_policy.h"

// Sums over a member's gradient steps, and their number; names as in `D3QNStats`.
struct D3QNStats {
    float critic_loss, value, critic_norm, updates;
};

class DuelingQ : Learner {
    Own net, target;

    static Layout layout(const Replayed& u) {
        return Layout(u.obs_columns, u.width, u.depth, {u.actions, 1, u.actions, 1}, u.activation,
                      true);
    }

    // Of rows r … of value `which`: the options' outputs, and Q - c.
    const float* options(const Own& of, int which, long r) const {
        return of.s.y + which * (u.actions + 1) * CHUNK + r;
    }
    vec level(const Own& of, int which, long r) const {
        const float* c = options(of, which, r);
        vec sum = vec{};
        for (long a = 0; a < u.actions; a++) sum += load(c + a * CHUNK);
        return load(c + u.actions * CHUNK) - sum / (float)u.actions;
    }

    // max_a min(Q_1(s', a), Q_2(s', a))
    vec best(long r) const {
        const float *first = options(target, 0, r), *second = options(target, 1, r);
        vec found = all(-__builtin_inff()), add[] = {level(target, 0, r), level(target, 1, r)};
        for (long a = 0; a < u.actions; a++) {
            vec one = value(load(first + a * CHUNK) + add[0]);
            vec other = value(load(second + a * CHUNK) + add[1]);
            found = at_least(at_most(one, other), found);
        }
        return found;
    }

    void loss(long count, Sum& losses, Sum& values) {
        for (long r = 0; r < count; r += WIDTH) {
            vec wanted = label(r, best(r)), taken = load(side + r);
            for (int which : {0, 1}) {
                const float* c = options(net, which, r);
                vec output = level(net, which, r);
                for (long a = 0; a < u.actions; a++)
                    output += choose(taken == (float)a, load(c + a * CHUNK), vec{});
                vec q = value(output), d = smooth_l1(r, q, wanted, losses);
                if (!which) values.add(r, choose(is_live(r), q, vec{}));
                // dQ/dc_i = [i = a] - 1/A, dQ/dl = 1
                float* into = net.s.d_output + (c - net.s.y);
                vec spread = d / (float)u.actions;
                for (long a = 0; a < u.actions; a++)
                    store(into + a * CHUNK, choose(taken == (float)a, d, vec{}) - spread);
                store(into + u.actions * CHUNK, d);
            }
        }
    }

public:
    using Stats = D3QNStats;

    DuelingQ(const Replayed& u, long g, float*& at)
        : Learner(u, g, at), net(layout(u), u.critic, g, at),
          target(layout(u), u.target, g, at) {}

    void bring(bool back) {
        if (!back) invert();
        for (Own* one : {&net, &target}) one->bring(back);
    }

    bool step(long step, Stats& stats) {
        Sum losses, values;
        net.clear_gradient();
        in_chunks([&](long, long first, long count) {
            gather(step, first, count, net.n, net.s.x, target.s.x);
            forward(target.n, target.w, target.s, count);
            forward(net.n, net.w, net.s, count);
            loss(count, losses, values);
            backward(net.n, net.w, net.s, count);
        });
        float size = net.step(t.max_grad_norm);
        if (!std::isfinite(size)) return false;
        target.follow(net, t.soft_update_tau);
        stats.critic_loss += mean(losses), stats.value += mean(values), stats.critic_norm += size;
        return true;
    }
};
