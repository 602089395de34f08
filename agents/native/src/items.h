// Layers over items that are looked up by id. (agents/networks/items.py)
//
//     v = max(E[id] + f[id] A + x C + c, 0)  of an item,   v = 0  where there is none (id 0)
//     z = Σ_p v_p M_p + y Y + b,   M_p = W_p + U_group     before the first ReLU
//
// What depends on the weights alone is computed once per call or gradient step: E + f A + c of each
// id, the matrices M_p, and v_p M_p of each id at the places whose items have no features. Those
// "bare" places need no product: their parts of z are looked up and added.
//
// The product reads x: the vectors of the other places, then the plain columns y. Rows of M are in
// that order, then those of bare places. Vectors have `width` numbers and follow each other without
// a gap. They are stored `height` numbers at a time, which spills over into what is written next.

#pragma once

#include <algorithm>

#include "product.h"

// How observations are laid out, filled by agents/native/kernels.py. (envs/core/items.py)
struct Items {
    int64_t vocabulary, width, places, bare, plain;
    int64_t groups, features, facts;
    const int64_t* members;  // (groups, 1 + features): places, and whether items have each feature
    const float* known;      // (vocabulary, facts)

    long height() const { return padded(width); }
    long table() const { return (vocabulary + features) * height(); }
    long vectors() const { return (places - bare) * width; }          // in x
    long x() const { return vectors() + plain; }                      // numbers of x
    long rows() const { return x() + bare * width; }                  // of M
    long inputs() const { return (places + groups) * width + plain; } // rows of W, U and Y
};

// What the weights determine, for a first layer of `high` columns in whole panels; or gradients.
struct ItemTables {
    float *table;   // (vocabulary + features, height): of each id, then C
    float *matrix;  // M, rows() in panels
    float *parts;   // (bare places, vocabulary, high)

    ItemTables() = default;
    ItemTables(const Items& n, long high, float* at)
        : table(at), matrix(at + n.table()), parts(matrix + n.rows() * high) {}
    static long size(const Items& n, long high) {
        return n.table() + (n.rows() + n.bare * n.vocabulary) * high;
    }
};

struct Place {
    long group, place;  // numbers of both
    bool bare;
    long nth;           // of the bare places, or of the others
    long column;        // of the id; features follow
    const int64_t* present;

    // Its first row in M, and those in the first layer's weights: of the place and of its group.
    long row(const Items& n) const { return (bare ? n.x() : 0) + nth * n.width; }
    long own(const Items& n) const { return place * n.width; }
    long shared(const Items& n) const { return (n.places + group) * n.width; }
};

// Call visit(place) for each place. Returns the first plain column.
template <typename Visit>
static long each_place(const Items& n, const Visit& visit) {
    Place p{};
    long nth[2] = {0, 0};
    for (; p.group < n.groups; p.group++) {
        const int64_t* group = n.members + p.group * (1 + n.features);
        p.present = group + 1;
        const long features = std::count(p.present, p.present + n.features, 1);
        p.bare = !features;
        for (long k = 0; k < group[0]; k++) {
            p.nth = nth[p.bare]++;
            visit((const Place&)p);
            p.place++;
            p.column += 1 + features;
        }
    }
    return p.column;
}

// A number of an observation as an id; 0 if it is not in the vocabulary.
static inline long id_of(const Items& n, float number) {
    return number >= 0 && number < n.vocabulary ? (long)number : 0;  // also of NaN
}

// Fill the tables, from a first layer of `high` columns and the layer over items.
static void fill(const Items& n, long high, const float* first, const float* embedding,
                 const float* weight, const float* bias, const ItemTables& t) {
    const long height = n.height();
    std::fill(t.table, t.table + n.table(), 0.0f);
    for (long id = 1; id < n.vocabulary; id++)
        for (long j = 0; j < n.width; j++) {
            float sum = embedding[id * n.width + j] + bias[j];
            for (long f = 0; f < n.facts; f++)
                sum = __builtin_fmaf(n.known[id * n.facts + f], weight[f * n.width + j], sum);
            t.table[id * height + j] = sum;
        }
    for (long f = 0; f < n.features; f++)
        for (long j = 0; j < n.width; j++)
            t.table[(n.vocabulary + f) * height + j] = weight[(n.facts + f) * n.width + j];
    for (long q = 0; q < high / PANEL; q++) {
        const float* from = first + q * n.inputs() * PANEL;
        float* matrix = t.matrix + q * n.rows() * PANEL;
        memcpy(matrix + n.vectors() * PANEL, from + (n.inputs() - n.plain) * PANEL,
               n.plain * PANEL * sizeof(float));
        each_place(n, [&](const Place& p) {
            float* rows = matrix + p.row(n) * PANEL;
            const float *own = from + p.own(n) * PANEL, *shared = from + p.shared(n) * PANEL;
            for (long i = 0; i < n.width * PANEL; i += WIDTH)
                store(rows + i, load(own + i) + load(shared + i));
            for (long id = 1; p.bare && id < n.vocabulary; id++)
                for (long lane = 0; lane < PANEL; lane += WIDTH) {
                    vec z = {};
                    for (long j = 0; j < n.width; j++)
                        z = fma(at_least(all(t.table[id * height + j]), vec{}),
                                load(rows + j * PANEL + lane), z);
                    store(t.parts + (p.nth * n.vocabulary + id) * high + q * PANEL + lane, z);
                }
        });
    }
}

// Write x, and b + Σ v_p M_p over bare places as z (high numbers), of a normalised observation.
// Returns whether all ids are in the vocabulary.
static bool read_items(const Items& n, long high, const ItemTables& t, const float* bias,
                       const float* obs, float* x, float* z) {
    const long height = n.height();
    bool known = true;
    memcpy(z, bias, high * sizeof(float));
    const long rest = each_place(n, [&](const Place& p) {
        const float *number = obs + p.column, *feature = number + 1;
        const long id = id_of(n, *number);
        known &= id || *number == 0;
        if (p.bare) {
            const float* part = t.parts + (p.nth * n.vocabulary + id) * high;
            for (long i = 0; id && i < high; i += WIDTH) store(z + i, load(z + i) + load(part + i));
            return;
        }
        for (long j = 0; j < height; j += WIDTH) {
            vec v = load(t.table + id * height + j);
            for (long f = 0, k = 0; id && f < n.features; f++)
                if (p.present[f])
                    v = fma(all(feature[k++]), load(t.table + (n.vocabulary + f) * height + j), v);
            store(x + p.row(n) + j, at_least(v, vec{}));
        }
    });
    memcpy(x + n.vectors(), obs + rest, n.plain * sizeof(float));
    return known;
}

// Add the gradients of `parts` and, given those of x, of the table. dz: of z, high numbers.
static void add_gradients(const Items& n, long high, const float* obs, const float* x,
                          const float* dz, const float* dx, const ItemTables& d) {
    const long height = n.height();
    each_place(n, [&](const Place& p) {
        const float *number = obs + p.column, *feature = number + 1;
        const long id = id_of(n, *number);
        if (!id) return;
        if (p.bare) {
            float* part = d.parts + (p.nth * n.vocabulary + id) * high;
            for (long i = 0; i < high; i += WIDTH) store(part + i, load(part + i) + load(dz + i));
            return;
        }
        for (long j = 0; j < height; j += WIDTH) {
            // Numbers from `width` on belong to other vectors; `finish` ignores them.
            vec dv = choose(load(x + p.row(n) + j) > 0, load(dx + p.row(n) + j), vec{});
            float* of_id = d.table + id * height + j;
            store(of_id, load(of_id) + dv);
            for (long f = 0, k = 0; f < n.features; f++) {
                if (!p.present[f]) continue;
                float* into = d.table + (n.vocabulary + f) * height + j;
                store(into, fma(all(feature[k++]), dv, load(into)));
            }
        }
    });
}

// Add the gradients of all weights, given those of the tables; of the parts, those of bare places'
// rows of M and of their vectors follow first.
static void finish(const Items& n, long high, const ItemTables& t, const ItemTables& d,
                   float* first, float* embedding, float* weight, float* bias) {
    const long height = n.height(), panel = n.rows() * PANEL;
    each_place(n, [&](const Place& p) {
        const long row = p.row(n) * PANEL;
        for (long id = 1; p.bare && id < n.vocabulary; id++) {
            const float* dz = d.parts + (p.nth * n.vocabulary + id) * high;
            for (long j = 0; j < n.width; j++) {
                const float v = t.table[id * height + j];
                if (!(v > 0)) continue;
                Sum dv;
                for (long i = 0; i < high; i += WIDTH) {
                    const long at = i / PANEL * panel + row + j * PANEL + i % PANEL;
                    dv.add(i, load(dz + i) * load(t.matrix + at));
                    store(d.matrix + at, fma(all(v), load(dz + i), load(d.matrix + at)));
                }
                d.table[id * height + j] += dv.total();
            }
        }
        for (long q = 0; q < high / PANEL; q++)
            for (long i = 0; i < n.width * PANEL; i += WIDTH) {
                vec dm = load(d.matrix + q * panel + row + i);
                float* own = first + (q * n.inputs() + p.own(n)) * PANEL + i;
                float* shared = first + (q * n.inputs() + p.shared(n)) * PANEL + i;
                store(own, load(own) + dm);
                store(shared, load(shared) + dm);
            }
    });
    for (long q = 0; q < high / PANEL; q++)
        memcpy(first + ((q + 1) * n.inputs() - n.plain) * PANEL,
               d.matrix + q * panel + n.vectors() * PANEL, n.plain * PANEL * sizeof(float));
    for (long id = 1; id < n.vocabulary; id++)
        for (long j = 0; j < n.width; j++) {
            const float dv = d.table[id * height + j];
            embedding[id * n.width + j] += dv;
            bias[j] += dv;
            for (long f = 0; f < n.facts; f++) {
                float* into = weight + f * n.width + j;
                *into = __builtin_fmaf(n.known[id * n.facts + f], dv, *into);
            }
        }
    for (long f = 0; f < n.features; f++)
        for (long j = 0; j < n.width; j++)
            weight[(n.facts + f) * n.width + j] += d.table[(n.vocabulary + f) * height + j];
}
