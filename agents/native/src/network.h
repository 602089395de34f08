// An actor or a critic during an update: its private copy of the weights, forward and backward pass
// of a chunk of rows, and Adam. (The formulas: agents/networks/net.py and optimizer.py.)
//
// The private copy holds matrices in panels of 16 columns, filled up with zeros, which the products
// read in order. The last layer is kept transposed, since its few columns would not fill panels.

#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "activation.h"
#include "convolution.h"
#include "entities.h"
#include "items.h"
#include "recurrence.h"

constexpr long CHUNK = 96;  // rows at a time: they stay in the cache between passes; 16 and 12 fit
constexpr long FEWEST = 8;  // sequences at a time, whatever their length: rows of a step's product
constexpr int DEEPEST = 32;  // hidden layers

// The sizes of a network and where its parts are, in floats from its beginning.
struct Layout {
    long in, width, depth, out;
    std::vector<long> heads;  // outputs of the parts of the last layer, which lie side by side
    bool linear_top = false;  // whether the last hidden layer has no activation
    Activation activation;
    long height;          // width in whole panels
    long out_height;      // out in whole panels
    long row;             // floats between rows of hidden activations
    long x, x_row;        // numbers that the first product reads; floats between rows of them
    long weight[DEEPEST], bias[DEEPEST], last, last_bias;
    long log_std;         // of a Gaussian
    std::vector<long> chain, chain_size;
    const Items* items;   // null: there are none
    const Entities* entities;  // likewise
    long entity_weight, entity_bias;
    const Images* images;  // likewise
    std::vector<Convolution> convolutions;
    long images_together;
    long embedding, item_weight, item_bias;
    Recurrence recurrence;
    long steps;           // of a sequence; 1 without recurrent layer
    long cell_weight[2], cell_bias[2];  // of its inputs, of the state
    long together;        // sequences at a time
    long chunk;           // rows at a time
    long columns;         // of observations that it reads
    long obs_row;         // floats between rows of them
    long size;            // of the private copy

    Layout(long columns, long width, long depth, long out, Activation activation, bool gaussian,
           std::vector<long> chains, const Items* items, const Entities* entities,
           const Images* images, Cell cell, long steps)
        : in(items ? items->inputs() : entities ? entities->inputs(columns) : columns),
          width(width), depth(depth), out(out), heads{out}, activation(activation), items(items),
          entities(entities), images(images), recurrence{cell, width}, steps(steps),
          columns(columns) {
        if (images) convolutions = ::convolutions(*images), in = convolutions.back().size();
        // Whole sequences of recurrent networks, and whole 16s of rows.
        together = CHUNK;
        if (recurrent()) together = padded(std::max(FEWEST, CHUNK / steps), steps % 2 ? 16 : 8);
        chunk = together * steps;
        images_together = images ? ::images_together(convolutions[0], chunk) : 0;
        height = padded(width), out_height = padded(out);
        // 16 more: rows at a distance of a power of two would share few lines of the cache.
        row = height + PANEL;
        x = items ? items->x() : in, x_row = padded(x) + PANEL;
        obs_row = items ? columns : entities ? padded(columns) + PANEL : x_row;
        long end = 0;
        auto part = [&end](long size) { long at = end; end += padded(size); return at; };
        for (long l = 0; l < depth; l++) weight[l] = part((l ? width : in) * height);
        for (long l = 0; l < depth; l++) bias[l] = part(height);
        last = part(out * height);
        last_bias = part(out_height);
        log_std = part(gaussian ? out_height : 0);
        for (long size : chains) chain.push_back(part(size)), chain_size.push_back(size);
        if (items) {
            embedding = part(items->vocabulary * items->width);
            item_weight = part((items->facts + items->features) * items->width);
            item_bias = part(items->width);
        }
        if (entities) {
            entity_weight = part(entities->columns * entities->width);
            entity_bias = part(entities->width);
        }
        for (Convolution& of : convolutions)
            of.filter = part(of.patch() * of.high()), of.bias = part(of.high());
        for (int k = 0; k < 2; k++) {
            cell_weight[k] = part(recurrent() ? width * recurrence.all() : 0);
            cell_bias[k] = part(recurrent() ? recurrence.all() : 0);
        }
        size = padded(end, 64);
    }

    Layout(long in, long width, long depth, const std::vector<long>& parts, Activation activation,
           bool linear_top)
        : Layout(in, width, depth, std::accumulate(parts.begin(), parts.end(), 0L), activation,
                 false, {}, nullptr, nullptr, nullptr, Cell::none, 1) {
        heads = parts;
        this->linear_top = linear_top;
    }

    long inputs(long l) const { return l ? width : in; }
    bool linear(long l) const { return linear_top && l == depth - 1; }
    bool recurrent() const { return recurrence.cell != Cell::none; }
};

// Copy a network between the flat tensor (`places`: where its parts are; agents/native/kernels.py)
// and its private copy.
template <bool TO_PRIVATE>
static void exchange(const Layout& n, const int64_t* places, float* flat, float* own) {
    auto move = [](float* there, float* here, long size = 1) {
        memcpy(TO_PRIVATE ? here : there, TO_PRIVATE ? there : here, size * sizeof(float));
    };
    // Several matrices may lie side by side.
    auto panels = [&](long at, long rows, long columns, long matrices = 1, bool planes = false) {
        float *from = flat + *places++, *to = own + at;
        for (long k = 0; k < matrices; k++, to += rows * padded(columns))
            for (long i = 0; i < rows; i++) {
                const long flat_i = planes ? flat_row(n.convolutions.back(), i) : i;
                for (long j = 0; j < columns && flat_i >= 0; j += PANEL)
                    move(from + (flat_i * matrices + k) * columns + j,
                         to + (j / PANEL * rows + i) * PANEL, std::min(columns - j, PANEL + 0L));
            }
    };
    if (TO_PRIVATE) memset(own, 0, n.size * sizeof(float));
    for (long l = 0; l < n.depth; l++)
        panels(n.weight[l], n.inputs(l), n.width, 1, n.images && !l);
    for (long l = 0; l < n.depth; l++) move(flat + *places++, own + n.bias[l], n.width);
    long first = 0;
    for (long columns : n.heads) {
        float* from = flat + *places++;
        for (long i = 0; i < n.width; i++)
            for (long j = 0; j < columns; j++)
                move(from + i * columns + j,
                     own + n.last + (i / PANEL * n.out + first + j) * PANEL + i % PANEL);
        from = flat + *places++;
        move(from, own + n.last_bias + first, columns);
        first += columns;
    }
    if (*places >= 0) move(flat + *places, own + n.log_std, n.out);
    places++;
    auto copy = [&](long at, long size) { move(flat + *places++, own + at, size); };
    if (n.items) {
        copy(n.embedding, n.items->vocabulary * n.items->width);
        copy(n.item_weight, (n.items->facts + n.items->features) * n.items->width);
        copy(n.item_bias, n.items->width);
    }
    if (n.entities) {
        panels(n.entity_weight, n.entities->columns, n.entities->width);
        copy(n.entity_bias, n.entities->width);
    }
    for (size_t l = 0; l < n.convolutions.size(); l++) {
        float* from = flat + *places++;
        each_weight(n.convolutions[l], l ? n.convolutions[l - 1].channels : n.images->channels,
                    [&](long at, long to) { move(from + at, own + n.convolutions[l].filter + to); });
    }
    for (const Convolution& of : n.convolutions) copy(of.bias, of.channels);
    if (n.recurrent()) {
        for (long at : n.cell_weight) panels(at, n.width, n.width, n.recurrence.gates());
        for (long at : n.cell_bias) panels(at, 1, n.width, n.recurrence.gates());
    }
    for (size_t k = 0; k < n.chain.size(); k++) copy(n.chain[k], n.chain_size[k]);
}

static bool is_zero(const float* x, long size) {
    uint32_t any = 0;
    for (long i = 0; i < size; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        any |= bits;
    }
    return !any;
}

// Columns up to the last one with a number other than 0 in any row, and up to 63 more. Observations
// may be padded: of a market, to the largest lookback of any trial. A product changes no bit by
// leaving out what is 0 in all rows: fma(0, w, c) = c.
static long in_use(const float* x, long row, long rows, long columns) {
    constexpr long BLOCK = 64;
    long used = columns % BLOCK ? columns % BLOCK : BLOCK;
    for (long r = 0; r < rows; r++)
        for (long end = columns; end > used; end -= BLOCK)
            if (!is_zero(x + r * row + end - BLOCK, BLOCK)) used = end;
    return used;
}

// What a thread needs for one network at a time; all of it is written before it is read.
struct Workspace {
    float *obs, *x, *hidden[DEEPEST], *slope[DEEPEST], *delta[2], *y, *d_output, *grad,
        *turned[DEEPEST], *top, *side, *live, *mask;
    Step step;  // the first one
    float *starts, *turned_cell[2], *d_state;
    ItemTables tables, d_tables;
    float* d_x;  // of items, entities and images
    Planes planes;

    // For `sets` sets of weights, of which one is computed at a time; `grad` holds all of theirs.
    // Returns the floats that it takes; from null, only counts. What `forward` reads and writes may
    // be there for several chunks: `chunk`.
    long cut(const Layout& n, long sets, long side_columns, float* at, long chunks = 1) {
        float* begin = at;
        auto part = [&at](long size) { float* here = at; at += padded(size, 64); return here; };
        x = part(chunks * n.chunk * n.x_row);
        obs = n.items || n.entities ? part(n.chunk * n.obs_row) : x;
        if (n.images)
            planes.cut(*n.images, n.convolutions, n.chunk, n.images_together, true, part);
        for (long l = 0; l < n.depth; l++) {
            hidden[l] = part(chunks * n.chunk * n.row);
            // ReLU's slopes follow from its results.
            slope[l] = part(n.activation == Activation::relu ? 0 : chunks * n.chunk * n.row);
        }
        for (auto& one : delta) one = part(n.chunk * n.row);
        y = part(chunks * n.chunk * n.out_height);
        d_output = part(n.chunk * n.out_height);
        grad = part(sets * n.size);
        for (long l = 1; l < n.depth; l++) turned[l] = part(n.height * n.height);
        top = part(n.chunk * n.height);
        side = part(n.chunk * side_columns);
        live = part(n.chunk);
        mask = part(n.chunk * n.out);
        if (n.items) {
            for (auto* one : {&tables, &d_tables})
                *one = ItemTables(*n.items, n.height, part(ItemTables::size(*n.items, n.height)));
            turned[0] = part(padded(n.items->rows()) * n.height);
        }
        if (n.entities || n.images) turned[0] = part(padded(n.in) * n.height);
        d_x = part(n.items || n.entities || n.images ? n.chunk * n.x_row : 0);
        if (n.recurrent()) {
            const Recurrence& of = n.recurrence;
            for (float** one : {&step.gates, &step.sums}) *one = part(n.chunk * of.row());
            for (float** one : {&step.before, &step.after}) *one = part(n.chunk * of.state_row());
            step.live = live, step.starts = starts = part(n.chunk);
            d_state = part(n.together * of.state_row());
            for (float*& one : turned_cell) one = part(of.all() * n.height);
        }
        return at - begin;
    }

    // The first step of sequences of that many rows together.
    Step first(const Layout& n, long rows) const {
        Step found = step;
        found.rows = rows / n.steps;
        return found;
    }

    // Of networks without items.
    Workspace chunk(const Layout& n, long k) const {
        Workspace s = *this;
        s.x += k * n.chunk * n.x_row, s.y += k * n.chunk * n.out_height;
        for (long l = 0; l < n.depth; l++)
            s.hidden[l] += k * n.chunk * n.row, s.slope[l] += k * n.chunk * n.row;
        return s;
    }
};

// Bring what depends on the weights alone up to date with them.
static void prepare(const Layout& n, const float* w, const Workspace& s) {
    for (long l = 1; l < n.depth; l++)
        transpose(w + n.weight[l], n.width, n.height / PANEL, s.turned[l]);
    if (n.entities || n.images)
        transpose(w + n.weight[0], n.in, n.height / PANEL, s.turned[0]);
    if (n.images) turn_filters(n.convolutions, w, s.planes);
    for (int k = 0; n.recurrent() && k < 2; k++)
        transpose(w + n.cell_weight[k], n.width, n.recurrence.all() / PANEL, s.turned_cell[k]);
    if (!n.items) return;
    fill(*n.items, n.height, w + n.weight[0], w + n.embedding, w + n.item_weight, w + n.item_bias,
         s.tables);
    transpose(s.tables.matrix, n.items->rows(), n.height / PANEL, s.turned[0]);
}

// Start a gradient, after `prepare`.
static void begin(const Layout& n, const Workspace& s) {
    memset(s.grad, 0, n.size * sizeof(float));
    if (n.items) memset(s.d_tables.table, 0, ItemTables::size(*n.items, n.height) * sizeof(float));
}

// Complete the gradients after the last chunk.
static void finish(const Layout& n, const Workspace& s) {
    if (n.items)
        finish(*n.items, n.height, s.tables, s.d_tables, s.grad + n.weight[0],
               s.grad + n.embedding, s.grad + n.item_weight, s.grad + n.item_bias);
}

// s.hidden and s.y (outputs x n.chunk: a column of outputs is contiguous) from s.obs or s.planes.
static void forward(const Layout& n, const float* w, const Workspace& s, long rows) {
    for (long r = 0; n.items && r < rows; r++)
        read_items(*n.items, n.height, s.tables, w + n.bias[0], s.obs + r * n.columns,
                   s.x + r * n.x_row, s.hidden[0] + r * n.row);
    if (n.entities)
        encode(*n.entities, w + n.entity_weight, w + n.entity_bias, s.obs, n.obs_row, n.columns, s.x,
               n.x_row, rows);
    for (long r = 0; n.images && r < rows; r += n.images_together)
        convolve(n.convolutions, w, s.planes, r, std::min(n.images_together, rows - r), s.x,
                 n.x_row);
    Left below{s.x, n.x_row, 1};
    for (long l = 0; l < n.depth; l++) {
        const bool items = n.items && !l;
        const float* matrix = items ? s.tables.matrix : w + n.weight[l];
        const long panel = (items ? n.items->rows() : n.inputs(l)) * PANEL;
        const bool relu = n.activation == Activation::relu && !n.linear(l);
        multiply({rows, n.height / PANEL, l ? n.width : n.x, below, {matrix, panel, PANEL},
                  {s.hidden[l], PANEL, n.row}, w + n.bias[l], items,
                  relu ? After::relu : After::nothing, {}});
        if (!n.linear(l)) activate(n.activation, s.hidden[l], s.slope[l], n.row, rows, n.height);
        below = {s.hidden[l], n.row, 1};
    }
    if (n.recurrent()) {
        Cells cells;
        for (int k = 0; k < 2; k++) {
            cells.weight[k] = {w + n.cell_weight[k], n.width * PANEL, PANEL};
            cells.bias[k] = w + n.cell_bias[k];
        }
        unroll(n.recurrence, cells, below, s.first(n, rows), n.steps);
        below = {s.step.after, n.recurrence.state_row(), 1};
    }
    // Outputs are few, so that they are the rows of this product, and the chunk's rows its columns.
    const long columns = padded(rows);
    for (long r = 0; r < columns; r += PANEL)
        for (long i = 0; i < n.height; i += PANEL)
            turn(below.at + r * below.row + i, below.row, s.top + r * n.height + i * PANEL);
    for (long j = 0; j < n.out; j++)
        std::fill_n(s.y + j * n.chunk, columns, w[n.last_bias + j]);
    multiply({n.out, columns / PANEL, PANEL, {w + n.last, PANEL, 1, n.out * PANEL},
              {s.top, n.height * PANEL, PANEL, PANEL * PANEL}, {s.y, PANEL, n.chunk}, nullptr, true,
              After::nothing, {}, n.height / PANEL});
}

// Call `use(l, delta)` with the derivatives by the sums of each hidden layer (before its
// activation), from the last to the first, given s.d_output (outputs x n.chunk).
template <typename Use>
static void descend(const Layout& n, const float* w, const Workspace& s, long rows, Use use) {
    long panels = n.height / PANEL;
    float *delta = s.delta[0], *other = s.delta[1];
    const bool relu = n.activation == Activation::relu;
    auto kept = [&](long l) {
        return Panels<const float>{relu ? s.hidden[l] : s.slope[l], PANEL, n.row};
    };
    const After through = relu ? After::mask : After::slope;
    long top = n.depth - 1;
    multiply({rows, panels, n.out, {s.d_output, 1, n.chunk}, {w + n.last, n.out * PANEL, PANEL},
              {delta, PANEL, n.row}, nullptr, false,
              n.recurrent() || n.linear(top) ? After::nothing : through, kept(top)});
    if (n.recurrent()) {
        const Recurrence& of = n.recurrence;
        unroll_back(of, s.turned_cell[1], s.first(n, rows), n.steps, delta, n.row, s.d_state);
        multiply({rows, panels, of.all(), {s.step.gates, of.row(), 1},
                  {s.turned_cell[0], of.all() * PANEL, PANEL}, {other, PANEL, n.row}, nullptr,
                  false, through, kept(top)});
        std::swap(delta, other);
    }
    for (long l = top; l >= 0; l--) {
        use(l, delta);
        if (!l) break;
        multiply({rows, panels, n.width, {delta, n.row, 1}, {s.turned[l], n.height * PANEL, PANEL},
                  {other, PANEL, n.row}, nullptr, false, through, kept(l - 1)});
        std::swap(delta, other);
    }
}

// Add the gradients of the layer over items, given the first layer's derivatives.
static void backward_of_items(const Layout& n, const Workspace& s, long rows, const float* delta) {
    multiply({rows, padded(n.items->vectors()) / PANEL, n.width, {delta, n.row, 1},
              {s.turned[0], n.height * PANEL, PANEL}, {s.d_x, PANEL, n.x_row}, nullptr, false,
              After::nothing, {}});
    for (long r = 0; r < rows; r++)
        add_gradients(*n.items, n.height, s.obs + r * n.columns, s.x + r * n.x_row,
                      delta + r * n.row, s.d_x + r * n.x_row, s.d_tables);
}

// s.d_x, derivatives by the first columns of x before their ReLU, given the first layer's.
static void through_first(const Layout& n, const Workspace& s, long rows, long columns,
                          const float* delta) {
    multiply({rows, columns / PANEL, n.width, {delta, n.row, 1},
              {s.turned[0], n.height * PANEL, PANEL}, {s.d_x, PANEL, n.x_row}, nullptr, false,
              After::mask, {s.x, PANEL, n.x_row}});
}

// Add the gradients of the layer over entities, given the first layer's derivatives.
static void backward_of_entities(const Layout& n, const Workspace& s, long rows,
                                 const float* delta) {
    through_first(n, s, rows, n.entities->vectors(), delta);
    add_gradients(*n.entities, s.obs, n.obs_row, s.d_x, n.x_row, rows, s.grad + n.entity_weight,
                  s.grad + n.entity_bias);
}

// Add the gradients of the convolutions, given the first layer's derivatives.
static void backward_of_images(const Layout& n, const Workspace& s, long rows, const float* delta) {
    through_first(n, s, rows, n.x, delta);
    for (long r = 0; r < rows; r += n.images_together)
        add_gradients(n.convolutions, s.planes, r, std::min(n.images_together, rows - r),
                      s.d_x + r * n.x_row, n.x_row, s.grad);
}

// Add the gradients of the recurrent layer, given those by the sums of its gates.
static void backward_of_cells(const Layout& n, const Workspace& s, long rows) {
    const Recurrence& of = n.recurrence;
    const Left read[] = {{s.hidden[n.depth - 1], 1, n.row}, {s.step.before, 1, of.state_row()}};
    const float* d[] = {s.step.gates, s.step.sums};
    for (int k = 0; k < 2; k++) {
        add_columns(d[k], of.row(), rows, of.all() / PANEL, s.grad + n.cell_bias[k]);
        multiply({n.width, of.all() / PANEL, rows, read[k], {d[k], PANEL, of.row()},
                  {s.grad + n.cell_weight[k], n.width * PANEL, PANEL}, nullptr, true,
                  After::nothing, {}});
    }
}

// Add the chunk's gradients to s.grad, given s.d_output, which is 0 for the rows that fill up the
// last 16.
static void backward(const Layout& n, const float* w, const Workspace& s, long rows) {
    const float* d = s.d_output;
    for (long j = 0; j < n.out; j++) {
        Sum sum;
        for (long r = 0; r < rows; r += WIDTH) sum.add(r, load(d + j * n.chunk + r));
        s.grad[n.last_bias + j] += sum.total();
    }
    long panels = n.height / PANEL;
    Panels<const float> top{s.hidden[n.depth - 1], PANEL, n.row};
    if (n.recurrent()) top = {s.step.after, PANEL, n.recurrence.state_row()};
    multiply({n.out, panels, rows, {d, n.chunk, 1}, top,
              {s.grad + n.last, n.out * PANEL, PANEL}, nullptr, true, After::nothing, {}});
    descend(n, w, s, rows, [&](long l, const float* delta) {
        add_columns(delta, n.row, rows, panels, s.grad + n.bias[l]);
        Left below = l ? Left{s.hidden[l - 1], 1, n.row} : Left{s.x, 1, n.x_row};
        const bool items = n.items && !l;
        float* into = items ? s.d_tables.matrix : s.grad + n.weight[l];
        const long panel = (items ? n.items->rows() : n.inputs(l)) * PANEL;
        multiply({l ? n.width : n.x, panels, rows, below, {delta, PANEL, n.row},
                  {into, panel, PANEL}, nullptr, true, After::nothing, {}});
        if (items) backward_of_items(n, s, rows, delta);
        if (n.entities && !l) backward_of_entities(n, s, rows, delta);
        if (n.images && !l) backward_of_images(n, s, rows, delta);
    });
    if (n.recurrent()) backward_of_cells(n, s, rows);
}

// The Euclidean norm, from sums of squares in 64 lanes, whatever the width of a vector.
static float norm(const float* grad, long size) {
    constexpr int PARTS = 64 / WIDTH;
    vec sum[PARTS] = {};
    for (long i = 0; i < size; i += 64)
        for (int v = 0; v < PARTS; v++) {
            vec g = load(grad + i + v * WIDTH);
            sum[v] = fma(g, g, sum[v]);
        }
    float part[64];
    for (int v = 0; v < PARTS; v++) store(part + v * WIDTH, sum[v]);
    for (int half = 32; half; half /= 2)
        for (int i = 0; i < half; i++) part[i] += part[i + half];
    return std::sqrt(part[0]);
}

// Adam's numbers of a member, by the names of `Adam`.
struct AdamNumbers {
    double lr, eps, weight_decay;
};

// base^n by squaring: the C library's pow may differ between its versions and processors.
static double power(double base, long n) {
    double result = 1;
    for (; n; n >>= 1, base *= base)
        if (n & 1) result *= base;
    return result;
}

// Make step number `count`, down a gradient of this norm, which is clipped to `max_norm`.
static void adam(const AdamNumbers& a, long count, float norm, float max_norm, long size,
                 const float* grad, float* w, float* m, float* v) {
    constexpr double BETA1 = 0.9, BETA2 = 0.999;
    const float share = max_norm / (norm + 1e-6f);
    const vec clip = all(share < 1 ? share : 1), eps = all((float)a.eps);
    const vec rate = all((float)(a.lr / (1 - power(BETA1, count))));
    const vec unbias = all((float)(1 / std::sqrt(1 - power(BETA2, count))));
    const vec kept = all((float)(1 - a.lr * a.weight_decay));
    const vec b1 = all((float)(1 - BETA1)), b2 = all((float)(1 - BETA2)), beta2 = all((float)BETA2);
    for (long i = 0; i < size; i += WIDTH) {
        vec g = load(grad + i) * clip, first = load(m + i);
        first = fma(b1, g - first, first);  // beta1 m + (1 - beta1) g
        vec second = fma(b2 * g, g, beta2 * load(v + i));
        store(m + i, first);
        store(v + i, second);
        store(w + i, fma(load(w + i), kept, -(rate * first / fma(root(second), unbias, eps))));
    }
}
