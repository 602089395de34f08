// The layer over items that are looked up by id. (The formulas: agents/networks/items.py.)
//
//     v = max(E[id] + f[id] A + x C + c, 0)  of an item,   v = 0  where there is none (id 0)
//
// A network reads the vectors of all places, their sums per group, and the plain columns. What
// depends on the id alone is a table, which is computed once per call or gradient step.
//
// A vector has `width` numbers, in memory right after that of the place before. Vectors are stored
// `height` numbers at a time, which spills over into what follows, and that is written afterwards.

#pragma once

#include <algorithm>

#include "vector.h"

// How observations are laid out, as agents/native/kernels.py fills it. (envs/core/items.py)
struct Items {
    int64_t vocabulary, width, places, columns, plain;
    int64_t groups, features, facts;
    const int64_t* members;  // (groups, 1 + features): places, and whether items have each feature
    const float* known;      // (vocabulary, facts)

    long height() const { return (width + LANES - 1) / LANES * LANES; }
    long encoded() const { return (places + groups) * width; }  // vectors and their sums
    long inputs() const { return encoded() + plain; }           // of the network
    long table() const { return (vocabulary + features) * height(); }
};

// Write the table, (vocabulary + features, height): E + f A + c of each id, then C.
static void fill_table(const Items& n, const float* embedding, const float* weight,
                       const float* bias, float* table) {
    const long high = n.height();
    std::fill(table, table + n.table(), 0.0f);
    for (long id = 1; id < n.vocabulary; id++)
        for (long j = 0; j < n.width; j++) {
            float sum = embedding[id * n.width + j] + bias[j];
            for (long f = 0; f < n.facts; f++)
                sum = __builtin_fmaf(n.known[id * n.facts + f], weight[f * n.width + j], sum);
            table[id * high + j] = sum;
        }
    for (long f = 0; f < n.features; f++)
        for (long j = 0; j < n.width; j++)
            table[(n.vocabulary + f) * high + j] = weight[(n.facts + f) * n.width + j];
}

// Call visit(group, place, id, features, present) for each item of an observation, features in
// memory one after the other, and `present` telling which ones they are. Returns whether all ids
// are in the vocabulary; others count as no item.
template <typename Visit>
static bool each_item(const Items& n, const float* row, const Visit& visit) {
    bool known = true;
    long place = 0;
    for (long g = 0; g < n.groups; g++) {
        const int64_t *group = n.members + g * (1 + n.features), *present = group + 1;
        const long step = 1 + std::count(present, present + n.features, 1);
        for (long k = 0; k < group[0]; k++, place++, row += step) {
            bool inside = *row >= 0 && *row < n.vocabulary;  // false for NaN
            known &= inside;
            visit(g, place, inside ? (long)*row : 0, row + 1, present);
        }
    }
    return known;
}

// Write the network's inputs x for a normalised observation. Returns as `each_item`.
static bool encode(const Items& n, const float* table, const float* row, float* x) {
    const long high = n.height();
    const float* of_features = table + n.vocabulary * high;
    bool known = each_item(n, row, [&](long, long place, long id, const float* features,
                                       const int64_t* present) {
        for (long j = 0; j < high; j += WIDTH) {
            vec v = load(table + id * high + j);
            const float* feature = features;
            for (long f = 0; id && f < n.features; f++)
                if (present[f]) v = fma(all(*feature++), load(of_features + f * high + j), v);
            store(x + place * n.width + j, at_least(v, vec{}));
        }
    });
    const float* v = x;
    for (long g = 0; g < n.groups; g++) {
        const long count = n.members[g * (1 + n.features)];
        for (long j = 0; j < high; j += WIDTH) {
            vec sum = load(v + j);
            for (long k = 1; k < count; k++) sum += load(v + k * n.width + j);
            store(x + (n.places + g) * n.width + j, sum);
        }
        v += count * n.width;
    }
    std::copy(row + n.columns - n.plain, row + n.columns, x + n.encoded());
    return known;
}

// Add to the table's gradients, given those of the inputs, dx.
static void add_to_table(const Items& n, const float* row, const float* x, const float* dx,
                         float* d_table) {
    const long high = n.height();
    float* d_features = d_table + n.vocabulary * high;
    each_item(n, row, [&](long g, long place, long id, const float* features,
                          const int64_t* present) {
        if (!id) return;
        for (long j = 0; j < high; j += WIDTH) {
            // Numbers from `width` on belong to other vectors, and are ignored below.
            vec d = load(dx + place * n.width + j) + load(dx + (n.places + g) * n.width + j);
            d = choose(load(x + place * n.width + j) > 0, d, vec{});
            float* of_id = d_table + id * high + j;
            store(of_id, load(of_id) + d);
            const float* feature = features;
            for (long f = 0; f < n.features; f++) {
                if (!present[f]) continue;
                float* of_feature = d_features + f * high + j;
                store(of_feature, fma(all(*feature++), d, load(of_feature)));
            }
        }
    });
}

// Add the gradients of the weights, given those of the table.
static void add_of_table(const Items& n, const float* d_table, float* embedding, float* weight,
                         float* bias) {
    const long high = n.height();
    for (long id = 1; id < n.vocabulary; id++)
        for (long j = 0; j < n.width; j++) {
            float d = d_table[id * high + j];
            embedding[id * n.width + j] += d;
            bias[j] += d;
            for (long f = 0; f < n.facts; f++) {
                float* into = weight + f * n.width + j;
                *into = __builtin_fmaf(n.known[id * n.facts + f], d, *into);
            }
        }
    for (long f = 0; f < n.features; f++)
        for (long j = 0; j < n.width; j++)
            weight[(n.facts + f) * n.width + j] += d_table[(n.vocabulary + f) * high + j];
}
