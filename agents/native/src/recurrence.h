// A recurrent layer between the hidden layers and the last one: GRU or LSTM cells.
// (The formulas: agents/networks/recurrence.py.)
//
// Each gate has its columns in whole panels, and so has each part of a state: h, and c of an LSTM.
// What fills up the panels is 0 in states, and so are its derivatives.

#pragma once

#include "product.h"

enum class Cell : int64_t { none, gru, lstm };  // as `CELLS`

// The sizes of a layer, in floats.
struct Recurrence {
    Cell cell;
    long width;
    long gates() const { return cell == Cell::gru ? 3 : 4; }
    long states() const { return cell == Cell::gru ? 1 : 2; }
    long height() const { return padded(width); }     // of a gate, and of a part of a state
    long all() const { return gates() * height(); }   // gates of a row
    long row() const { return all() + PANEL; }        // between rows of gates
    long state_row() const { return states() * height() + PANEL; }  // between those of states
};

// Rows of one step of several sequences. The parts of a network's rows follow each other.
struct Step {
    long rows;
    float* gates;   // W x + b, then the gates; of backward passes, then derivatives by W x + b
    float* sums;    // U h + b, of an LSTM then tanh c'; then derivatives by U h + b
    float* before;  // the states
    float* after;
    const float* starts;  // whether an episode starts in each row; null: in none
    const float* live;    // whether each row's state advances

    Step next(const Recurrence& n, long steps) const {
        const long by = steps * rows;
        return {rows, gates + by * n.row(), sums + by * n.row(), before + by * n.state_row(),
                after + by * n.state_row(), starts + by, live + by};
    }

    // Set numbers of rows in which an episode starts to 0, `row` floats of each.
    void clear(float* at, long row) const {
        for (long r = 0; starts && r < rows; r++)
            if (starts[r]) memset(at + r * row, 0, row * sizeof(float));
    }
};

// Weights as products read them: those of the inputs, then those of the state.
struct Cells {
    Panels<const float> weight[2];
    const float* bias[2];
};

// Derivatives by the sum in a gate of this value.
static inline vec slope_of_sigmoid(vec gate) { return gate * (1.0f - gate); }
static inline vec slope_of_tanh(vec gate) { return fma(-gate, gate, all(1.0f)); }

// Copy a row's state, whose parts follow each other without gaps outside, from and to there.
static void read_state(const Recurrence& n, const float* outside, float* own) {
    for (long k = 0; k < n.states(); k++, own += n.height(), outside += n.width) {
        memcpy(own, outside, n.width * sizeof(float));
        memset(own + n.width, 0, (n.height() - n.width) * sizeof(float));
    }
}

static void write_state(const Recurrence& n, const float* own, float* outside) {
    for (long k = 0; k < n.states(); k++, own += n.height(), outside += n.width)
        memcpy(outside, own, n.width * sizeof(float));
}

// The states after a step of a row, from the sums of its gates.
static void gru(long height, float* gates, const float* sums, const float* before, float* after) {
    for (long j = 0; j < height; j += WIDTH) {
        float *reset = gates + j, *update = reset + height, *fresh = update + height;
        const float* of_state = sums + j;
        vec r = sigmoid(load(reset) + load(of_state));
        vec z = sigmoid(load(update) + load(of_state + height));
        vec n = hyperbolic_tangent(fma(r, load(of_state + 2 * height), load(fresh)));
        store(reset, r), store(update, z), store(fresh, n);
        store(after + j, fma(z, load(before + j) - n, n));
    }
}

static void lstm(long height, float* gates, float* sums, const float* before, float* after) {
    for (long j = 0; j < height; j += WIDTH) {
        auto sum = [&](long gate) {
            return load(gates + gate * height + j) + load(sums + gate * height + j);
        };
        vec i = sigmoid(sum(0)), f = sigmoid(sum(1)), g = hyperbolic_tangent(sum(2));
        vec o = sigmoid(sum(3)), c = fma(i, g, f * load(before + height + j));
        vec shown = hyperbolic_tangent(c);
        long at = j;
        for (vec gate : {i, f, g, o}) {
            store(gates + at, gate);
            at += height;
        }
        store(sums + j, shown);
        store(after + j, o * shown), store(after + height + j, c);
    }
}

// A step from the states before it and the inputs' part of the sums.
static void advance(const Recurrence& n, const Cells& w, const Step& s) {
    multiply({s.rows, n.all() / PANEL, n.width, {s.before, n.state_row(), 1}, w.weight[1],
              {s.sums, PANEL, n.row()}, w.bias[1], false, After::nothing, {}});
    for (long r = 0; r < s.rows; r++) {
        float *gates = s.gates + r * n.row(), *sums = s.sums + r * n.row();
        float *before = s.before + r * n.state_row(), *after = s.after + r * n.state_row();
        if (!s.live[r]) memcpy(after, before, n.states() * n.height() * sizeof(float));
        else if (n.cell == Cell::gru) gru(n.height(), gates, sums, before, after);
        else lstm(n.height(), gates, sums, before, after);
    }
}

// The derivatives by a row's sums, and by the state before it but for the part through h's product.
// `d_state` holds those by the state after it.
static void gru_back(long height, float* gates, float* sums, const float* before, float* d_state) {
    for (long j = 0; j < height; j += WIDTH) {
        float *reset = gates + j, *update = reset + height, *fresh = update + height;
        float* of_state = sums + j;
        vec r = load(reset), z = load(update), n = load(fresh), d = load(d_state + j);
        vec d_n = d * (1.0f - z) * slope_of_tanh(n);
        vec d_z = d * (load(before + j) - n) * slope_of_sigmoid(z);
        vec d_r = d_n * load(of_state + 2 * height) * slope_of_sigmoid(r);
        store(reset, d_r), store(update, d_z), store(fresh, d_n);
        store(of_state, d_r), store(of_state + height, d_z), store(of_state + 2 * height, d_n * r);
        store(d_state + j, d * z);
    }
}

static void lstm_back(long height, float* gates, float* sums, const float* before,
                      float* d_state) {
    for (long j = 0; j < height; j += WIDTH) {
        auto gate = [&](long k) { return load(gates + k * height + j); };
        vec i = gate(0), f = gate(1), g = gate(2), o = gate(3), shown = load(sums + j);
        vec d = load(d_state + j);
        vec d_c = fma(d * o, slope_of_tanh(shown), load(d_state + height + j));
        vec d_i = d_c * g * slope_of_sigmoid(i), d_g = d_c * i * slope_of_tanh(g);
        vec d_f = d_c * load(before + height + j) * slope_of_sigmoid(f);
        vec d_o = d * shown * slope_of_sigmoid(o);
        long at = j;
        for (vec of : {d_i, d_f, d_g, d_o}) {
            store(gates + at, of), store(sums + at, of);
            at += height;
        }
        store(d_state + j, vec{}), store(d_state + height + j, d_c * f);
    }
}

// A step back: replace `d_state`, derivatives by the states after it, by those before it.
static void step_back(const Recurrence& n, const float* turned, const Step& s, float* d_state) {
    for (long r = 0; r < s.rows; r++) {
        float *gates = s.gates + r * n.row(), *sums = s.sums + r * n.row();
        float *before = s.before + r * n.state_row(), *d = d_state + r * n.state_row();
        if (!s.live[r]) {
            memset(gates, 0, n.all() * sizeof(float));
            memset(sums, 0, n.all() * sizeof(float));
        } else if (n.cell == Cell::gru) gru_back(n.height(), gates, sums, before, d);
        else lstm_back(n.height(), gates, sums, before, d);
    }
    multiply({s.rows, n.height() / PANEL, n.all(), {s.sums, n.row(), 1},
              {turned, n.all() * PANEL, PANEL}, {d_state, PANEL, n.state_row()}, nullptr, true,
              After::nothing, {}});
}

// The states after each of `steps` steps, from the inputs of all steps and the states before them.
static void unroll(const Recurrence& n, const Cells& w, Left inputs, const Step& first,
                   long steps) {
    multiply({steps * first.rows, n.all() / PANEL, n.width, inputs, w.weight[0],
              {first.gates, PANEL, n.row()}, w.bias[0], false, After::nothing, {}});
    for (long t = 0; t < steps; t++) {
        const Step s = first.next(n, t);
        const long size = s.rows * n.state_row();
        if (t) memcpy(s.before, s.after - size, size * sizeof(float));
        s.clear(s.before, n.state_row());
        advance(n, w, s);
    }
}

// The derivatives by the sums of all steps, given those by their h' (d_row floats between rows).
// `d_state`: memory for those by the states of a step.
static void unroll_back(const Recurrence& n, const float* turned, const Step& first, long steps,
                        const float* d_shown, long d_row, float* d_state) {
    memset(d_state, 0, first.rows * n.state_row() * sizeof(float));
    for (long t = steps - 1; t >= 0; t--) {
        const Step s = first.next(n, t);
        for (long r = 0; r < s.rows; r++) {
            float* d = d_state + r * n.state_row();
            const float* shown = d_shown + (t * s.rows + r) * d_row;
            for (long j = 0; j < n.height(); j += WIDTH)
                store(d + j, load(d + j) + load(shown + j));
        }
        step_back(n, turned, s, d_state);
        s.clear(d_state, n.state_row());
    }
}
