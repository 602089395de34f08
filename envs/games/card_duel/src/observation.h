// What a player sees: observation.py.

#pragma once

#include <algorithm>

#include "layout.h"

// Writes numbers one after the other.
struct Columns {
    uint8_t* next;
    void add(int number) { *next++ = (uint8_t)number; }
    template <int SIZE>
    void add(const int8_t (&numbers)[SIZE], int from = 0) {
        next = std::copy(numbers + from, numbers + SIZE, next);
    }
};

static inline void add_front(const Facts& facts, const Position& p, int side, Columns& columns) {
    const Side& own = p.sides[side];
    for (int place = 0; place < BODIES; place++) {
        const int id = own.id[place], health = facts.health[id] - own.damage[place];
        columns.add(id);
        // A champion beyond 0 health shows 0.
        columns.add(place == CHAMPION_PLACE ? std::max(health, 0) : health);
        columns.add(attack_of(facts, own, place));
        columns.add(own.tapped[place]);
        columns.add(own.stunned[place]);
        columns.add(own.fresh[place]);
        // Side 1 attacks side 0, which responds - or, in no attack, both are 0.
        columns.add(side == 1 && p.attacker == place + 1);
        columns.add(side == 0 && p.target == place + 1);
        columns.add(side == 0 && p.source == place + 1);
    }
}

static inline void add_back(const Side& side, Columns& columns) {
    for (int slot = 0; slot < BACK; slot++) {
        columns.add(side.back[slot]);
        columns.add(side.back_fresh[slot]);
    }
}

static inline void add_counts(const Side& side, Columns& columns) {
    for (int count : {side.mana, side.max_mana, side.spark, side.advanced, side.held, side.left})
        columns.add(count);
}

// Write what a seat sees; return the end of what is written.
static inline uint8_t* observe(const Facts& facts, const Position& p, int decisions, int seat,
                               uint8_t* obs) {
    const int waits = p.mover ^ seat;  // whether it is the other's move
    const Side &own = p.sides[waits], &enemy = p.sides[1 - waits];
    Columns columns{obs};
    columns.add(own.hand);
    add_front(facts, p, waits, columns);
    add_front(facts, p, 1 - waits, columns);
    add_back(own, columns);
    add_back(enemy, columns);
    columns.add(own.gear);
    columns.add(enemy.gear);
    for (int one = 0; one < PHASES; one++) columns.add(p.phase == one);
    for (int one = 1; one < EFFECTS; one++) columns.add(p.effect == one);
    columns.add(p.own_turn ^ waits);
    columns.add(waits ^ 1);
    columns.add(p.starter ^ seat);
    columns.add((DECISIONS - decisions) >> 1);
    add_counts(own, columns);
    add_counts(enemy, columns);
    columns.add(own.discard, 1);
    columns.add(enemy.discard, 1);
    return columns.next;
}
