// Legal actions as bits: masks.py.

#pragma once

#include <algorithm>

#include "layout.h"

struct Legal {
    int16_t first[TYPES], second[TYPES], targets[EFFECTS];
    int8_t spells[HAND];
};

// The bits of a set, one byte each.
template <int OPTIONS>
static inline void as_bools(int set, uint8_t* bools) {
    for (int i = 0; i < OPTIONS; i++) bools[i] = set >> i & 1;
}

// What each effect may hit. The unit whose effect it is, if there is one, is not among them.
static inline void targets_of_effects(const Facts& facts, const Position& p, int16_t* targets) {
    int occupied[2] = {}, cheap[2] = {};
    for (int side = 0; side < 2; side++)
        for (int place = 0; place < FRONT; place++) {
            const int id = p.sides[side].id[place];
            occupied[side] |= (id != 0) << place;
            cheap[side] |= (id != 0 && facts.cost[id] <= CHEAP) << place;
        }
    const int others = ~(1 << p.source >> 1);
    const int own = occupied[0] & others, enemy = occupied[1] << FRONT;
    targets[effect::NONE] = 0;
    targets[effect::DAMAGE] = enemy | 1 << ENEMY_CHAMPION;
    targets[effect::HEAL] = own | 1 << OWN_CHAMPION;
    targets[effect::STUN] = enemy;
    targets[effect::RETURN] = (cheap[0] & others) | cheap[1] << FRONT;
    targets[effect::STRENGTHEN] = own;
    targets[effect::DRAW] = 1;
}

// Bits of the own targets for gear, the own attackers, and the guards in a response.
struct OwnBodies {
    int bearers = 0, attackers = 0, guards = 0;
};

static inline OwnBodies own_bodies(const Facts& facts, const Position& p) {
    const Side& own = p.sides[0];
    const int attacker = std::max(p.attacker - 1, 0);
    const bool stopped = !(keywords_of(facts, p.sides[1], attacker) & keyword::EVASIVE);
    OwnBodies found;
    for (int place = 0; place < BODIES; place++) {
        if (!own.id[place]) continue;
        const bool unit = place < FRONT, bare = !own.gear[place], untapped = !own.tapped[place];
        const int keywords = keywords_of(facts, own, place);
        if (bare) found.bearers |= 1 << (unit ? place : OWN_CHAMPION);
        const bool ready = !own.fresh[place] || keywords & keyword::CHARGE;
        if (untapped && ready && (unit || !bare)) found.attackers |= 1 << place;
        if (untapped && unit && keywords & keyword::GUARD && stopped) found.guards |= 1 << place;
    }
    return found;
}

static inline Legal legal_actions(const Facts& facts, const Position& p) {
    const Side &own = p.sides[0], &enemy = p.sides[1];
    const bool main = p.phase == phase::MAIN, response = p.phase == phase::RESPONSE;
    Legal legal = {};
    targets_of_effects(facts, p, legal.targets);
    int units = 0, gear = 0, castable = 0;
    for (int i = 0; i < HAND; i++) {
        const int card = own.hand[i], effect = facts.effect[card];
        legal.spells[i] = effect;
        if (facts.cost[card] > own.mana) continue;
        const int kind = facts.kind[card];
        const bool now = main || (response && facts.quick[card]);
        units |= (kind == kind::UNIT) << i;
        gear |= (kind == kind::GEAR) << i;
        castable |= (kind == kind::SPELL && now && legal.targets[effect]) << i;
    }
    int free_front = 0, free_back = 0, prey = 1 << ENEMY_CHAMPION;
    for (int slot = 0; slot < FRONT; slot++) {
        free_front |= !own.id[slot] << slot;
        free_back |= !own.back[slot] << slot;
        prey |= enemy.tapped[slot] << (FRONT + slot);
    }
    const int resting = free_back ^ ((1 << FRONT) - 1);
    const OwnBodies bodies = own_bodies(facts, p);

    int16_t* first = legal.first;
    first[action::END] = p.phase != phase::TARGET;
    first[action::MULLIGAN] = p.phase == phase::MULLIGAN;
    if (main) {
        first[action::PLAY_FRONT] = free_front ? units : 0;
        first[action::PLAY_BACK] = free_back ? units : 0;
        first[action::GEAR] = bodies.bearers ? gear : 0;
        first[action::ATTACK] = bodies.attackers;
        first[action::ADVANCE] = free_front && !own.advanced ? resting : 0;
        first[action::SPARK] = own.spark && own.mana < HIGHEST_MANA;
    }
    first[action::SPELL] = castable;
    first[action::GUARD] = response ? bodies.guards : 0;
    first[action::TARGET] = p.phase == phase::TARGET;

    int16_t* second = legal.second;
    std::fill(second, second + TYPES, 1);
    second[action::PLAY_FRONT] = second[action::ADVANCE] = free_front;
    second[action::PLAY_BACK] = free_back;
    second[action::GEAR] = bodies.bearers;
    second[action::ATTACK] = prey;
    second[action::TARGET] = legal.targets[p.effect];
    return legal;
}

// The masks of type, first and second number, as bits, each given the choices before it. These may be
// any numbers: nothing follows what is not legal.
static inline int type_mask(const Legal& legal) {
    int types = 0;
    for (int type = 0; type < TYPES; type++) types |= (legal.first[type] != 0) << type;
    return types;
}

static inline int first_mask(const Legal& legal, int64_t type) {
    return type >= 0 && type < TYPES ? legal.first[type] : 0;
}

static inline int second_mask(const Legal& legal, int64_t type, int64_t first) {
    if (first < 0 || first >= CHOICES || !(first_mask(legal, type) >> first & 1)) return 0;
    return type == action::SPELL ? legal.targets[legal.spells[first]] : legal.second[type];
}

// Whether an action, of any numbers, is legal.
static inline bool is_legal(const Legal& legal, const int64_t* action) {
    const int64_t last = action[2];
    return last >= 0 && last < CHOICES && second_mask(legal, action[0], action[1]) >> last & 1;
}
