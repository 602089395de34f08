// A layer that all entities of an observation share. (agents/networks/entities.py)
//
//     v_e = max(x_e W + b, 0)
//
// Observations are read in the order of `arrange`: the columns of each entity, then the others. The
// first hidden layer reads z: v_e of all entities, then the other columns.

#pragma once

#include "product.h"

// Which columns are whose, filled by agents/native/kernels.py. (envs/core/entities.py)
struct Entities {
    int64_t count, columns, width;  // columns of an entity; width of its vector, in whole panels
    int64_t pieces;
    const int64_t* piece;           // (pieces, 2): first column and columns, in the order of `arrange`

    long own() const { return count * columns; }
    long vectors() const { return count * width; }
    long inputs(long all) const { return all - own() + vectors(); }  // of `all` columns
};

// A row of `all` columns as the layer reads it: the columns of each entity, then the others. Vectors
// are copied whole: what spills over is overwritten, or in the PANEL floats behind the row.
static void arrange(const Entities& n, const float* from, long all, float* to) {
    for (long k = 0; k < n.pieces; k++) {
        const long first = n.piece[2 * k], size = n.piece[2 * k + 1];
        long i = 0;
        for (; i < size && first + i + WIDTH <= all; i += WIDTH)
            store(to + i, load(from + first + i));
        for (; i < size; i++) to[i] = from[first + i];
        to += size;
    }
}

// z (z_row floats between rows) of arranged rows x of `all` columns.
static void encode(const Entities& n, const float* weight, const float* bias, const float* x,
                   long x_row, long all, float* z, long z_row, long rows) {
    for (long e = 0; e < n.count; e++)
        multiply({rows, n.width / PANEL, n.columns, {x + e * n.columns, x_row, 1},
                  {weight, n.columns * PANEL, PANEL}, {z + e * n.width, PANEL, z_row}, bias, false,
                  After::relu, {}});
    for (long r = 0; r < rows; r++)
        memcpy(z + r * z_row + n.vectors(), x + r * x_row + n.own(), (all - n.own()) * sizeof(float));
}

// Add the gradients of weight and bias, given those of the vectors (z_row floats between rows).
static void add_gradients(const Entities& n, const float* x, long x_row, const float* d_z,
                          long z_row, long rows, float* weight, float* bias) {
    for (long e = 0; e < n.count; e++) {
        add_columns(d_z + e * n.width, z_row, rows, n.width / PANEL, bias);
        multiply({n.columns, n.width / PANEL, rows, {x + e * n.columns, 1, x_row},
                  {d_z + e * n.width, PANEL, z_row}, {weight, n.columns * PANEL, PANEL}, nullptr,
                  true, After::nothing, {}});
    }
}
