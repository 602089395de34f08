// The reward of a step: `Reward.of`, whose docstring has the formula.

#pragma once

#include "orders.h"

// Rows r … r + count - 1, count <= WIDTH. `growth` must contain Δlog E and Δlog V.
DEVICE static inline void reward(const State& s, long r, int count, float* out) {
    const long R = s.stride;
    vec b = load(s.growth + r, count), x = load(s.growth + R + r, count);
    vec reward = x * load(s.growth_weights + R + r, count) +
                 b * load(s.growth_weights + r, count);
    if (s.decays) {
        vec age = all(0.0);  // steps before this one
        for (int i = 0; i < count; i++) age[i] = (double)(s.start[r + i] - s.place[r + i] - 1);
        vec weight = 1.0 - age * load(s.inverse_length + r, count);
        reward = reward * larger_of(load(s.floor + r, count), weight);
    }
    vec V = load(s.total + R + r, count);
    if (s.penalises_drawdown) {
        vec peak = larger_of(load(s.peak + r, count), V), drawdown = 1.0 - V / peak;
        vec increase = no_less(drawdown - load(s.drawdown + r, count), all(0.0));
        reward = reward - load(s.drawdown_penalty + r, count) * increase;
        store(s.peak + r, count, peak);
        store(s.drawdown + r, count, drawdown);
    }
    if (s.penalises_state) {
        reward = reward - load(s.volatility_penalty + r, count) * (x * x);
        vec heaviest = magnitude(load(s.worth + r, count));
        for (int a = 1; a < s.assets; a++)
            heaviest = larger_of(heaviest, magnitude(load(s.worth + a * R + r, count)));
        vec excess = heaviest / V - load(s.concentration_limit + r, count);
        reward = reward - load(s.concentration_penalty + r, count) * no_less(excess, all(0.0));
        vec missing = load(s.cash_reserve + r, count) - load(s.cash + r, count) / V;
        reward = reward - load(s.cash_penalty + r, count) * no_less(missing, all(0.0));
    }
    for (int i = 0; i < count; i++) out[i] = (float)reward[i];
}
