// Matrix products.
//
// Every element is one chain of fused multiply-adds in the order of the inner index,
//     c = fma(a_ip, b_pj, c),   p = 0, 1, …
// from a bias, zero, or what is there. So the sizes of tiles and vectors change no bit.

#pragma once

#include "vector.h"

constexpr int PANEL = 16;  // columns that lie next to each other

static inline long padded(long n, long to = PANEL) { return (n + to - 1) / to * to; }

// A[i][p] = at[i row + p step]; of several runs, A[i][k inner + p] = at[k run + i row + p step]
struct Left {
    const float* at;
    long row, step, run = 0;
};

// Rows in panels of 16 columns: element (r, 16 q + lane) = at[q panel + r row + lane]. Weights have
// row = 16, so a panel is contiguous; of activations, panel = 16. Of several runs, row k inner + r is
// row r behind k run.
template <typename T>
struct Panels {
    T* at;
    long panel, row, run = 0;
};

enum class After { nothing, relu, mask, slope };

struct Product {
    long rows, panels, inner;  // inner: of a run
    Left a;
    Panels<const float> b;
    Panels<float> c;
    const float* bias;  // 16 numbers per panel, what every row starts with; null: zero
    bool add;           // whether to start with what c holds, instead of the bias
    After after;
    // Of `After::mask`: the result is 0 where this is not above 0. Of `After::slope`: a factor.
    Panels<const float> kept;
    long runs = 1;  // parts of the inner index that lie apart
};

// Loops over the sums, or they would not stay in registers.
#define UNROLL _Pragma("GCC unroll 32")

template <bool RUNS, int ROWS, int N>
static inline void tile(const Product& x, long i, long q) {
    constexpr int PARTS = PANEL / WIDTH, V = N * PARTS;
    // Call `use` with row, vector and place of each sum.
    auto each = [&](const auto& m, auto use) {
        UNROLL for (int v = 0; v < V; v++) {
            auto* column = m.at + (q + v / PARTS) * m.panel + v % PARTS * WIDTH + i * m.row;
            UNROLL for (int r = 0; r < ROWS; r++) use(r, v, column + r * m.row);
        }
    };
    vec c[ROWS][V];
    if (x.add) each(x.c, [&](int r, int v, const float* at) { c[r][v] = load(at); });
    else
        UNROLL for (int v = 0; v < V; v++) {
            vec first = x.bias ? load(x.bias + q * PANEL + v * WIDTH) : vec{};
            UNROLL for (int r = 0; r < ROWS; r++) c[r][v] = first;
        }
    long k = 0;
    do {
        const float* b[N];
        for (int n = 0; n < N; n++) b[n] = x.b.at + (q + n) * x.b.panel + k * x.b.run;
        const float* a = x.a.at + i * x.a.row + k * x.a.run;
        for (long p = 0; p < x.inner; p++) {
            vec row[V];
            UNROLL for (int v = 0; v < V; v++) row[v] = load(b[v / PARTS] + v % PARTS * WIDTH);
            UNROLL for (int r = 0; r < ROWS; r++) {
                vec left = all(a[r * x.a.row]);
                UNROLL for (int v = 0; v < V; v++) c[r][v] = fma(left, row[v], c[r][v]);
            }
            for (int n = 0; n < N; n++) b[n] += x.b.row;
            a += x.a.step;
        }
    } while (RUNS && ++k < x.runs);
    // NaN stays: it must reach the gradient's norm.
    if (x.after == After::relu)
        each(x.c, [&](int r, int v, float*) { c[r][v] = at_least(c[r][v], vec{}); });
    if (x.after == After::mask)
        each(x.kept, [&](int r, int v, const float* at) {
            c[r][v] = choose(load(at) > 0, c[r][v], vec{});
        });
    if (x.after == After::slope)
        each(x.kept, [&](int r, int v, const float* at) { c[r][v] *= load(at); });
    each(x.c, [&](int r, int v, float* at) { store(at, c[r][v]); });
}

// The largest tile fills the registers: ROWS x N panels of sums, a row of b, a number of a.
template <bool RUNS, int N, int ROWS>
static inline void rows(const Product& x, long i, long q) {
    for (; i + ROWS <= x.rows; i += ROWS) tile<RUNS, ROWS, N>(x, i, q);
    if constexpr (ROWS > 1) {
        constexpr int FEWER = ROWS > 8 ? 8 : ROWS > 4 ? 4 : ROWS / 2;
        if (i < x.rows) rows<RUNS, N, FEWER>(x, i, q);
    }
}

template <bool RUNS>
static void multiply(const Product& x) {
    long q = 0;
    if constexpr (WIDTH == 16) {  // 32 registers
        // As few numbers as possible are read: of a for each row, of b a vector for each panel.
        for (; q + 4 <= x.panels; q += 4) rows<RUNS, 4, 6>(x, 0, q);
        switch (x.panels - q) {
            case 3: return rows<RUNS, 3, 8>(x, 0, q);
            case 2: return rows<RUNS, 2, 12>(x, 0, q);
            case 1: return rows<RUNS, 1, 12>(x, 0, q);
        }
    } else {
        for (; q < x.panels; q++) rows<RUNS, 1, 6>(x, 0, q);
    }
}

// Products of one run have code of their own: they are most, and the loop over runs costs some 5%.
static void multiply(const Product& x) { x.runs > 1 ? multiply<true>(x) : multiply<false>(x); }

// Turn 16 rows of 16 numbers (`row` floats between rows) into their columns, one behind the other.
static inline void turn(const float* from, long row, float* to) {
    for (int i = 0; i < PANEL; i += WIDTH)
        for (int j = 0; j < PANEL; j += 4) {
            vec a[4];  // of rows i + k, i + 4 + k, …, four numbers each
            for (int k = 0; k < 4; k++) a[k] = load_fours(from + (i + k) * row + j, 4 * row);
            const vec even[] = {first_pairs(a[0], a[2]), last_pairs(a[0], a[2])};
            const vec odd[] = {first_pairs(a[1], a[3]), last_pairs(a[1], a[3])};
            for (int k = 0; k < 2; k++) {
                store(to + (j + 2 * k) * PANEL + i, first_pairs(even[k], odd[k]));
                store(to + (j + 2 * k + 1) * PANEL + i, last_pairs(even[k], odd[k]));
            }
        }
}

// Turn panels of `rows` rows into those of the transposed matrix: from (rows, 16 panels) to
// (16 panels, rows), whose last panel is filled up with zeros.
static void transpose(const float* from, long rows, long panels, float* to) {
    long height = panels * PANEL;  // rows of the result
    for (long q = 0; q < panels; q++)
        for (long r = 0; r < rows; r += PANEL) {
            const float* block = from + (q * rows + r) * PANEL;
            float* into = to + (r / PANEL * height + q * PANEL) * PANEL;
            if (r + PANEL <= rows) turn(block, PANEL, into);
            else
                for (int lane = 0; lane < PANEL; lane++)
                    for (int i = 0; i < PANEL; i++)
                        into[lane * PANEL + i] = r + i < rows ? block[i * PANEL + lane] : 0.0f;
        }
}

// Add the sum over rows of each column of `delta` to `sums`, row by row.
static void add_columns(const float* delta, long row, long rows, long panels, float* sums) {
    for (long j = 0; j < panels * PANEL; j += PANEL) {
        vec sum[PANEL / WIDTH];
        for (int v = 0; v < PANEL / WIDTH; v++) sum[v] = load(sums + j + v * WIDTH);
        for (long r = 0; r < rows; r++)
            for (int v = 0; v < PANEL / WIDTH; v++)
                sum[v] += load(delta + r * row + j + v * WIDTH);
        for (int v = 0; v < PANEL / WIDTH; v++) store(sums + j + v * WIDTH, sum[v]);
    }
}
