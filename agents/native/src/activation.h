// The functions between the layers of a network, and their derivatives.
// (agents/networks/activation.py is the reference.)

#pragma once

#include "vector.h"

enum class Activation : int64_t { relu, tanh, silu, elu };  // as `ACTIVATIONS`

// e^z - 1 = tanh(z / 2) (e^z + 1), which keeps the digits of numbers near 0.
static inline vec exponential_minus_1(vec z) {
    return hyperbolic_tangent(z * 0.5f) * (exponential(z) + 1.0f);
}

// Replace sums z by f(z), and write f'(z) to `slope` unless it is null; (rows, columns) numbers,
// columns a multiple of 16, `row` floats between rows. Not for ReLU, which products apply.
template <typename F>
static inline void apply(F f, float* z, float* slope, long row, long rows, long columns) {
    for (long r = 0; r < rows; r++)
        for (long i = r * row; i < r * row + columns; i += WIDTH) {
            vec x, d;
            f(load(z + i), x, d);
            store(z + i, x);
            if (slope) store(slope + i, d);
        }
}

static void activate(Activation kind, float* z, float* slope, long row, long rows, long columns) {
    switch (kind) {
    case Activation::relu:
        return;
    case Activation::tanh:
        return apply([](vec z, vec& x, vec& d) {
            x = hyperbolic_tangent(z);
            d = fma(-x, x, all(1.0f));
        }, z, slope, row, rows, columns);
    case Activation::silu:
        return apply([](vec z, vec& x, vec& d) {
            vec gate = sigmoid(z);
            x = z * gate;
            d = fma(x, 1.0f - gate, gate);
        }, z, slope, row, rows, columns);
    case Activation::elu:
        return apply([](vec z, vec& x, vec& d) {
            vec low = exponential_minus_1(z);
            x = choose(z > 0, z, low);
            d = choose(z > 0, all(1.0f), low + 1.0f);
        }, z, slope, row, rows, columns);
    }
}
