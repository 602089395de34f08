// The outputs of actors and critics for many rows: no gradients, and nothing kept.

#pragma once

#include "network.h"
#include "tasks.h"

// The arguments, which agents/native/kernels.py fills. (G slots.)
struct Outputs {
    int64_t slots, rows, width, depth;
    int64_t inputs, outputs;                 // columns that the networks read, and write
    int64_t heads, linear_top;               // parts of the last layer; no activation before it
    Activation activation;
    Cell cell;
    int64_t sets, seat_column;               // sets of weights per member; of two, who plays a row
    int64_t obs_stride, stride, out_stride;  // floats between members' observations, sets, …
    int64_t obs_row;                         // floats between rows of observations
    const void* obs;                         // floats; of images, bytes
    const float* weights;                    // of the first network
    const int64_t* places;                   // of its parts: `exchange`
    const int64_t* head_sizes;               // (heads,) outputs
    const Items* items;                      // null: there are none
    const Entities* entities;                // likewise
    const Images* images;                    // likewise
    const float *state_avg, *state_std;      // (G, columns), of images
    const float* states;                     // (G, rows, …), of recurrent networks
    const uint8_t* live;                     // (G, rows), which of them advance; null: all
    float *result, *next_states;
    int64_t threads;

    // Places of the parts behind the last layer.
    const int64_t* further() const { return places + 2 * (depth + heads) + 1; }
};

// Copy matrices (rows, columns) that lie side by side to panels, the last one of each filled up with
// zeros.
static void pack(const float* from, long rows, long columns, float* to, long matrices = 1) {
    for (long k = 0; k < matrices; k++)
        for (long q = 0; q < columns; q += PANEL)
            for (long r = 0; r < rows; r++, to += PANEL) {
                const float* row = from + (r * matrices + k) * columns + q;
                if (q + PANEL <= columns) memcpy(to, row, PANEL * sizeof(float));
                else for (long j = 0; j < PANEL; j++) to[j] = q + j < columns ? row[j] : 0.0f;
            }
}

// The convolutions of a network, and memory for some images. None: it does nothing.
struct ImageLayers {
    const Outputs& o;
    std::vector<Convolution> layers;
    Planes planes;
    float* weights;

    explicit ImageLayers(const Outputs& o) : o(o) {
        if (o.images) layers = convolutions(*o.images);
    }
    operator bool() const { return o.images; }

    // Rows at a time.
    long chunk() const { return o.images ? images_together(layers[0], CHUNK) : CHUNK; }

    template <typename Part>
    void cut(Part part) {
        if (!*this) return;
        planes.cut(*o.images, layers, chunk(), chunk(), false, part);
        long size = 0;
        for (Convolution& n : layers) {
            n.filter = size, n.bias = n.filter + n.patch() * n.high();
            size = n.bias + n.high();
        }
        weights = part(size);
    }

    // Read a row of member g as the image of this place.
    void read(long g, long row, long place) const {
        to_pixels(*o.images, (const uint8_t*)o.obs + g * o.obs_stride + row * o.obs_row,
                  planes.pixels + place * planes.pixel_row);
    }

    // The features of the first images.
    void run(long images, float* x, long x_row) const {
        convolve(layers, weights, planes, 0, images, x, x_row);
    }

    // From the weights of a network of member g. `dense`: the first hidden layer's, in panels.
    void read_weights(const float* w, long g, float* dense) {
        if (!*this) return;
        const int64_t* parts = o.further();
        for (size_t l = 0; l < layers.size(); l++) {
            const Convolution& n = layers[l];
            float *filter = weights + n.filter, *bias = weights + n.bias;
            memset(filter, 0, (n.patch() + 1) * n.high() * sizeof(float));
            each_weight(n, l ? layers[l - 1].channels : o.images->channels,
                        [&](long at, long to) { filter[to] = w[parts[l] + at]; });
            memcpy(bias, w + parts[layers.size() + l], n.channels * sizeof(float));
        }
        const long columns = g * o.images->columns();
        planes.set_normaliser(*o.images, o.state_avg + columns, o.state_std + columns);
        const long in = layers.back().size(), height = padded(o.width);
        memset(dense, 0, in * height * sizeof(float));
        for (long i = 0; i < in; i++) {
            const long row = flat_row(layers.back(), i);
            for (long j = 0; j < o.width && row >= 0; j += PANEL)
                memcpy(dense + (j / PANEL * in + i) * PANEL, w + o.places[0] + row * o.width + j,
                       std::min(o.width - j, PANEL + 0L) * sizeof(float));
        }
    }
};

// Copy the parts of the last layer to one matrix in panels and one bias.
static void pack_heads(const Outputs& o, const float* w, float* to, float* bias) {
    const int64_t* place = o.places + 2 * o.depth;
    memset(to, 0, o.width * padded(o.outputs) * sizeof(float));
    memset(bias, 0, padded(o.outputs) * sizeof(float));
    for (long k = 0, first = 0; k < o.heads; first += o.head_sizes[k++], place += 2)
        for (long j = 0; j < o.head_sizes[k]; j++) {
            long column = first + j;
            for (long i = 0; i < o.width; i++)
                to[(column / PANEL * o.width + i) * PANEL + column % PANEL] =
                    w[place[0] + i * o.head_sizes[k] + j];
            bias[column] = w[place[1] + j];
        }
}

// The recurrent layer of a network, and memory for a chunk of rows. None: it does nothing.
struct RecurrentLayer {
    const Outputs& o;
    const Recurrence n{o.cell, o.width};
    float *matrix[2], *bias[2], *live;  // matrix and bias: where products cannot read the weights
    Step step;
    Cells cells;

    explicit RecurrentLayer(const Outputs& o) : o(o) {}
    operator bool() const { return o.cell != Cell::none; }
    bool packed() const { return n.height() != n.width; }

    template <typename Part>
    void cut(Part part) {
        if (!*this) return;
        for (int k = 0; k < 2; k++) {
            matrix[k] = part(packed() ? n.width * n.all() : 0);
            bias[k] = part(packed() ? n.all() : 0);
        }
        for (float** one : {&step.gates, &step.sums}) *one = part(CHUNK * n.row());
        for (float** one : {&step.before, &step.after}) *one = part(CHUNK * n.state_row());
        step.starts = nullptr, step.live = live = part(CHUNK);
    }

    // From a network's weights.
    void read_weights(const float* w) {
        const int64_t* parts = o.further();
        parts += o.items ? 3 : o.entities ? 2 : o.images ? 2 * o.images->layers : 0;
        for (int k = 0; *this && k < 2; k++) {
            const float *from = w + parts[k], *bias_from = w + parts[2 + k];
            cells.weight[k] = {from, PANEL, n.gates() * n.width}, cells.bias[k] = bias_from;
            if (!packed()) continue;
            pack(from, n.width, n.width, matrix[k], n.gates());
            pack(bias_from, 1, n.width, bias[k], n.gates());
            cells.weight[k] = {matrix[k], n.width * PANEL, PANEL}, cells.bias[k] = bias[k];
        }
    }

    // A step of some rows, `first` and those after it, of all members' rows. Returns their h'.
    Left advance(long first, long rows, Left inputs) {
        const long size = n.states() * n.width;
        step.rows = rows;
        for (long r = 0; r < rows; r++) {
            live[r] = !o.live || o.live[first + r];
            read_state(n, o.states + (first + r) * size, step.before + r * n.state_row());
        }
        unroll(n, cells, inputs, step, 1);
        for (long r = 0; r < rows; r++)
            write_state(n, step.after + r * n.state_row(), o.next_states + (first + r) * size);
        return {step.after, n.state_row(), 1};
    }
};

// Run a set of weights of member g on some of its rows, which follow each other if all rows are of
// one set. Returns whether all ids of items are in the vocabulary.
static bool outputs_of_set(const Outputs& o, long g, long set, const std::vector<long>& own) {
    const long height = padded(o.width), out_height = padded(o.outputs), row = height + PANEL;
    ImageLayers of_images{o};
    const long in = of_images ? of_images.layers.back().size()
                    : o.items ? o.items->inputs() : o.inputs;
    const long read = o.items ? o.items->x() : in;
    const long x_row = padded(read) + PANEL;
    // Of observations with entities.
    const long columns = o.entities ? in - o.entities->vectors() + o.entities->own() : 0;
    const long arranged_row = padded(columns) + PANEL;
    // Otherwise, products read the weights as they are.
    auto packed = [&](long l) { return height != o.width || ((o.items || of_images) && !l); };
    RecurrentLayer recurrent{o};
    const bool encoded = o.items || o.entities || of_images;
    const bool in_place = !encoded && o.sets == 1;  // likewise the observations
    const float* w = o.weights + (g * o.sets + set) * o.stride;
    const float* obs = (const float*)o.obs + g * o.obs_stride;

    static thread_local std::vector<float> memory;
    float *layers[DEEPEST], *biases, *last, *x, *hidden[2], *y, *tables;
    float *arranged, *shared;  // observations; weights and bias of the layer over entities
    for (bool count : {true, false}) {
        float* at = count ? nullptr : (float*)(((uintptr_t)memory.data() + 63) / 64 * 64);
        const float* begin = at;
        auto part = [&at](long size) { float* here = at; at += padded(size); return here; };
        for (long l = 0; l < o.depth; l++)
            layers[l] = part(packed(l) ? (l ? o.width : in) * height : 0);
        biases = part(o.depth * height + out_height);
        last = part(o.width * out_height);
        x = part(in_place ? 0 : CHUNK * x_row);
        for (float*& one : hidden) one = part(CHUNK * row);
        y = part(CHUNK * out_height);
        arranged = part(o.entities ? CHUNK * arranged_row : 0);
        shared = part(o.entities ? o.entities->columns * o.entities->width : 0);
        recurrent.cut(part);
        of_images.cut(part);
        tables = part(o.items ? ItemTables::size(*o.items, height) : 0);
        if (count) memory.resize(at - begin + PANEL);
    }
    of_images.read_weights(w, g, layers[0]);
    for (long l = 0; l < o.depth; l++) {
        if (packed(l) && !(of_images && !l))
            pack(w + o.places[l], l ? o.width : in, o.width, layers[l]);
        pack(w + o.places[o.depth + l], 1, o.width, biases + l * height);
    }
    pack_heads(o, w, last, biases + o.depth * height);
    ItemTables of_items;
    if (o.items) {
        const int64_t* parts = o.further();
        of_items = ItemTables(*o.items, height, tables);
        fill(*o.items, height, layers[0], w + parts[0], w + parts[1], w + parts[2], of_items);
    }
    const float* shared_bias = nullptr;
    if (o.entities) {
        const Entities& n = *o.entities;
        const int64_t* parts = o.further();
        pack(w + parts[0], n.columns, n.width, shared);
        shared_bias = w + parts[1];
    }
    recurrent.read_weights(w);

    bool known = true;
    const long chunk = of_images.chunk();
    for (size_t first = 0; first < own.size(); first += chunk) {
        const long rows = std::min(chunk, (long)(own.size() - first)), *mine = &own[first];
        for (long r = 0; !in_place && r < rows; r++) {
            const float* from = obs + mine[r] * o.obs_row;
            if (of_images) of_images.read(g, mine[r], r);
            else if (o.entities) arrange(*o.entities, from, columns, arranged + r * arranged_row);
            else if (!o.items) memcpy(x + r * x_row, from, in * sizeof(float));
            else known &= read_items(*o.items, height, of_items, biases, from, x + r * x_row,
                                     hidden[0] + r * row);
        }
        if (o.entities)
            encode(*o.entities, shared, shared_bias, arranged, arranged_row, columns, x, x_row, rows);
        if (of_images) of_images.run(rows, x, x_row);
        Left below = in_place ? Left{obs + mine[0] * o.obs_row, o.obs_row, 1} : Left{x, x_row, 1};
        const long used = encoded ? read : in_use(below.at, below.row, rows, read);
        for (long l = 0; l < o.depth; l++) {
            const long inner = l ? o.width : used;
            const bool items = o.items && !l;
            Panels<const float> b{w + o.places[l], PANEL, o.width};
            if (items) b = {of_items.matrix, o.items->rows() * PANEL, PANEL};
            else if (packed(l)) b = {layers[l], (l ? o.width : in) * PANEL, PANEL};
            const bool linear = o.linear_top && l == o.depth - 1;
            const bool relu = o.activation == Activation::relu && !linear;
            multiply({rows, height / PANEL, inner, below, b, {hidden[l % 2], PANEL, row},
                      biases + l * height, items, relu ? After::relu : After::nothing, {}});
            if (!linear) activate(o.activation, hidden[l % 2], nullptr, row, rows, height);
            below = {hidden[l % 2], row, 1};
        }
        // Such networks have one set, so the chunk's rows follow each other.
        if (recurrent) below = recurrent.advance(g * o.rows + mine[0], rows, below);
        multiply({rows, out_height / PANEL, o.width, below, {last, o.width * PANEL, PANEL},
                  {y, PANEL, out_height}, biases + o.depth * height, false, After::nothing, {}});
        for (long r = 0; r < rows; r++)
            memcpy(o.result + g * o.out_stride + mine[r] * o.outputs, y + r * out_height,
                   o.outputs * sizeof(float));
    }
    return known;
}

// Run all networks. Returns whether all ids of items are in the vocabulary.
static bool outputs(const Outputs& o) {
    // As few parts of each member's rows as keep all threads busy: each prepares the weights.
    const long chunk = ImageLayers(o).chunk(), chunks = (o.rows + chunk - 1) / chunk;
    const long parts = std::min(chunks, (2 * o.threads + o.slots - 1) / o.slots);
    std::atomic<bool> known{true};
    run_tasks(o.slots * parts, o.threads, [&](long task, int) {
        const long g = task / parts, part = task % parts;
        const long first = part * chunks / parts * chunk;
        const long end = std::min((part + 1) * chunks / parts * chunk, (long)o.rows);
        const float* obs = (const float*)o.obs + g * o.obs_stride;
        std::vector<long> own;
        for (long set = 0; set < o.sets; set++) {
            own.clear();
            for (long r = first; r < end; r++)
                if (o.sets == 1 || (obs[r * o.obs_row + o.seat_column] > 0.5f) == set)
                    own.push_back(r);
            if (own.size() && !outputs_of_set(o, g, set, own)) known = false;
        }
    });
    return known;
}
