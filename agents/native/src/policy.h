// The outputs of actors and critics for many rows: no gradients, and nothing kept.

#pragma once

#include "network.h"
#include "pool.h"

// The arguments, as agents/native/kernels.py fills them. (G slots.)
struct Outputs {
    int64_t slots, rows, width, depth, in, out;
    int64_t obs_stride, stride, out_stride;  // floats between members' observations, networks, …
    int64_t obs_row;                         // floats between rows of observations
    const float* obs;
    const float* weights;                    // of the first network
    const int64_t* places;                   // of its parts: `exchange`
    float* outputs;
    int64_t threads;
};

// Copy a matrix (rows, columns) to panels, the last one filled up with zeros.
static void pack(const float* from, long rows, long columns, float* to) {
    for (long q = 0; q < columns; q += PANEL)
        for (long r = 0; r < rows; r++)
            for (long j = 0; j < PANEL; j++)
                *to++ = q + j < columns ? from[r * columns + q + j] : 0.0f;
}

static void outputs(const Outputs& o) {
    long height = padded(o.width), out_height = padded(o.out), row = height + PANEL;
    bool whole = height == o.width;  // then products read the weights as they are
    long chunks = (o.rows + CHUNK - 1) / CHUNK;
    Pool::get().run(o.slots * chunks, o.threads, [&](long task, int) {
        long g = task / chunks, first = task % chunks * CHUNK;
        long rows = std::min(CHUNK, o.rows - first);
        // Weights, biases, two layers of activations, and outputs.
        long panels = std::max({whole ? 0 : std::max(o.in, o.width) * height, o.width * out_height});
        static thread_local std::vector<float> memory;
        memory.resize(panels + std::max(height, out_height) + CHUNK * (2 * row + out_height) + PANEL);
        float* packed = (float*)(((uintptr_t)memory.data() + 63) / 64 * 64);
        float* bias = packed + panels;
        float *x = bias + std::max(height, out_height), *next = x + CHUNK * row;
        float* last = next + CHUNK * row;
        const float* w = o.weights + g * o.stride;
        const float* obs = o.obs + g * o.obs_stride + first * o.obs_row;
        Left below{obs, o.obs_row, 1};
        for (long l = 0; l < o.depth; l++) {
            long in = l ? o.width : o.in;
            const float* matrix = w + o.places[l];
            Panels<const float> b{matrix, PANEL, o.width};
            if (!whole) {
                pack(matrix, in, o.width, packed);
                b = {packed, in * PANEL, PANEL};
            }
            pack(w + o.places[o.depth + l], 1, o.width, bias);
            multiply({rows, height / PANEL, in, below, b, {next, PANEL, row}, bias, false,
                      After::relu, {}});
            below = {next, row, 1};
            std::swap(x, next);
        }
        pack(w + o.places[2 * o.depth], o.width, o.out, packed);
        pack(w + o.places[2 * o.depth + 1], 1, o.out, bias);
        multiply({rows, out_height / PANEL, o.width, below, {packed, o.width * PANEL, PANEL},
                  {last, PANEL, out_height}, bias, false, After::nothing, {}});
        float* into = o.outputs + g * o.out_stride + first * o.out;
        for (long r = 0; r < rows; r++)
            memcpy(into + r * o.out, last + r * out_height, o.out * sizeof(float));
    });
}
